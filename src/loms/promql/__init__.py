"""PromQL over the sample store: syntax, leaves as SQL, everything else as numpy on whole grids."""

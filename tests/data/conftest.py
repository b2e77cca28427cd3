"""What lies here is data, also where it is Python that another program runs."""

collect_ignore_glob = ["triton-models/*"]

"""Where telemetry is fetched from: one file per source."""

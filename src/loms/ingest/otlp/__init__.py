"""The OpenTelemetry protocol: requests of the three signals → series and rows."""

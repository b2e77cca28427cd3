"""OTLP in: over HTTP and gRPC."""

"""Traces over HTTP: LOMS's own API, Jaeger's and Tempo's."""

"""Prometheus's HTTP API, so that Grafana, promtool and scripts can ask LOMS as they ask Prometheus."""

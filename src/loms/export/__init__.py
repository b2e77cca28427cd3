"""LOMS's vocabulary for other people's tools: recording rules for Prometheus, dashboards for Grafana."""

"""Composition root of the server: store, PromQL, rules, alerting, HTTP API and page, wired together."""

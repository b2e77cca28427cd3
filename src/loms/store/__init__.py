"""Samples, series, alerts and incidents in ClickHouse SQL, embedded (chDB)."""

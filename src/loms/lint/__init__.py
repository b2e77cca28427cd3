"""Reads other people's rules, dashboards and scalers, and says what in them does not fit a target."""

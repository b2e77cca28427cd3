"""Simulated engines, real small ones, and the load that drives both."""

"""Detectors: pure functions from aligned frames to findings, one file each."""

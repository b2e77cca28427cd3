"""Inference engines: one file each, raw metric names → canonical ones."""

"""Bytes that came in → `loms.core.model` values; pure."""

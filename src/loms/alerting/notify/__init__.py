"""Notifiers: one file for each kind of receiver."""

"""Rule groups: reading them, evaluating them, and the life of an alert."""

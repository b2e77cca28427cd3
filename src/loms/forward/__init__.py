"""What comes in, sent on to others: a queue on disk for each destination, and a thread that empties it."""

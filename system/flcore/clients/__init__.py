"""One client's half of every method."""

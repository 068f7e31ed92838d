"""The server's half of every method."""

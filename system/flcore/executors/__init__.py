"""How the clients of a round are run."""

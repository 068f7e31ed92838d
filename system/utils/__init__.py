"""The names under which PFLlib's pairs import what they share; the code is in `flcore`."""

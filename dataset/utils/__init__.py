"""PFLlib's names for its generators; the code is in `flcore.data`."""

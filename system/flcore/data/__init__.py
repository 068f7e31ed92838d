"""Making, describing and reading data sets in PFLlib's files."""

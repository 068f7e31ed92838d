"""Making, describing and reading data sets in PFLlib's files."""

from flcore.data.writing import finish, write_client

__all__ = ["finish", "write_client"]

"""PFLlib's names for reading the data of a client."""

from flcore.data.pfllib import read_client_data, read_data

__all__ = ["read_client_data", "read_data"]

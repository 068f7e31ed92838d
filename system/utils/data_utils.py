"""PFLlib's names for reading the data of a client."""

from flcore.data.data_utils import read_client_data, read_data

__all__ = ["read_client_data", "read_data"]

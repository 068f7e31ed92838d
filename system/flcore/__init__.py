"""Personalized federated learning in PFLlib's layout, built around FedCPD."""

__version__ = "0.1.0"

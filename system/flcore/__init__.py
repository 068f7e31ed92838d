"""Personalized federated learning in PFLlib's layout, built around FedCPD."""

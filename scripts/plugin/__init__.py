"""Puts FedCPD into an existing PFLlib checkout: `python scripts/install_plugin.py`.

Standard library only, and nothing of flcore: the command runs in PFLlib's environment as well as in ours.
"""

"""What scripts/import_pair.py is made of: methods in a PFLlib checkout, their copies here, the command line."""

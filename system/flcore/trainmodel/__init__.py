"""Networks, and the modules that methods add to them."""

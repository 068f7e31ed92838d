"""FedCPD's convergence statement as functions (bounds) and estimates of its constants along a run (estimates)."""

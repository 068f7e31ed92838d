"""Results as data frames, tables, figures and one HTML page: what scripts/report.py prints, for notebooks as well.

>>> from flcore import reporting
>>> rounds = reporting.load("results")  # one row a run and round
>>> runs = reporting.load_runs("results")  # one row a run
"""

from flcore.reporting.frames import Results, load, load_clients, load_runs, read_results

__all__ = ["Results", "load", "load_clients", "load_runs", "read_results"]

"""Measures the speed of a round: `python scripts/bench.py`, docs/performance.md."""

"""Where this checkout's folders are."""

from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
SYSTEM = REPO / "system"
DATASET = REPO / "dataset"  # generators, and the data sets that they make
RESULTS = REPO / "results"

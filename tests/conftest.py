"""Puts the two code folders on the path, as running from system/ and dataset/ does."""

import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
for folder in ("system", "dataset"):
    sys.path.insert(0, str(REPO / folder))

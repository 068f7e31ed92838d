"""Where things are. Importing this also lets the generators use system/utils: both folders are one package, `utils`."""

import sys
from pathlib import Path

DATASET = Path(__file__).resolve().parents[1]
SYSTEM = DATASET.parent / "system"

if str(SYSTEM) not in sys.path:
    sys.path.append(str(SYSTEM))

"""Where this checkout's folders are, and how a name becomes a file's."""

import re
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
DATASET = REPO / "dataset"  # generators, and the data sets that they make
RESULTS = REPO / "results"


def file_name(name: str) -> str:
    """A user's name, such as that of an experiment or a data set, as a part of a file's name.

    Letters and digits of all alphabets, dot, underscore, plus and minus stay; what is between becomes one minus.
    """
    return re.sub(r"[^\w.+-]+", "-", name).strip(".-") or "test"

"""The numbers of one round, from the arrays that a run records; `flcore.reporting.frames` has a table of all."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# arrays with an entry for every evaluation, the n-th belonging to round rs_round[n]; those after training have none for
# the last one, after which nothing is trained
EVALUATED = (
    *("test_acc", "test_auc", "test_mean", "test_std", "worst_decile", "best_decile", "forgetting", "benign_acc"),
    *("test_acc_after", "train_loss"),
)
# arrays with an entry for every round of training
TRAINED = ("bytes_down", "bytes_up", "seconds", "simulated_seconds", "left_out", "late", "dp_epsilon")


def row(arrays: Mapping[str, Sequence[Any] | NDArray[Any]], number: int) -> dict[str, Any]:
    """The numbers of round `number`, by their names in the result file without ``rs_``: those that there are.

    A round without an evaluation has only what training tells; the last one, which trains nothing, only the scores of
    what was sent out.
    """
    found: dict[str, Any] = {"round": number}
    rounds = arrays.get("rs_round", ())
    evaluation = next((i for i in range(len(rounds) - 1, -1, -1) if rounds[i] == number), None)
    for names, index in ((EVALUATED, evaluation), (TRAINED, number)):
        for name in names:
            values = arrays.get(f"rs_{name}", ())
            if index is not None and index < len(values):
                value = values[index]
                found[name] = value.item() if isinstance(value, np.generic) else value
    return found


def shown(value: float) -> str:
    """A number for people; nan, as of a mean over nothing, is undefined."""
    return "undefined" if np.isnan(value) else f"{value:.4f}"

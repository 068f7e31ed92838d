"""PFLlib's names for the mean of repeats, of the results in results/ of this checkout."""

import numpy as np
from numpy.typing import NDArray

from flcore.utils.paths import RESULTS
from flcore.utils.runs.read import best_lines, read_accuracies, read_run


def average_data(algorithm: str = "", dataset: str = "", goal: str = "", times: int = 10) -> None:
    """Prints the standard deviation and the mean over repeats 0 to times-1 of each one's best test accuracy."""
    print(*best_lines(get_all_results_for_one_algo(algorithm, dataset, goal, times)), sep="\n")


def get_all_results_for_one_algo(
    algorithm: str = "", dataset: str = "", goal: str = "", times: int = 10
) -> list[NDArray[np.float64]]:
    """The test accuracies over the rounds of every repeat that has a result file."""
    return read_accuracies(RESULTS, dataset, algorithm, goal, times)


def read_data_then_delete(file_name: str, delete: bool = False) -> NDArray[np.float64]:
    """The test accuracies over the rounds in `<file_name>.h5`, which is removed if `delete`; prints their number."""
    path = RESULTS / f"{file_name}.h5"
    curve = read_run(path).accuracy
    if delete:
        path.unlink()
    print("Length: ", len(curve))
    return curve

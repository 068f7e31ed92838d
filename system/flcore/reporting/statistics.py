"""What several seeds say: mean, spread, and the difference of two methods with a bootstrap interval."""

import itertools
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

MOST_ENUMERATED = 6  # values, of which all 6**6 = 46,656 resamples are gone through; more are drawn
DRAWS = 20_000


class Difference(NamedTuple):
    """Mean of a - b, and the ends of its bootstrap interval: NaN with fewer than two pairs.

    pairs: seeds that both have; with fewer than two, the difference of the two means over whatever seeds each has.
    """

    mean: float
    low: float
    high: float
    pairs: int


def mean_and_spread(values: pd.Series) -> tuple[float, float]:
    """Mean and sample standard deviation (n - 1) of those that are not NaN; the latter NaN for fewer than two."""
    there = values.dropna()
    return (float(there.mean()) if len(there) else np.nan), (float(there.std(ddof=1)) if len(there) > 1 else np.nan)


def bootstrap_interval(values: NDArray[np.float64], level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of the mean under resampling of `values`; the same numbers in every call.

    Of few values it is too narrow, as every bootstrap of few values is: it never reaches beyond the smallest and the
    largest.
    """
    count = len(values)
    if count < 2:
        return np.nan, np.nan
    if count <= MOST_ENUMERATED:
        chosen = np.array(list(itertools.product(range(count), repeat=count)))
    else:
        from flcore.utils.seeds import numpy_generator  # with torch, which takes its time

        chosen = numpy_generator(0, "bootstrap").integers(count, size=(DRAWS, count))
    means = values[chosen].mean(axis=1)
    # both ends are means that occur, not numbers between them, which would be too narrow for few values
    low, high = (sign * np.quantile(sign * means, (1 - level) / 2, method="inverted_cdf") for sign in (1, -1))
    return float(low), float(high)


def paired_difference(first: pd.DataFrame, second: pd.DataFrame, metric: str, level: float = 0.95) -> Difference:
    """Of two groups' runs: `metric` of the first minus that of the second, paired by seed and repeat."""
    one, two = (runs.fillna({"seed": -1}).set_index(["seed", "repeat"])[metric].dropna() for runs in (first, second))
    common = one.index.intersection(two.index)
    if len(common) < 2:
        return Difference(float(one.mean() - two.mean()), np.nan, np.nan, len(common))
    differences = (one[common] - two[common]).to_numpy(dtype=np.float64)
    return Difference(float(differences.mean()), *bootstrap_interval(differences, level), len(common))

"""What an experiment gives: curves, tables, files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flcore.predictor import Predictor, Predictors
from flcore.utils.errors import UsageError
from flcore.utils.runs.read import Run

if TYPE_CHECKING:
    import pandas as pd

Curve = NDArray[np.float64]
NO_MODELS = "save_models is none, the run is not finished, or its clients bring a `train` of their own, as PFLlib's do"


class Curves:
    """The curves that one repeat and a whole experiment have alike."""

    def curve(self, name: str) -> Curve:
        raise NotImplementedError

    @property
    def rounds(self) -> Curve:
        """The rounds that were evaluated; `test_acc` belongs to them."""
        return self.curve("rs_round")

    @property
    def test_acc(self) -> Curve:
        """Evaluation point A, over all clients' test samples: after the download, before training."""
        return self.curve("rs_test_acc")

    @property
    def test_acc_after(self) -> Curve:
        """Evaluation point B, after local training: as A, without the last round, after which nothing is trained."""
        return self.curve("rs_test_acc_after")

    @property
    def train_loss(self) -> Curve:
        """Mean loss of the steps of local training in the evaluated rounds."""
        return self.curve("rs_train_loss")

    @property
    def accuracy(self) -> float:
        """A after the last round: the headline. NaN where nothing was evaluated."""
        return float(self.test_acc[-1]) if len(self.test_acc) else float("nan")


@dataclass(frozen=True)
class Repeat(Curves):
    """One repeat of an experiment, with its own initial network and draws.

    arrays: what the .h5 file holds, by PFLlib's names and ours (docs/reporting.md).
    info: what run.json says.
    path: the .h5 file; None where nothing is written.
    predictors: the clients' trained models.
    """

    repeat: int
    arrays: Mapping[str, NDArray[Any]] = field(repr=False)
    info: Mapping[str, Any] = field(repr=False)
    path: Path | None
    predictors: Predictors | None = field(default=None, repr=False, compare=False)

    def client(self, client: int) -> Predictor:
        """The trained model of one client, as it was scored last.

        Raises:
            UsageError: there is none, or its files cannot be used.
        """
        if self.predictors is None:
            raise UsageError(f"there are no trained models: {NO_MODELS}")
        return self.predictors[client]

    def curve(self, name: str) -> Curve:
        return np.asarray(self.arrays.get(name, ()), dtype=np.float64)

    @property
    def status(self) -> str:
        """finished; or stopped, by an observer."""
        return str(self.info["status"])

    @property
    def client_accuracies(self) -> Curve:
        """A of every scored client after the last round (clients,); NaN without test samples."""
        each: Any = self.arrays.get("rs_client_acc", ())
        return np.asarray(each[-1] if len(each) else (), dtype=np.float64)

    @property
    def paths(self) -> dict[str, Path]:
        """The files that there are: results, run (run.json), model (what the clients got last) and models (a folder
        with every client's)."""
        if self.path is None:
            return {}
        endings = {"results": ".h5", "run": ".run.json", "model": ".pt", "models": ".models"}
        found = {name: self.path.with_suffix(ending) for name, ending in endings.items()}
        return {name: path for name, path in found.items() if path.exists()}


@dataclass(frozen=True)
class Result(Curves):
    """An experiment's repeats (``times``; one unless asked for).

    With several, a curve is their mean, as far as the shortest goes, and so are `accuracy` and `client_accuracies`;
    `frame` holds the rounds of all, told apart by ``repeat``.

    settings: what decided the numbers.
    """

    repeats: tuple[Repeat, ...]
    settings: Mapping[str, Any] = field(repr=False)

    def client(self, client: int) -> Predictor:
        """The trained model of one client, of the first repeat: `result.client(3).predict(images)`."""
        return self.repeats[0].client(client)

    def curve(self, name: str) -> Curve:
        curves = [repeat.curve(name) for repeat in self.repeats]
        shortest = min(map(len, curves))
        return np.asarray(np.mean([curve[:shortest] for curve in curves], axis=0))

    @property
    def accuracy(self) -> float:
        """A after the last round, mean over the repeats."""
        return float(np.mean(self.accuracies))

    @property
    def accuracies(self) -> Curve:
        """A after the last round of each repeat."""
        return np.array([repeat.accuracy for repeat in self.repeats])

    @property
    def client_accuracies(self) -> Curve:
        """A of every client after the last round, mean over the repeats (clients,)."""
        return np.asarray(np.mean([repeat.client_accuracies for repeat in self.repeats], axis=0))

    @property
    def frame(self) -> pd.DataFrame:
        """One row a repeat and round, with the columns of `flcore.reporting.load`."""
        from flcore.reporting.frames import results_of  # with pandas, which takes its time

        names = {name: str(self.settings[name]) for name in ("dataset", "algorithm")}
        runs = [
            Run(
                path=repeat.path or Path(),
                arrays=dict(repeat.arrays),
                info={"settings": dict(self.settings), **repeat.info},
                goal=str(repeat.info.get("goal", "")),
                repeat=repeat.repeat,
                **names,
            )
            for repeat in self.repeats
        ]
        return results_of(runs).rounds

    @property
    def paths(self) -> list[dict[str, Path]]:
        """The files of each repeat."""
        return [repeat.paths for repeat in self.repeats]

    @property
    def status(self) -> str:
        """finished if every repeat is; else stopped: an observer ended one."""
        return next((repeat.status for repeat in self.repeats if repeat.status != "finished"), "finished")

"""What a head in closed form (FedCPD+'s) makes of extractors that other methods have trained.

    python experiments/heads.py results/Digits_FedRep_test_0.h5 results/Digits_FedAvg_test_0.h5

For each finished run, in percent of the test samples at point A: its own prediction, that of a head solved from each
client's training data and its trained extractor, and that of such a head on the extractor before the first round.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flcore.clients.clientcpdplus import CPDPlusSettings
from flcore.registry import METHODS
from flcore.saved import experiment_of
from flcore.servers.support.predictors import Models
from flcore.trainmodel.closed_form import ridge_classifier
from flcore.trainmodel.forward import Tensors
from flcore.utils.errors import UsageError, report
from flcore.utils.runs.read import read_run


@dataclass
class Scores:
    """Accuracies of one run, in percent."""

    name: str
    own: float
    solved: float
    untrained: float


def correct(client: Any, params: Tensors, strength: float) -> int:
    """Test samples that are right with a head in closed form on the extractor in ``params``."""
    (x, y), (test_x, test_y) = client.data, client.tensors(is_train=False)
    forward = client.forward
    weight, bias = ridge_classifier(forward.in_batches(params, x), y, client.num_classes, strength)
    found = forward.in_batches(params, test_x) @ weight.T + bias
    return int((found.argmax(1) == test_y).sum())


def scores(path: Path, strength: float) -> Scores:
    """Raises:
    UsageError: the run has no models, or its clients predict without an extractor of the network.
    """
    run = read_run(path, [method.name for method in METHODS])
    server = experiment_of(run).server(repeat=run.repeat)
    models = Models(path, server.device)
    solved = untrained = samples = 0
    for client in server.clients:
        trained = models[client.id]["params"]
        if not any(name.startswith("base.") for name in trained):
            raise UsageError(f"{path}: {run.algorithm} predicts by something else than the network's extractor")
        untrained += correct(client, client.params, strength)
        solved += correct(client, client.params | trained, strength)
        samples += client.test_samples
    name = f"{run.algorithm} on {run.dataset}, {run.goal}"
    return Scores(name, 100 * float(run.accuracy[-1]), 100 * solved / samples, 100 * untrained / samples)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.h5", help="of finished runs")
    parser.add_argument("--cpd_ridge", type=float, default=CPDPlusSettings.cpd_ridge, help="see FedCPD+")
    args = parser.parse_args(argv)
    print(f"{'':44}{'own':>8}{'solved':>8}{'untrained':>11}")
    try:
        for path in args.results:
            one = scores(path, args.cpd_ridge)
            print(f"{one.name:44}{one.own:8.2f}{one.solved:8.2f}{one.untrained:11.2f}", flush=True)
    except Exception as error:
        return report(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Results that were made before: an .h5 file with its run.json as a `Result`, with its clients' trained models.

from flcore.saved import load_result
load_result("../results/Digits_FedCPD_test_0.h5").client(3).predict(images)
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flcore.data.reading import DataSet
from flcore.experiment import Experiment
from flcore.predictor import Network, Predictors
from flcore.registry import METHODS
from flcore.result import Repeat, Result
from flcore.servers.support.predictors import Models
from flcore.utils.errors import UsageError
from flcore.utils.runs.provenance import code_digest
from flcore.utils.runs.read import Run, read_run

DERIVED = {"data_digest", "shape", "model_digest", "pretrained", "device"}  # entries of the settings that are no flags

log = logging.getLogger(__name__)


def load_result(path: Path | str, device: str = "cpu") -> Result:
    """The result in a file; `device` is for its models.

    Raises:
        UsageError: there is none, or it is damaged. What is wrong with its models is told when one is asked for.
    """
    run = read_run(path, [method.name for method in METHODS])
    find = partial(_models_of, run, torch.device(device))
    return Result((Repeat(run.repeat, run.arrays, run.info, run.path, Predictors(find)),), run.info.get("settings", {}))


def experiment_of(run: Run) -> Experiment:
    """The experiment that made a run, without files.

    Raises:
        UsageError: it cannot be made again; the message says why.
    """
    settings, arguments = (run.info.get(key) for key in ("settings", "arguments"))
    if not isinstance(settings, dict) or not isinstance(arguments, dict):
        raise UsageError(f"{run.path}: no run.json beside it tells its settings")
    values = {name: value for name, value in settings.items() if name not in DERIVED and value is not None}
    values |= {name: arguments[name] for name in ("model", "data_dir") if name in arguments}
    if "model_digest" in settings and values["model"] == settings.get("model"):
        raise UsageError(f"{run.path}: its network was given as an object in Python, which no file holds")
    experiment = Experiment(**values, results_dir=None)
    if experiment.network.get("model_digest") != settings.get("model_digest"):
        raise UsageError(f"{run.path}: the network {values['model']} is no longer the one that was trained")
    return experiment


def data_of(run: Run) -> DataSet:
    """The data set that a run used.

    Raises:
        UsageError: it is not there, or no longer the same.
    """
    experiment = experiment_of(run)
    data = DataSet(experiment.values["dataset"], experiment.values["data_dir"])
    data.validation = experiment.values["validation"]
    if data.digest() != run.info["settings"].get("data_digest"):
        raise UsageError(f"the data set in {data.folder} is no longer the one that {run.path} was made with")
    return data


def _models_of(run: Run, device: torch.device) -> tuple[Network, Models]:
    models = Models(run.path, device)
    if run.info.get("code_digest") != code_digest():
        log.warning(f"{run.path}: made by other code (commit {str(run.info.get('commit'))[:12]}); its rule may differ")
    shape, names = models.about.get("shape"), models.about.get("class_names")
    network = experiment_of(run).predictor_network(tuple(_list(shape, run)), _list(names, run), device)
    own = {name: value.shape for name, value in network.forward.net.state_dict().items()}
    if wrong := [name for name, value in next(iter(models.values()))["params"].items() if own.get(name) != value.shape]:
        raise UsageError(f"{run.path}: its models do not fit this version's network ({wrong[0]} differs)")
    return network, models


def _list(value: Any, run: Run) -> list[Any]:
    if not isinstance(value, list):
        raise UsageError(f"{run.path}: its models.json is damaged")
    return value

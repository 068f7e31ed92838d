"""Observers that hand a run's numbers to TensorBoard, Weights & Biases or MLflow: --tensorboard, --wandb, --mlflow.

A tool is imported when it is asked for. It may refuse before a run begins; once the run goes on, it ends nothing: after
its first failure there is a warning and the run goes on without it.
"""

import importlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flcore.context import RunContext
from flcore.observers import Observer
from flcore.result import Repeat
from flcore.utils.errors import UsageError
from flcore.utils.records import row

PROJECT = "fedcpd"  # unless the tool's own environment variable names another

log = logging.getLogger(__name__)


class Tracker(Observer):
    """What the tools have in common: the finite numbers of every round by their names in the result file without
    ``rs_``, those of an evaluation by its round; the settings; how the run ended.

    Raises:
        UsageError: the tool is not installed.
    """

    flag = module = install = ""

    def __init__(self) -> None:
        try:
            self.tool = importlib.import_module(self.module)
        except ImportError as error:
            raise UsageError(f"--{self.flag} cannot be used ({error}): pip install {self.install}") from None

    # ---- what a tool overrides -----------------------------------------------------------------------------------

    def begin(self, context: RunContext, name: str) -> None:
        """A run called ``name`` begins."""
        raise NotImplementedError

    def take(self, numbers: Mapping[str, float], step: int) -> None:
        """The numbers of a round."""
        raise NotImplementedError

    def end(self, status: str) -> None:
        """The run is finished, stopped, interrupted or failed."""
        raise NotImplementedError

    # ---- the observer --------------------------------------------------------------------------------------------

    def on_start(self, context: RunContext) -> None:
        self.told, self.lost = -1, True
        path = context.result_path
        try:
            self.begin(context, path.stem if path else f"{context.dataset}_{context.algorithm}_{context.repeat}")
        except Exception as error:  # of the tool's own kinds
            raise UsageError(f"--{self.flag}: {' '.join(str(error).split())}") from error
        self.lost = False

    def on_round(self, record: dict[str, Any]) -> None:
        self.told = record["round"]
        self._try(self.take, _numbers(record), self.told)

    def on_end(self, repeat: Repeat) -> None:
        for evaluated in repeat.rounds.astype(
            int
        ).tolist():  # the last one trains nothing; a loop of its own tells none
            if evaluated > self.told:
                self._try(self.take, _numbers(row(repeat.arrays, evaluated)), evaluated)
        self._try(self.end, repeat.status)

    def _try(self, call: Callable[..., None], *arguments: Any) -> None:
        if not self.lost:
            try:
                call(*arguments)
            except Exception as error:
                self.lost = True
                log.warning(f"--{self.flag}: {' '.join(str(error).split())}; the run goes on without it")


class TensorBoard(Tracker):
    """Writes event files to ``tensorboard/`` beside the result; `tensorboard --logdir results` shows them."""

    flag, module, install = "tensorboard", "torch.utils.tensorboard", "'tensorboard>=2.18'"

    def begin(self, context: RunContext, name: str) -> None:
        if context.result_path is None:
            raise UsageError("needs a folder of results, and results_dir is None")
        self.folder, self.settings = context.result_path.parent / "tensorboard" / name, context.settings
        self.writer: Any = None

    def take(self, numbers: Mapping[str, float], step: int) -> None:
        if self.writer is None:  # a run that goes on replaces what was written from here on
            self.writer = self.tool.SummaryWriter(str(self.folder), purge_step=step)
            lines = [f"| {name} | {value} |" for name, value in self.settings.items()]
            self.writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *lines]), step)
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def end(self, status: str) -> None:
        if self.writer:
            self.writer.close()


class WeightsAndBiases(Tracker):
    """A run of wandb, in the project WANDB_PROJECT; WANDB_MODE=offline needs no account."""

    flag, module, install = "wandb", "wandb", "'wandb>=0.17'"

    def begin(self, context: RunContext, name: str) -> None:
        self.run = self.tool.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=name,
            config=dict(context.settings),
            dir=str(context.result_path.parent) if context.result_path else None,
            settings=self.tool.Settings(console="off", silent=True),
        )

    def take(self, numbers: Mapping[str, float], step: int) -> None:
        self.run.log(dict(numbers), step=step)

    def end(self, status: str) -> None:
        self.run.finish(exit_code=0 if status in ("finished", "stopped") else 1)


class MLflow(Tracker):
    """A run of MLflow, in the experiment MLFLOW_EXPERIMENT_NAME of MLFLOW_TRACKING_URI; without that, in ``mlflow.db``
    beside the result: `mlflow ui --backend-store-uri sqlite:///results/mlflow.db`.
    """

    flag, module, install = "mlflow", "mlflow", "'mlflow>=2.14'"

    def begin(self, context: RunContext, name: str) -> None:
        folder = (context.result_path.parent if context.result_path else Path()).resolve()
        where = os.environ.get("MLFLOW_TRACKING_URI")
        files = None if where else (folder / "mlartifacts").as_uri()
        where = where or f"sqlite:///{folder / 'mlflow.db'}"
        self.client = self.tool.MlflowClient(tracking_uri=where)
        project = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self.client.get_experiment_by_name(project)
        experiment = found.experiment_id if found else self.client.create_experiment(project, files)
        self.run = self.client.create_run(experiment, run_name=name).info.run_id
        params = [self.tool.entities.Param(name, str(value)) for name, value in context.settings.items()]
        self.client.log_batch(self.run, params=params)

    def take(self, numbers: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [self.tool.entities.Metric(name, value, now, step) for name, value in numbers.items()]
        self.client.log_batch(self.run, metrics=metrics)

    def end(self, status: str) -> None:
        ended = {"interrupted": "KILLED", "failed": "FAILED"}.get(status, "FINISHED")
        self.client.set_terminated(self.run, ended)


TRACKERS: tuple[type[Tracker], ...] = (TensorBoard, WeightsAndBiases, MLflow)


def trackers(values: Mapping[str, Any]) -> list[Observer]:
    """Those that the flags ask for."""
    return [tracker() for tracker in TRACKERS if values[tracker.flag]]


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in record.items() if name != "round" and np.isfinite(value)}

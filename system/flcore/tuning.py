"""Choosing settings on validation data, by Optuna: a TOML file of settings, with a table of what is to be chosen.

    algorithm = "FedCPD"
    dataset = "Digits"
    validation = 0.2

    [tune]
    cpd_align = { low = 0.1, high = 10.0, log = true }
    local_learning_rate = [0.005, 0.01, 0.05]

A trial is a run without files, whose score is A after its last round: on a part of the training data, never on the test
data. Trials that fall behind the median of the earlier ones end early. The study is a file (SQLite), and goes on.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flcore.experiment import Experiment
from flcore.observers import Observer
from flcore.utils import interrupt
from flcore.utils.cli import read_toml
from flcore.utils.errors import DivergedError, RunError, UsageError
from flcore.utils.runs.provenance import plain

VALIDATION = 0.2


@dataclass(frozen=True)
class Plan:
    """What a file says: the settings of every trial, and what is chosen, each a list of values or a range."""

    settings: Mapping[str, Any]
    chosen: Mapping[str, list[Any] | dict[str, Any]]


def read_plan(path: Path) -> Plan:
    """What a file means.

    Raises:
        UsageError: it is no TOML, names no range or list, or settings that do not exist.
    """
    content = read_toml(path)
    chosen = content.pop("tune", None)
    if not isinstance(chosen, dict) or not chosen:
        raise UsageError(
            f"{path}: a table [tune] says what is to be chosen, such as cpd_align = {{low = 0.1, high = 10.0}}"
        )
    for name, values in chosen.items():
        if isinstance(values, dict) and {"low", "high"} <= values.keys() <= {"low", "high", "log", "step"}:
            numbers = values["low"], values["high"]
            if any(isinstance(number, bool) or not isinstance(number, int | float) for number in numbers):
                raise UsageError(f"{path}: {name}: low and high must be numbers")
            if not numbers[0] < numbers[1] or (values.get("log") and (numbers[0] <= 0 or "step" in values)):
                raise UsageError(f"{path}: {name}: low must be below high; with log both above 0, and no step")
        elif not isinstance(values, list) or not values:
            raise UsageError(f"{path}: {name} must be a list of values or {{low = ..., high = ..., log = true}}")
        if name in content:
            raise UsageError(f"{path}: {name} is in [tune], and has a value outside")
    settings = {"validation": VALIDATION, **content, "results_dir": None}
    if not settings["validation"]:
        raise UsageError(f"{path}: validation must be above 0: the test data are not for choosing")
    if content.get("times", 1) != 1:
        raise UsageError(f"{path}: a trial is one run; leave times out")
    for end in ("low", "high"):  # both ends are allowed values
        Experiment(
            **settings | {name: value[end] if isinstance(value, dict) else value[0] for name, value in chosen.items()}
        )
    return Plan(settings, chosen)


def optuna() -> Any:
    """The library.

    Raises:
        UsageError: it is not there.
    """
    try:
        import optuna as found
    except ImportError as error:
        raise UsageError(f"choosing settings needs Optuna ({error}): pip install 'optuna>=4.0'") from None
    found.logging.set_verbosity(found.logging.ERROR)
    return found


def study_of(plan: Plan, file: Path, seed: int = 0) -> Any:
    """The study in a file, new or begun before.

    Raises:
        UsageError: it was begun with other settings, or is no study.
    """
    library = optuna()
    file.parent.mkdir(parents=True, exist_ok=True)
    meaning = plain({"settings": plan.settings, "tune": plan.chosen})
    try:
        study = library.create_study(
            storage=f"sqlite:///{file.resolve()}",
            study_name="tune",
            direction="maximize",
            sampler=library.samplers.TPESampler(seed=seed),
            pruner=library.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=2),
            load_if_exists=True,
        )
        before = study.user_attrs.get("meaning")
    except Exception as error:  # of SQLite, of another version of Optuna
        raise UsageError(f"{file} is not a study that can be used: {str(error).splitlines()[0]}") from None
    if before is None:
        study.set_user_attr("meaning", meaning)
    elif before != meaning:
        raise UsageError(f"{file} is a study of other settings; name another file with --study")
    return study


class _Pruning(Observer):
    """Tells a trial of every round, and ends it where it falls behind."""

    def __init__(self, trial: Any) -> None:
        self.trial, self.pruned = trial, False

    def on_round(self, record: dict[str, Any]) -> bool:
        if "test_acc" in record:
            self.trial.report(record["test_acc"], record["round"])
            self.pruned = self.pruned or self.trial.should_prune()
        return self.pruned


def tune(plan: Plan, study: Any, trials: int, say: Callable[[str], object] = print) -> None:
    """Runs trials until the study has so many that are finished or pruned.

    Raises:
        UsageError, RunError: a trial cannot be run; of one that diverges the score is 0.
        KeyboardInterrupt: somebody ended it; the trials so far are in the study.
    """
    states = optuna().trial.TrialState
    for old in study.get_trials(states=(states.RUNNING,)):  # of a process that was killed
        study.tell(old.number, state=states.FAIL)
    while (done := len(study.get_trials(states=(states.COMPLETE, states.PRUNED)))) < trials:
        trial = study.ask()
        values = {name: _suggested(trial, name, value) for name, value in plan.chosen.items()}
        words = " ".join(
            f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in values.items()
        )
        pruning, state, score = _Pruning(trial), states.FAIL, None
        try:
            interrupt.check(f"{done} of {trials} trials are done; the same command goes on")
            score, state = Experiment(**{**plan.settings, **values}).run([pruning]).accuracy, states.COMPLETE
        except DivergedError:
            score, state = 0.0, states.COMPLETE
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted; {done} of {trials} trials are done; the same command goes on"
            ) from None
        finally:
            state = states.PRUNED if pruning.pruned else state
            study.tell(trial, score if state is states.COMPLETE else None, state=state)
        result = "ended early" if pruning.pruned else f"validation accuracy {score:.4f}"
        say(f"[{done + 1}/{trials}] {words}: {result}")


def _suggested(trial: Any, name: str, values: list[Any] | dict[str, Any]) -> Any:
    if isinstance(values, list):
        return trial.suggest_categorical(name, values)
    options = {key: value for key, value in values.items() if key in ("log", "step")}
    whole = isinstance(values["low"], int) and isinstance(values["high"], int)
    suggest = trial.suggest_int if whole else trial.suggest_float
    return suggest(name, values["low"], values["high"], **options)


def best_command(plan: Plan, study: Any) -> str:
    """The command that runs the best settings on all training data and the test data, to be typed in system/.

    Raises:
        RunError: no trial has come to its end.
    """
    states = optuna().trial.TrialState
    if not study.get_trials(states=(states.COMPLETE,)):
        raise RunError("no trial has come to its end")
    settings = {name: value for name, value in plan.settings.items() if name not in ("validation", "results_dir")}
    words = ["python", "main.py"]
    for name, value in (settings | study.best_params).items():
        if isinstance(value, dict):
            value = ", ".join(f"{key}={plain(item)!r}" for key, item in value.items())
        words += [f"--{name}", str(value)]
    return shlex.join(words)

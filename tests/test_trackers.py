"""Numbers of a run in TensorBoard, Weights & Biases and MLflow.

The last two are stand-ins that take the calls of the real ones that are used, with their names and arguments.
"""

import sys
from types import SimpleNamespace

import pytest

from flcore.experiment import Experiment
from flcore.observers import Observer
from flcore.utils.errors import UsageError


@pytest.fixture
def small(data_root, tmp_path):
    def make(**settings):
        usual = {"dataset": "Tiny", "model": "MLR", "global_rounds": 2, "device": "cpu", "results_dir": tmp_path / "r"}
        return Experiment(data_dir=data_root, **(usual | settings))

    return make


def expected(repeat):
    """(round, accuracy) of every evaluation, the last one too, after which nothing is trained."""
    return list(zip(repeat.rounds.tolist(), repeat.test_acc.tolist(), strict=True))


def read_events(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}, events


def test_tensorboard_has_every_round_and_the_settings(small, tmp_path):
    pytest.importorskip("tensorboard")
    result = small(tensorboard=True, eval_gap=2, global_rounds=3).run()
    scalars, events = read_events(tmp_path / "r" / "tensorboard" / "Tiny_FedAvg_test_0")
    assert scalars["test_acc"] == [(step, pytest.approx(value)) for step, value in expected(result.repeats[0])]
    assert [step for step, _ in scalars["test_acc"]] == [0, 2, 3] and [s for s, _ in scalars["seconds"]] == [0, 1, 2]
    assert scalars["train_loss"] == [(0, pytest.approx(result.train_loss[0])), (2, pytest.approx(result.train_loss[1]))]
    assert "| local_learning_rate | 0.01 |" in str(events.Tensors("settings/text_summary"))


def test_in_tensorboard_a_run_that_goes_on_is_one_curve(small, tmp_path):
    pytest.importorskip("tensorboard")
    small(tensorboard=True, keep_checkpoint=True, overwrite=True).run()
    result = small(tensorboard=True, global_rounds=4, resume=True, overwrite=True).run()
    scalars, _ = read_events(tmp_path / "r" / "tensorboard" / "Tiny_FedAvg_test_0")
    assert scalars["test_acc"] == [(step, pytest.approx(value)) for step, value in expected(result.repeats[0])]


class Wandb:
    """The calls of wandb that are used."""

    def __init__(self):
        self.runs = []

    def Settings(self, console, silent):  # noqa: N802
        return {"console": console, "silent": silent}

    def init(self, project, name, config, dir, settings):
        run = SimpleNamespace(project=project, name=name, config=config, dir=dir, settings=settings, logged=[])
        run.log = lambda numbers, step: run.logged.append((step, numbers))
        run.finish = lambda exit_code: setattr(run, "exit_code", exit_code)
        self.runs.append(run)
        return run


@pytest.fixture
def wandb(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", module := Wandb())
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return module


def test_wandb_gets_a_run_for_each_repeat(small, wandb, tmp_path, monkeypatch):
    result = small(wandb=True, times=2).run()
    for run, repeat in zip(wandb.runs, result.repeats, strict=True):
        assert (run.project, run.name, run.dir) == ("fedcpd", f"Tiny_FedAvg_test_{repeat.repeat}", str(tmp_path / "r"))
        assert run.config == result.settings and run.settings == {"console": "off", "silent": True}
        assert [(step, numbers["test_acc"]) for step, numbers in run.logged] == expected(repeat)
        assert "round" not in run.logged[0][1] and "forgetting" not in run.logged[0][1]  # NaN in the first round
        assert run.exit_code == 0
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    small(wandb=True, results_dir=None).run()
    assert (wandb.runs[2].project, wandb.runs[2].name, wandb.runs[2].dir) == ("mine", "Tiny_FedAvg_0", None)


def test_a_run_that_fails_says_so_to_the_tool(small, wandb):
    class Ends(Observer):
        def on_round(self, record):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(wandb=True).run([Ends()])
    assert wandb.runs[0].exit_code == 1 and [step for step, _ in wandb.runs[0].logged] == [0]


def test_a_tool_that_breaks_does_not_end_the_run(small, wandb, caplog):
    def log(numbers, step):
        raise OSError("the net is gone")

    init = wandb.init
    wandb.init = lambda **how: SimpleNamespace(**{**vars(init(**how)), "log": log})
    assert small(wandb=True).run().status == "finished"
    assert caplog.text.count("--wandb: the net is gone; the run goes on without it") == 1


def test_a_tool_that_does_not_begin_is_refused(small, wandb, caplog):
    def init(**how):
        raise RuntimeError("no API key\nsee the page")

    wandb.init = init
    with pytest.raises(UsageError, match="--wandb: no API key see the page"):
        small(wandb=True).run()
    assert "goes on without" not in caplog.text


def test_a_tool_that_is_not_installed_is_named_before_anything_else(small, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"--wandb cannot be used \(.*\): pip install 'wandb>=0.17'"):
        small(wandb=True).run()
    assert not (tmp_path / "r").exists()
    with pytest.raises(UsageError, match="tensorboard: needs a folder of results"):
        small(tensorboard=True, results_dir=None)


class Client:
    """The calls of mlflow.MlflowClient that are used."""

    uris, experiments, runs = [], {}, []

    def __init__(self, tracking_uri):
        self.uris.append(tracking_uri)

    def get_experiment_by_name(self, name):
        return self.experiments.get(name)

    def create_experiment(self, name, artifact_location):
        self.experiments[name] = SimpleNamespace(experiment_id=name, artifact_location=artifact_location)
        return name

    def create_run(self, experiment_id, run_name):
        self.runs.append(SimpleNamespace(experiment=experiment_id, name=run_name, params=[], metrics=[], status=""))
        return SimpleNamespace(info=SimpleNamespace(run_id=len(self.runs) - 1))

    def log_batch(self, run_id, metrics=(), params=()):
        self.runs[run_id].params.extend(params)
        self.runs[run_id].metrics.extend(metrics)

    def set_terminated(self, run_id, status):
        self.runs[run_id].status = status


def test_mlflow_gets_a_run_for_each_repeat(small, monkeypatch, tmp_path):
    def metric(key, value, timestamp, step):
        return key, value, step

    entities = SimpleNamespace(Metric=metric, Param=lambda key, value: (key, value))
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=Client, entities=entities))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    result = small(mlflow=True, times=2).run()
    assert Client.uris[0] == f"sqlite:///{tmp_path / 'r' / 'mlflow.db'}"
    assert list(Client.experiments) == ["fedcpd"]
    assert Client.experiments["fedcpd"].artifact_location == (tmp_path / "r" / "mlartifacts").as_uri()
    for run, repeat in zip(Client.runs, result.repeats, strict=True):
        assert (run.name, run.status) == (f"Tiny_FedAvg_test_{repeat.repeat}", "FINISHED")
        assert ("local_learning_rate", "0.01") in run.params
        assert [(step, value) for key, value, step in run.metrics if key == "test_acc"] == expected(repeat)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://there")
    small(mlflow=True, results_dir=None).run()
    assert Client.uris[-1] == "http://there"

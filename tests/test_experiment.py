"""Runs from Python: what an experiment takes, what it gives, who may watch it, and that it leaves nothing behind."""

import gc
import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
import threading
import weakref
from dataclasses import FrozenInstanceError
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from flcore import registry
from flcore.experiment import Experiment
from flcore.observers import Observer, Terminal
from flcore.utils.errors import DivergedError, RunError, UsageError
from support import REPO


@pytest.fixture
def small(data_root, tmp_path):
    """``small(algorithm="FedCPD", ...)``: two rounds on the tiny data set, nothing written unless asked for."""

    def make(**settings):
        usual = {"dataset": "Tiny", "model": "DNN", "global_rounds": 2, "device": "cpu", "results_dir": None}
        return Experiment(data_dir=data_root, **(usual | settings))

    make.folder = tmp_path / "results"
    return make


class Watching(Observer):
    """Notes all that it hears."""

    def __init__(self, last=None):
        self.heard, self.records, self.last = [], [], last

    def on_start(self, context):
        self.heard.append(f"start {context.repeat}")

    def on_client(self, number, participants):
        self.heard.append(f"client {number}/{participants}")

    def on_round(self, record):
        self.heard.append(f"round {record['round']}")
        self.records.append(record)
        return record["round"] == self.last

    def on_end(self, repeat):
        self.heard.append(f"end {repeat.status}")
        self.ended = repeat

    def on_result(self, result):
        self.heard.append("result")


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_client": 20}, "num_client: no such setting. Did you mean num_clients?"),
        ({"algorithm": "FedCPDD"}, "no such algorithm. Did you mean FedCPD?"),
        ({"algorithm": "FedCPD", "cpd_alig": 1.0}, "Did you mean cpd_align?"),
        ({"model": "CNNN"}, "no such model"),
        ({"join_ratio": 5}, "join_ratio: must be above 0 and at most 1"),
        ({"global_rounds": 2.5}, "global_rounds: must be a whole number"),
        ({"global_rounds": "2"}, "global_rounds: must be a whole number"),
        ({"learning_rate_decay": 1}, "learning_rate_decay: must be True or False"),
        ({"times": 2, "prev": 2}, "must be below -t/--times"),
        ({"results_dir": None, "reuse": True}, "reuse: needs a folder of results"),
        ({"results_dir": None, "checkpoint_every": 1}, "checkpoint_every: needs a folder of results"),
        ({"verbose": True}, "verbose: is for the command line"),
    ],
)
def test_a_wrong_name_or_value_is_refused(settings, words):
    with pytest.raises(UsageError, match=words.replace(".", r"\.").replace("?", r"\?")):
        Experiment(**settings)


def test_a_wrong_value_is_refused_in_the_words_of_the_command_line():
    with pytest.raises(UsageError) as typed:
        Experiment.from_argv(["-jr", "5"])
    with pytest.raises(UsageError) as called:
        Experiment(join_ratio=5.0)
    rule = "must be above 0 and at most 1, not "
    assert str(typed.value) == f"-jr/--join_ratio: {rule}'5'" and str(called.value) == f"join_ratio: {rule}5.0"


def test_keywords_and_flags_mean_the_same(small, data_root):
    called = small(algorithm="FedCPD", cpd_align=5, local_learning_rate=0.05, learning_rate_decay=True)
    words = f"-algo fedcpd --cpd_align 5 -lr 0.05 -ld -data tiny -m dnn -gr 2 -dev cpu --data_dir {data_root}"
    typed = Experiment.from_argv(words.split())
    assert called.context().settings == typed.context().settings


def test_numbers_of_numpy_and_paths_are_taken(small):
    experiment = small(global_rounds=np.int64(1), local_learning_rate=np.float64(0.1), state_dir=small.folder)
    assert experiment.values["global_rounds"] == 1 and type(experiment.values["local_learning_rate"]) is float
    assert experiment.values["state_dir"] == small.folder


def test_a_file_of_settings_means_the_same_as_keywords(small, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('algorithm = "FedProx"\nmu = 0.5\nglobal_rounds = 9\nquiet = true\n')
    kept = dict(small().values)
    fixed = {name: kept[name] for name in ("dataset", "data_dir", "model", "device")} | {"global_rounds": 1}
    read = Experiment.from_config(path, results_dir=small.folder, **fixed)
    assert read.context().settings == small(algorithm="FedProx", mu=0.5, global_rounds=1).context().settings
    result = read.run()
    assert json.loads(result.paths[0]["run"].read_text())["settings"]["mu"] == 0.5


# ---- context ---------------------------------------------------------------------------------------------------------


def test_the_context_knows_the_run_and_cannot_be_changed(small):
    context = small(algorithm="FedProx", mu=0.5).context(repeat=1)
    assert (context.algorithm, context.dataset, context.num_clients, context.num_classes) == ("FedProx", "Tiny", 4, 4)
    assert context.shape == (1, 20, 20) and context.device == torch.device("cpu") and context.repeat == 1
    assert context.mu == 0.5 and context.join_ratio == 1.0 and not hasattr(context, "cpd_align")
    with pytest.raises(FrozenInstanceError):
        context.repeat = 2
    with pytest.raises(TypeError):
        context.values["mu"] = 1
    free = context.namespace()
    free.classifier, free.mu = "a pair's own", 1  # a PFLlib pair writes as it likes
    assert context.mu == 0.5 and not hasattr(context, "classifier")


def test_repeats_begin_with_other_weights_and_modules(small):
    first, second, again = (small(algorithm="FedCPD").context(repeat) for repeat in (0, 1, 0))
    weights = [next(context.model.parameters()) for context in (first, second, again)]
    assert torch.equal(weights[0], weights[2]) and not torch.equal(weights[0], weights[1])
    assert first.module_seed == again.module_seed != second.module_seed


def test_run_json_tells_the_settings_that_the_run_used(small):
    result = small(algorithm="FedProx", results_dir=small.folder, attack_rate=0.3, global_rounds=1).run()
    info = json.loads(result.paths[0]["run"].read_text())
    assert info["settings"] == result.settings == small(algorithm="FedProx", global_rounds=1).context().settings
    assert info["settings"]["mu"] == 0.1 and info["settings"]["model"] == "DNN" and info["settings"]["device"] == "cpu"
    assert {"cpd_align", "lamda", "vocab_size", "attack_rate", "executor", "goal"}.isdisjoint(info["settings"])
    assert info["arguments"]["executor"] == "threads" and info["arguments"]["num_threads"] == 1
    assert "attack_rate" in info["given"] and len(info["settings"]) + len(info["arguments"]) < 70


# ---- results ---------------------------------------------------------------------------------------------------------


def test_a_result_holds_what_the_files_hold(small):
    result = small(algorithm="FedCPD", results_dir=small.folder).run()
    paths = result.paths[0]
    assert {name: path.name for name, path in paths.items()} == {
        "results": "Tiny_FedCPD_test_0.h5",
        "run": "Tiny_FedCPD_test_0.run.json",
        "model": "Tiny_FedCPD_test_0.pt",
        "models": "Tiny_FedCPD_test_0.models",
    }
    with h5py.File(paths["results"]) as file:
        assert file["rs_test_acc"][:].tolist() == result.test_acc.tolist()
        assert file["rs_test_acc_after"][:].tolist() == result.test_acc_after.tolist()
        assert file["rs_train_loss"][:].tolist() == result.train_loss.tolist()
        assert file["rs_client_acc"][-1].tolist() == result.client_accuracies.tolist()
        assert file.keys() == result.repeats[0].arrays.keys()
    assert result.rounds.tolist() == [0, 1, 2] and len(result.test_acc_after) == len(result.train_loss) == 2
    assert result.accuracy == result.test_acc[-1] and result.status == "finished"
    # all test samples count alike: 9, 8, 6 and 5 of them
    assert result.accuracy == pytest.approx(np.average(result.client_accuracies, weights=(9, 8, 6, 5)))
    reused = small(algorithm="FedCPD", results_dir=small.folder, reuse=True).run()
    assert reused.test_acc.tolist() == result.test_acc.tolist() and reused.paths == result.paths
    assert json.loads(paths["run"].read_text())["status"] == "finished"


def test_without_a_folder_nothing_is_written_and_the_numbers_are_the_same(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = small(algorithm="FedRep").run()
    assert not list(tmp_path.iterdir()) and result.paths == [{}]
    assert result.test_acc.tolist() == small(algorithm="FedRep", results_dir="there").run().test_acc.tolist()


def test_several_repeats_give_their_mean(small):
    both = small(times=2).run()
    second = small(times=2, prev=1).run()
    curves = [repeat.test_acc for repeat in both.repeats]
    assert [repeat.repeat for repeat in both.repeats] == [0, 1] and len(both.repeats) == 2
    assert second.test_acc.tolist() == curves[1].tolist() != curves[0].tolist()
    np.testing.assert_allclose(both.test_acc, (curves[0] + curves[1]) / 2)
    assert both.accuracies.tolist() == [curves[0][-1], curves[1][-1]] and both.accuracy == both.accuracies.mean()
    assert both.frame.groupby("repeat").size().tolist() == [3, 3]


def test_nothing_is_printed_unless_asked_for(small, capfd):
    small(algorithm="FedCPD", num_new_clients=1, num_clients=3, train_slow_rate=0.5).run()
    assert capfd.readouterr() == ("", "")
    small().run([Terminal()])
    printed = capfd.readouterr().out
    assert printed.count("round ") >= 2 and "Best accuracy." in printed and "std for best accuracy: 0.0" in printed
    small().run([Terminal(quiet=True)])
    quiet = capfd.readouterr().out
    assert "| A " not in quiet and "Best accuracy." in quiet


def test_on_a_terminal_there_is_one_live_line_and_a_table_at_the_end(small, monkeypatch):
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        result = small(model="MLR").run([Terminal()])
        terminal.flush()
        printed = os.read(master, 65536).decode()
    os.close(master)
    live, _, table = printed.partition("A: after the download, round 2")
    assert "| train loss" not in printed and re.search(r"FedAvg: .*A 0\.\d{4}, B [01]\.\d{4}, client 4/4", live)
    assert "\n" not in live.strip() and f"{result.accuracy:.4f}" in table
    assert "Best accuracy." in table


def test_a_setting_without_effect_is_a_warning(caplog):
    Experiment(algorithm="FedAvg", cpd_align=2.0)
    assert caplog.record_tuples == [
        ("flcore.experiment", logging.WARNING, "note: --cpd_align has no effect on FedAvg"),
    ]


# ---- observers -------------------------------------------------------------------------------------------------------


def test_observers_hear_of_everything_in_order(small):
    first, second = Watching(), Watching()
    result = small(times=2, global_rounds=1, join_ratio=0.5).run([first, second])
    one = ["client 1/2", "client 2/2", "round 0", "end finished"]
    assert first.heard == second.heard == ["start 0", *one, "start 1", *one, "result"]
    record, repeat = first.records[0], result.repeats[0]
    assert record["test_acc"] == repeat.test_acc[0] and record["train_loss"] == repeat.train_loss[0]
    assert record["test_acc_after"] == repeat.test_acc_after[0] and record["left_out"] == 0
    assert record["bytes_up"] == 2 * 4 * sum(p.numel() for p in small().context().model.parameters())
    assert first.ended.test_acc.tolist() == result.repeats[1].test_acc.tolist()


def test_a_round_without_an_evaluation_has_no_accuracy(small):
    watching = Watching()
    small(global_rounds=3, eval_gap=2).run([watching])
    assert ["test_acc" in record for record in watching.records] == [True, False, True]
    assert all("seconds" in record for record in watching.records)


def test_an_observer_may_stop_the_run(small):
    watching = Watching(last=1)
    result = small(global_rounds=5, results_dir=small.folder).run([watching])
    whole = small(global_rounds=5).run()
    assert [record["round"] for record in watching.records] == [0, 1] and result.status == "stopped"
    assert result.rounds.tolist() == [0, 1, 2]  # what round 1 gave is sent out and scored
    assert result.test_acc.tolist() == whole.test_acc[:3].tolist()
    assert json.loads(result.paths[0]["run"].read_text())["status"] == "stopped"
    again = small(global_rounds=5, results_dir=small.folder, reuse=True).run()  # no finished run to be reused
    assert again.status == "finished" and len(again.rounds) == 6 and again.paths[0]["run"] == result.paths[0]["run"]


def test_observers_hear_of_a_run_that_fails(small):
    watching = Watching()
    with pytest.raises(DivergedError, match="diverged in round"):
        small(local_learning_rate=1e9, results_dir=small.folder, model="CNN").run([watching])
    assert watching.heard[-1] == "end failed" and watching.ended.test_acc[0] > 0
    assert json.loads(watching.ended.paths["run"].read_text())["status"] == "failed"


def test_a_run_that_is_interrupted_says_so(small, caplog):
    class Ctrl(Watching):
        def on_round(self, record):
            raise KeyboardInterrupt

    watching = Ctrl()
    with pytest.raises(KeyboardInterrupt):
        small(results_dir=small.folder).run([watching])
    assert watching.ended.status == "interrupted" and "the rounds so far are in" in caplog.text
    assert json.loads(watching.ended.paths["run"].read_text())["status"] == "interrupted"


# ---- leaving nothing behind ------------------------------------------------------------------------------------------


def surroundings():
    """What a run could leave changed: generators, threads, handles, signal handlers, the logger, modules' variables."""
    own = [module for name, module in sorted(sys.modules.items()) if name.split(".")[0] == "flcore"]
    plain = bool | int | float | str | list | dict | set | tuple | type(None)
    variables = {
        f"{module.__name__}.{name}": repr(value)
        for module in own
        for name, value in vars(module).items()
        if isinstance(value, plain) and not name.startswith("__")
    }
    logger = logging.getLogger("flcore")
    handles = Path("/proc/self/fd")
    return {
        "random": random.getstate(),
        "numpy": repr(np.random.get_state()),
        "torch": torch.get_rng_state().tolist(),
        "torch's threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "grad": torch.is_grad_enabled(),
        "threads": threading.active_count(),
        "handles": sorted(os.listdir(handles)) if handles.exists() else None,
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "logger": (logger.level, list(logger.handlers)),
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        **variables,
    }


def changes(before, after):
    return [name for name in before if before[name] != after.get(name)]


def test_a_run_leaves_everything_as_it_was(small):
    small().run()  # imports what it needs
    torch.set_num_threads(2)
    torch.manual_seed(5)
    before = surroundings()
    small(algorithm="FedCPD", executor="threads", num_threads=1, results_dir=small.folder).run()
    small(executor="stacked", checkpoint_every=1, results_dir=small.folder).run()
    with pytest.raises(RunError):
        small(local_learning_rate=1e9, on_nan="stop").run()
    with pytest.raises(UsageError):
        small(num_clients=9).run()
    small().server()
    after = surroundings()
    torch.set_num_threads(1)
    assert changes(before, after) == []


def test_the_command_leaves_everything_as_it_was(data_root, tmp_path, capsys):
    import main

    def run():
        words = f"-data Tiny -m DNN -gr 1 -dev cpu --checkpoint_every 1 --overwrite --data_dir {data_root}"
        assert main.main([*words.split(), "--results_dir", str(tmp_path)]) == 0

    run()
    before = surroundings()
    run()
    assert changes(before, surroundings()) == []


def test_no_server_outlives_its_run(small, monkeypatch):
    servers = []
    build = Experiment._server

    def noting(experiment, context):
        server = build(experiment, context)
        servers.append(weakref.ref(server))
        return server

    monkeypatch.setattr(Experiment, "_server", noting)
    for executor in ("loop", "threads", "stacked"):
        small(algorithm="FedCPD", executor=executor).run()
    gc.collect()
    assert len(servers) == 3 and [server() for server in servers] == [None] * 3


def test_experiments_give_the_same_numbers_alone_and_in_any_order(small):
    runs = {name: small(algorithm=name, seed=seed) for name, seed in (("FedCPD", 0), ("FedRep", 1), ("FedAvg", 0))}
    program = f"""
import sys
from flcore.experiment import Experiment
settings = dict(data_dir={str(runs["FedCPD"].values["data_dir"])!r}, dataset="Tiny", model="DNN", global_rounds=2)
result = Experiment(algorithm=sys.argv[1], seed=int(sys.argv[2]), device="cpu", results_dir=None, **settings).run()
print(*result.test_acc, *result.train_loss)
"""

    def numbers(name):
        result = runs[name].run()
        return [*result.test_acc, *result.train_loss]

    forth, back = {name: numbers(name) for name in runs}, {name: numbers(name) for name in reversed(runs)}
    assert forth == back
    command = [sys.executable, "-c", program, "FedRep", "1"]
    environment = os.environ | {"PYTHONPATH": str(REPO / "system")}
    alone = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=120)
    assert alone.returncode == 0, alone.stderr
    assert list(map(float, alone.stdout.split())) == forth["FedRep"]


@pytest.mark.long
def test_memory_stays_level_over_many_runs(small):
    def resident():
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    seen = []
    for _ in range(30):
        for method in ("FedCPD", "FedAvg"):
            small(algorithm=method, model="CNN", global_rounds=1).run()
        seen.append(resident())
    assert seen[-1] - seen[9] < 16e6  # a model is more than 1 MB, a run has ten and more


def test_every_method_runs_from_python(small, generator_file):
    """One round of each in one process."""
    for method in registry.METHODS:
        needs = {"generator": generator_file, "noise_dim": 6} if method.name == "FedKTL" else {}
        result = small(algorithm=method.name, global_rounds=0, **needs).run()
        assert result.rounds.tolist() == [0] and 0 <= result.accuracy <= 1


def test_the_documented_attributes_of_a_result_exist(small):
    result = small().run()
    named = set(re.findall(r"`result\.(\w+)`", (REPO / "docs" / "python.md").read_text()))
    assert len(named) > 9 and all(hasattr(result, name) for name in named)

"""A run that is stopped anywhere goes on and ends like one that was not; what cannot be used is refused in words."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys

import h5py
import pytest
import torch

from flcore.executors.loop import LoopExecutor
from flcore.executors.threads import ThreadsExecutor
from flcore.registry import METHODS
from flcore.utils import interrupt
from flcore.utils.errors import RunError, UsageError
from flcore.utils.runs import checkpoint, claim, run_state
from flcore.utils.runs.checkpoint import Checkpoints
from flcore.utils.runs.files import write_json
from flcore.utils.runs.read import read_run
from flcore.utils.runs.run_state import remembered
from flcore.utils.runs.tensor_files import pack, read_tensors, unpack, write_tensors
from support import REPO
from support.checkpoints import INFO, StoppedError, attributes, everything, plain, stop_in_round


@pytest.fixture
def start(make_server, tmp_path):
    """``start("FedAvg", "-gr", "3", resume=True)`` -> a server that writes a checkpoint after every round."""
    said = []

    def make(algorithm, *flags, resume=False, every=1, model="MLR", **options):
        server = make_server(algorithm, *flags, model=model, **options)
        server.checkpoints = Checkpoints(tmp_path / "run.h5", INFO, every, resume, said.append)
        return server

    make.said, make.folder = said, tmp_path / "run.ckpt"
    return make


def whole(make_server, algorithm, *flags, model="MLR", **options):
    server = make_server(algorithm, *flags, model=model, **options)
    server.train()
    return everything(server)


@pytest.mark.parametrize("algorithm", [line.name for line in METHODS])
def test_a_stopped_run_ends_like_one_that_was_not_and_with_other_means(make_server, start, tmp_path, algorithm):
    """It goes on with threads and with the clients' state on disk, which compute the same."""
    flags = ("-jr", "0.75", "-cdr", "0.4", "-eg", "2", "-se", "3", "--pa_gen_steps", "3", "--pa_steps", "3")
    model = "CNN" if algorithm == "FedCPD" else "DNN"  # the quicker one has no feature maps
    uninterrupted = make_server(algorithm, *flags, executor=LoopExecutor(), model=model)
    owners = [uninterrupted, *uninterrupted.clients]
    before = [attributes(owner) for owner in owners]
    uninterrupted.train()
    for owner, was in zip(owners, before, strict=True):
        changed = {name for name, value in attributes(owner).items() if was.get(name) != value}
        assert changed <= {*remembered(owner), "clients"}, f"{type(owner).__name__}.remembers lacks some"

    stopped = start(algorithm, *flags, executor=LoopExecutor(), model=model)
    stop_in_round(stopped, 2)
    with pytest.raises(StoppedError):
        stopped.train()
    disk = ("--state_dir", str(tmp_path / "state"), "--state_cache", "2")
    resumed = start(algorithm, *flags, *disk, executor=ThreadsExecutor(2), resume=True, model=model)
    resumed.train()
    assert start.said == [f"resumed after 2 rounds from {start.folder / 'round-000002'}"]
    assert everything(resumed) == everything(uninterrupted)


@pytest.mark.long
@pytest.mark.parametrize("algorithm", [line.name for line in METHODS])
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_a_run_stopped_in_any_round(make_server, start, algorithm, stop):
    flags = ("-gr", "4", "-nnc", "1", "-ften", "1", "-ab", "-tc", "5", "-ld", "-nc", "3")
    stopped = start(algorithm, *flags, executor=ThreadsExecutor(2), model="CNN")
    stop_in_round(stopped, stop)
    with pytest.raises(StoppedError):
        stopped.train()
    resumed = start(algorithm, *flags, resume=True, model="CNN")
    resumed.train()
    assert everything(resumed) == whole(make_server, algorithm, *flags, model="CNN")


def test_a_run_that_breaks_by_itself_breaks_at_the_same_round(make_server, start):
    flags = ("-gr", "20", "-ab", "-tc", "2", "-lr", "0.0001")
    expected = whole(make_server, "FedAvg", *flags)
    rounds = len(expected[0]["rs_test_acc"]) - 1
    assert 1 < rounds < 19
    stopped = start("FedAvg", *flags)
    stop_in_round(stopped, rounds - 1)
    with pytest.raises(StoppedError):
        stopped.train()
    resumed = start("FedAvg", *flags, resume=True)
    resumed.train()
    assert everything(resumed) == expected


@pytest.mark.slow
def test_batchnorm_and_a_checkpoint_that_is_not_written_every_round(make_server, start):
    flags, options = ("-lbs", "4"), {"dataset": "Colour", "model": "ResNet18"}
    stopped = start("FedRep", *flags, every=2, **options)
    stop_in_round(stopped, 2)
    with pytest.raises(StoppedError):
        stopped.train()
    assert stopped.checkpoints.rounds() == [2]
    resumed = start("FedRep", *flags, every=2, resume=True, **options)
    resumed.train()
    assert everything(resumed) == whole(make_server, "FedRep", *flags, **options)


def test_pieces_of_a_large_state_are_put_together_again(make_server, start, monkeypatch):
    monkeypatch.setattr(run_state, "PIECE", 6_000)  # less than one client's
    stopped = start("FedALA")
    stop_in_round(stopped, 2)
    with pytest.raises(StoppedError):
        stopped.train()
    assert len(list((start.folder / "round-000002").glob("*.safetensors"))) > 4
    resumed = start("FedALA", resume=True)
    resumed.train()
    assert everything(resumed) == whole(make_server, "FedALA")


def test_shared_weights_are_written_once_and_the_last_two_are_kept(start):
    server = start("FedAvg")
    server.train()
    assert sorted(path.name for path in start.folder.iterdir()) == ["round-000002", "round-000003"]
    model = sum(value.nbytes for value in server.global_params.values())
    for folder in start.folder.iterdir():
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        assert 2 * model < size < 2 * model + 10_000  # the download of the last round and the average after it


# ---- what is refused


@pytest.fixture
def two(start, make_server):
    """A run with checkpoints after rounds 2 and 3; gives the newer one's folder, and resumes."""
    start("FedProto").train()
    expected = whole(make_server, "FedProto")

    def resume(**identity):
        server = start("FedProto", resume=True)
        server.checkpoints.identity.update(identity)
        server.train()
        assert everything(server) == expected
        return start.said

    return start.folder / "round-000003", resume


def change_state(folder, change):
    """Rewrites state.json with a right digest."""
    content = json.loads((folder / "state.json").read_text())
    change(content["state"])
    digest = hashlib.sha256(json.dumps(content["state"], sort_keys=True).encode()).hexdigest()
    (folder / "state.json").write_text(json.dumps({"digest": digest, "state": content["state"]}))


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[int(position * len(content))] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "a bit of a tensor": (
        lambda folder: flip(folder / "tensors-0.safetensors", 0.9),
        "tensors-0.safetensors is damaged",
    ),
    "a bit of the header": (
        lambda folder: flip(folder / "tensors-0.safetensors", 0),
        "tensors-0.safetensors is damaged",
    ),
    "a cut file": (lambda folder: cut(folder / "tensors-0.safetensors"), "tensors-0.safetensors is damaged"),
    "no tensors": (lambda folder: (folder / "tensors-0.safetensors").unlink(), "No such file"),
    "no state": (lambda folder: (folder / "state.json").unlink(), "No such file or directory (state.json)"),
    "an empty state": (lambda folder: (folder / "state.json").write_text(""), "not a run's state"),
    "a cut state": (lambda folder: cut(folder / "state.json"), "not a run's state"),
    "text": (lambda folder: (folder / "state.json").write_bytes(b"\xff\xfe"), "not a run's state"),
    "a list": (lambda folder: (folder / "state.json").write_text("[1]"), "not a run's state"),
    "deep nesting": (lambda folder: (folder / "state.json").write_text("[" * 100_000), "not a run's state"),
    "a number": (lambda folder: number_in_state(folder), "state.json is damaged"),
    "a newer format": (lambda folder: change_state(folder, lambda state: state.update(format=2)), "its format is 2"),
    "another algorithm": (lambda folder: foreign(folder, algorithm="FedX"), "another run (algorithm FedX)"),
    "another data set": (lambda folder: foreign(folder, dataset="Large"), "another run (dataset Large)"),
    "more clients": (lambda folder: foreign(folder, num_clients=5), "another run (5 clients)"),
    "another repeat": (lambda folder: foreign(folder, repeat=1), "another run (repeat 1)"),
    "other settings": (lambda folder: foreign(folder, settings_digest="x"), "another run (other settings)"),
    "other code": (lambda folder: foreign(folder, code_digest="x"), "another run (other code)"),
    "another torch": (lambda folder: foreign(folder, torch="1.0"), "another run (torch 1.0)"),
    "another round": (
        lambda folder: change_state(folder, lambda state: state.update(round=7)),
        "written after round 7",
    ),
    "fewer clients": (lambda folder: change_state(folder, lambda state: state["clients"].pop()), "not a run's state"),
    "a shape": (lambda folder: change_state(folder, swap), "its global_params have other names or shapes"),
    "no such tensor": (
        lambda folder: change_state(folder, lambda state: state["clients"][0].update(params={"cpu": 10**6})),
        "not a run's state",
    ),
    "a file elsewhere": (
        lambda folder: change_state(folder, lambda state: state.update(files=[{"sha256": "../x", "first": 0}] * 10**4)),
        "tensors-0.safetensors is damaged",
    ),
}


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def number_in_state(folder):
    text = (folder / "state.json").read_text()
    assert '"round": 3' in text
    (folder / "state.json").write_text(text.replace('"round": 3', '"round": 2'))


def foreign(folder, **identity):
    change_state(folder, lambda state: state["identity"].update(identity))


def swap(state):
    pairs = state["server"]["global_params"]["dict"]
    pairs[0][1], pairs[1][1] = pairs[1][1], pairs[0][1]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_foreign_one_is_refused_and_the_one_before_used(two, damage):
    folder, resume = two
    harm, words = DAMAGES[damage]
    harm(folder)
    refused, resumed = resume()
    assert refused.startswith(f"checkpoint {folder} is not used: ") and words in refused and "\n" not in refused
    assert resumed == f"resumed after 2 rounds from {folder.with_name('round-000002')}"
    assert sorted(path.name for path in folder.parent.iterdir()) == ["round-000002", "round-000003"]


def test_a_checkpoint_that_others_sent_sets_nothing_but_what_is_remembered(two):
    folder, resume = two
    change_state(folder, lambda state: state["server"].update(train=1, executor={"list": []}))
    [resumed] = resume()
    assert "after 3 rounds" in resumed


def test_if_none_can_be_used_the_run_ends(two):
    folder, resume = two
    for path in folder.parent.iterdir():
        cut(path / "state.json")
    with pytest.raises(RunError, match=r"no checkpoint in .*run.ckpt can be used; without --resume"):
        resume()


def test_without_any_it_starts_from_the_beginning_and_says_so(make_server, start):
    server = start("FedAvg", resume=True)
    server.train()
    assert start.said == ["--resume: there is no checkpoint of this run, so it starts from the beginning"]
    assert everything(server) == whole(make_server, "FedAvg")


def test_a_new_start_forgets_the_old_checkpoints(start):
    start("FedAvg").train()
    server = start("FedAvg", every=0)
    server.train()
    assert not start.folder.exists() and start.said == []


@pytest.mark.parametrize(("module", "call"), [(checkpoint, "write_bytes"), (run_state, "write_tensors")])
def test_a_full_disk_ends_the_run_and_leaves_the_one_before(make_server, start, monkeypatch, module, call):
    server = start("FedRep")
    train_clients = server.train_clients

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    def train():
        train_clients()
        if server.current_round == 1:
            monkeypatch.setattr(module, call, full)

    server.train_clients = train
    with pytest.raises(
        RunError, match=r"round-000002 cannot be written: No space left on device; the one of round 1 is"
    ):
        server.train()
    assert [path.name for path in start.folder.iterdir()] == ["round-000001"]
    monkeypatch.undo()


def test_pfllibs_own_loops_are_refused(start):
    server = start("FedAvg")
    server.own_loop = True
    with pytest.raises(UsageError, match="FedAvg: it brings its own loop"):
        server.checkpoints.check(server)
    server.checkpoints.every = 0
    server.checkpoints.check(server)


def test_tensors_keep_type_shape_order_in_memory_and_value(tmp_path):
    wide = torch.arange(24.0).reshape(2, 3, 4)
    tensors = {
        "turned": wide.permute(2, 0, 1),
        "last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "part": wide[:, 1],
        "repeated": torch.ones(1).expand(3),
        "scalar": torch.tensor(True),
        "none": torch.zeros(0, 3, dtype=torch.int64),
        "half": torch.rand(3).bfloat16(),
        "nan": torch.tensor([float("nan"), float("-inf"), -0.0]),
    }
    packed = {name: pack(tensor) for name, tensor in tensors.items()}
    write_tensors(tmp_path / "file", {name: stored for name, (stored, _) in packed.items()})
    found = read_tensors((tmp_path / "file").read_bytes())
    for name, tensor in tensors.items():
        again = unpack(found[name], packed[name][1])
        assert again.dtype == tensor.dtype and again.shape == tensor.shape
        assert (
            again.contiguous().view(-1).view(torch.uint8).tolist()
            == tensor.contiguous().view(-1).view(torch.uint8).tolist()
            or name == "scalar"
        )
        assert again.untyped_storage().nbytes() == again.nbytes
        if name in ("turned", "last"):
            assert again.stride() == tensor.stride()
    assert bool(found["scalar"])


# ---- the command line


@pytest.fixture
def command(data_root, tmp_path, monkeypatch):
    """``command("-algo", "FedRep", folder="a")`` runs main in this process -> its exit code."""
    import main

    monkeypatch.setattr(interrupt, "_requested", False)
    monkeypatch.setattr(interrupt, "_moment", "")

    def call(*flags, folder="results"):
        words = ["-data", "Tiny", "--data_dir", str(data_root), "--results_dir", str(tmp_path / folder)]
        return main.main([*words, "-gr", "3", "-dev", "cpu", "-m", "MLR", "--checkpoint_every", "1", *flags])

    return call


def arrays(folder):
    """All arrays but times, by file."""
    found = {}
    for path in sorted(folder.glob("*.h5")):
        with h5py.File(path) as file:
            found[path.name] = {name: file[name][()].tobytes() for name in file if name != "rs_seconds"}
    return found


def interrupt_at(monkeypatch, repeat, number):
    """As Ctrl-C would, while the clients train in this round of this repeat."""
    from flcore.servers.serverbase import Server

    train_clients = Server.train_clients

    def train(server):
        if (server.times, server.current_round) == (repeat, number):
            interrupt._ask(signal.SIGINT, None)
        train_clients(server)

    monkeypatch.setattr(Server, "train_clients", train)


def test_ctrl_c_saves_first_and_resume_goes_on_with_the_repeat(command, tmp_path, monkeypatch, capfd):
    assert command("-t", "3", folder="whole") == 0
    with monkeypatch.context() as patch:
        interrupt_at(patch, 1, 1)
        assert command("-t", "3") == 130
    printed = capfd.readouterr().err
    assert "stopping when this round is done and a checkpoint written" in printed
    assert "the same command with --resume goes on" in printed
    results = tmp_path / "results"
    assert [path.name for path in results.glob("*.ckpt")] == ["Tiny_FedAvg_test_1.ckpt"]
    assert json.loads((results / "Tiny_FedAvg_test_1.run.json").read_text())["status"] == "interrupted"
    monkeypatch.setattr(interrupt, "_requested", False)
    assert command("-t", "3", "--resume", "-ex", "loop") == 0
    printed = capfd.readouterr().out
    assert "Tiny_FedAvg_test_0.h5 is finished with the same settings and is reused" in printed
    assert "resumed after 2 rounds" in printed and "is replaced" not in printed
    assert arrays(results) == arrays(tmp_path / "whole") and len(arrays(results)) == 3
    assert not list(results.glob("*.ckpt"))
    info = json.loads((results / "Tiny_FedAvg_test_1.run.json").read_text())
    assert info["status"] == "finished" and len(info["resumed"]) == 1 and "replaces" not in info
    stamps = [path.stat().st_mtime_ns for path in sorted(results.iterdir()) if path.suffix == ".h5"]
    assert command("-t", "3", "--resume") == 0
    assert stamps == [path.stat().st_mtime_ns for path in sorted(results.iterdir()) if path.suffix == ".h5"]


def test_the_interrupted_run_is_found_under_the_name_it_was_given(command, tmp_path, monkeypatch, capfd):
    assert command("-lr", "0.1", "--checkpoint_every", "0") == 0  # has the name "test"
    with monkeypatch.context() as patch:
        interrupt_at(patch, 0, 1)
        assert command() == 130
    monkeypatch.setattr(interrupt, "_requested", False)
    assert command("-lr", "0.2", "--resume") == 0  # another run, which does not take it
    assert "no checkpoint of this run" in capfd.readouterr().out
    assert command("--resume") == 0
    assert "resumed after 2 rounds" in capfd.readouterr().out
    assert len(list((tmp_path / "results").glob("*.h5"))) == 3


def test_other_code_is_not_resumed(command, monkeypatch, capfd):
    with monkeypatch.context() as patch:
        interrupt_at(patch, 0, 1)
        assert command() == 130
    monkeypatch.setattr(interrupt, "_requested", False)
    monkeypatch.setattr(claim, "code_digest", lambda: "other")
    assert command("--resume") == 1
    captured = capfd.readouterr()
    assert captured.out.count("it belongs to another run (other code)") == 2 and "Traceback" not in captured.err
    assert "can be used; without --resume the run starts anew" in captured.err
    assert command() == 0  # and so it does


def test_a_run_that_is_still_going_is_not_resumed_twice(command, tmp_path, monkeypatch, capfd):
    with monkeypatch.context() as patch:
        interrupt_at(patch, 0, 1)
        assert command() == 130
    monkeypatch.setattr(interrupt, "_requested", False)
    path = tmp_path / "results" / "Tiny_FedAvg_test_0.run.json"
    info = json.loads(path.read_text())
    write_json(path, info | {"status": "running"})
    assert command("--resume") == 2 and "is still being written by process" in capfd.readouterr().err
    write_json(path, info | {"status": "running", "process": "an earlier one of the same number"})
    assert command("--resume") == 0


# ---- more rounds


def all_but_times(path):
    return {name: array.tobytes() for name, array in read_run(path).arrays.items() if name != "rs_seconds"}


@pytest.mark.parametrize("algorithm", ["FedAvg", "FedCPD"])
def test_a_finished_run_goes_on_with_more_rounds_as_if_it_had_been_one(command, tmp_path, algorithm, capfd):
    flags = ("-algo", algorithm, "-m", "DNN", "-ld", "-eg", "2", "--checkpoint_every", "0", "-t", "2")
    assert command(*flags, "-gr", "5", folder="whole") == 0
    assert command(*flags, "--keep_checkpoint") == 0
    results, stem = tmp_path / "results", f"Tiny_{algorithm}_test"
    before = all_but_times(results / f"{stem}_0.h5")
    assert command(*flags, "-gr", "5", "--resume") == 0
    assert capfd.readouterr().out.count("resumed after 3 rounds from") == 2
    for repeat in range(2):
        [longer] = results.glob(f"{stem}-??????_{repeat}.h5")
        assert all_but_times(longer) == all_but_times(tmp_path / "whole" / f"{stem}_{repeat}.h5")
        info = json.loads(longer.with_suffix(".run.json").read_text())
        assert info["settings"]["global_rounds"] == 5 and info["continued"] == str(results / f"{stem}_{repeat}.h5")
    assert all_but_times(results / f"{stem}_0.h5") == before and (results / f"{stem}_0.ckpt").exists()
    assert command(*flags, "-gr", "5", "--resume") == 0 and "is reused" in capfd.readouterr().out


def test_an_interrupted_run_goes_on_with_more_rounds_in_its_place(command, tmp_path, monkeypatch, capfd):
    assert command("-gr", "4", folder="whole") == 0
    with monkeypatch.context() as patch:
        interrupt_at(patch, 0, 1)
        assert command() == 130
    monkeypatch.setattr(interrupt, "_requested", False)
    assert command("-gr", "1", "--resume", "-lr", "0.02", folder="results") == 0
    line = "test_0.h5 has checkpoints, but it is another run: global_rounds 3 there and 1 here, local_learning_rate"
    assert f"{line} 0.01 there and 0.02 here" in capfd.readouterr().out
    assert command("-gr", "4", "--resume") == 0 and "resumed after 2 rounds" in capfd.readouterr().out
    path = tmp_path / "results" / "Tiny_FedAvg_test_0.h5"
    assert all_but_times(path) == all_but_times(tmp_path / "whole" / path.name)
    assert not path.with_suffix(".ckpt").exists()


def test_a_method_that_depends_on_the_number_of_rounds_does_not_go_on(command, tmp_path, capfd):
    flags = ("-algo", "FedProc", "-m", "DNN", "--keep_checkpoint", "--checkpoint_every", "0")
    assert command(*flags, "-gr", "2") == 0
    assert command(*flags, "--resume") == 2
    error = capfd.readouterr().err
    assert "was planned for 2 rounds and cannot go on to 3, since its loss goes from contrast to cross-entropy" in error
    assert len(list((tmp_path / "results").glob("*.h5"))) == 1


def test_methods_say_whether_they_depend_on_the_number_of_rounds():
    """Whoever reads it in a rule or a server of its own has to."""
    own = [path for part in ("clients", "servers") for path in (REPO / "system" / "flcore" / part).glob("*.py")]
    reads = {path.stem for path in own if "global_rounds" in path.read_text(encoding="utf-8")}
    files = {
        line.name: {base.__module__.split(".")[-1] for base in (*line.server_class().__mro__, *rule(line).__mro__)}
        for line in METHODS
    }
    shared = {"roundloop", "serverbase"}  # the loop itself ends by it
    assert {name for name, modules in files.items() if (reads - shared) & modules} == {"FedProc"}
    assert {line.name for line in METHODS if line.by_rounds} == {"FedProc"}


def rule(line):
    return line.server_class().rule


# ---- killed

# Forks a process for each run, so that torch is imported once, and kills it after a random time until one is through.
# One time in four that is while the run is being set up.
KILLER = """
import os, random, signal, sys, time
import main

def begin(folder):
    child = os.fork()
    if child == 0:
        log = os.open(f"{folder}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout.reconfigure(line_buffering=True)
        os._exit(main.main([*sys.argv[3:], "--results_dir", folder]))
    return child

def wait_until_set_up(folder):
    for _ in range(30000):
        time.sleep(0.01)
        if os.path.exists(f"{folder}.log") and " executor " in open(f"{folder}.log").read():
            return
    sys.exit("the run did not begin")

def end(child):
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, -signal.SIGKILL):
        sys.exit(f"exit code {code}")
    return code == 0

begun, whole = time.time(), begin("whole")
wait_until_set_up("whole")
set_up = time.time()
assert end(whole)
preparing, running, draw = set_up - begun, time.time() - set_up, random.Random(sys.argv[1])
kills, number = 0, 0
while kills < int(sys.argv[2]):
    number += 1
    through = False
    while not through:
        if os.path.exists(f"killed-{number}.log"):
            os.remove(f"killed-{number}.log")
        child = begin(f"killed-{number}")
        if kills < int(sys.argv[2]):
            if draw.random() < 0.25:
                time.sleep(draw.uniform(0, preparing))
            else:
                wait_until_set_up(f"killed-{number}")
                time.sleep(draw.uniform(0, running / 2))
            os.kill(child, signal.SIGKILL)
        through = end(child)
        kills += not through
print(kills, number)
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("algorithm", ["FedCPD", "FedPA"])
def test_runs_killed_at_random_moments_end_like_one_that_was_not(data_root, tmp_path, algorithm):
    (tmp_path / "killer.py").write_text(KILLER)
    words = [sys.executable, "killer.py", algorithm, "16", "-algo", algorithm, "-data", "Tiny", "--data_dir", data_root]
    words += ["-dev", "cpu", "-gr", "12", "-jr", "0.75", "--checkpoint_every", "1", "--resume"]
    path = os.pathsep.join([str(REPO / "system"), str(REPO / "dataset")])
    done = subprocess.run(
        list(map(str, words)),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=3000,
    )
    logs = {log.name: log.read_text() for log in tmp_path.glob("*.log")}
    assert done.returncode == 0, (done.stderr, logs)
    kills, runs = map(int, done.stdout.split())
    resumed = [json.loads(path.read_text()).get("resumed", []) for path in tmp_path.glob("killed-*/*.run.json")]
    assert kills == 16 and sum(map(len, resumed)) >= 6
    assert not any("is not used" in log for log in logs.values())
    expected = arrays(tmp_path / "whole")
    model = torch.load(tmp_path / "whole" / f"Tiny_{algorithm}_test_0.pt", weights_only=True)
    for number in range(1, runs + 1):
        folder = tmp_path / f"killed-{number}"
        assert arrays(folder) == expected
        again = torch.load(folder / f"Tiny_{algorithm}_test_0.pt", weights_only=True)
        assert plain(again) == plain(model)
        assert not list(folder.glob("*.ckpt")) and not list(folder.glob(".Tiny*.ckpt*"))

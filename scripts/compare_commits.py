"""Whether two commits compute the same, bit for bit: every method under every executor, on this machine.

python scripts/compare_commits.py main HEAD
python scripts/compare_commits.py v0.1 HEAD --algorithms FedCPD FedRep --executors loop
python scripts/compare_commits.py main HEAD --time 5                                   and how long a round takes
python scripts/compare_commits.py main HEAD -- --attack signflip --attack_rate 0.3     flags after -- go to every run

Each commit is checked out into a temporary folder and runs there by its own command line on the same tiny data set:
clients of ragged sizes, one of them with less than a batch, three of four in a round. All arrays in the result files
must be equal but for the times. The golden curves hold between machines, with a tolerance; this holds between commits.

With --time, FedAvg, FedRep and FedCPD also run on larger clients, one after another on one thread, in turns OLD NEW,
NEW OLD, ...; a round's time is that of the processor for this process, so that a busy machine does not count. The ratio
of the median rounds is taken turn by turn.

Exit status: 0 all equal, 1 a difference or a failed run, 2 a commit or a name that does not exist.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import nn

from flcore.data.partition import gather
from flcore.data.writing import pfllib_settings, write_dataset
from flcore.experiment import EXECUTORS
from flcore.utils import console
from flcore.utils.errors import RunError, UsageError, report
from flcore.utils.paths import REPO
from train_generator import save

Shape = tuple[int, ...]
Arrays = dict[str, np.ndarray]

GENERATOR = "generator.pt"
RUN = "-data Tiny -go compare -gr 4 -jr 0.75 -eg 1 -m CNN -dev cpu --num_threads 1 -sd 1"
TIMED = "-data Large -gr 6 -jr 1"  # instead, for the time of a round
TIMED_ALGORITHMS = ("FedAvg", "FedRep", "FedCPD")
FLAGS = {  # methods that need a flag, or whose servers and clients take many steps
    "FedPA": "--pa_steps 5 --pa_gen_steps 4",
    "FedGH": "--server_epochs 4",
    "FedTGP": "--server_epochs 4",
    "FedKTL": "--server_epochs 4 --generator generator.pt -nd 6",
}
TIMES = ("seconds", "time")  # words in the names of arrays that differ from run to run
DATA = {  # training samples and test samples of the clients, classes, shape of a sample
    "Tiny": ((23, 12, 7, 31), (9, 8, 6, 5), 4, (1, 20, 20)),
    "Large": ((120, 80), (40, 30), 10, (3, 32, 32)),
}

# Runs several command lines one after another in one process: importing torch takes longer than a run.
DRIVER = """
import json, runpy, sys, time
if sys.argv[3] == "cpu":
    began, used = time.time(), time.process_time
    time.time = lambda: began + used()
import flcore
assert flcore.__path__[0].startswith(sys.argv[1]), f"flcore comes from {flcore.__path__[0]}"
for words in json.loads(sys.argv[2]):
    print(*words, flush=True)
    sys.argv = ["main.py", *words]
    try:
        runpy.run_path("main.py", run_name="__main__")
    except SystemExit as end:
        if end.code:
            print("exit status", end.code, flush=True)
"""


def make_dataset(folder: Path, train: Shape, test: Shape, classes: int, shape: Shape) -> None:
    """A data set in PFLlib's files; every class has a mean image."""
    rng, sizes, clients = np.random.default_rng(0), (*train, *test), len(train)
    centres = rng.normal(size=(classes, *shape))
    y = rng.choice(classes, sum(sizes))
    x = (centres[y] + 0.5 * rng.normal(size=(len(y), *shape))).astype(np.float32)
    images, labels, statistic = gather(x, y, np.split(np.arange(len(y)), np.cumsum(sizes)[:-1]))
    parts = [{"x": own, "y": its} for own, its in zip(images, labels, strict=True)]
    settings = pfllib_settings(clients, niid=False, balance=False, partition="-")
    write_dataset(folder, parts[:clients], parts[clients:], classes, statistic[:clients], settings)


def make_generator(path: Path) -> None:
    """For FedKTL: latent vectors of 6 numbers -> 8 x 8 images."""
    torch.manual_seed(0)
    save(nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Unflatten(1, (1, 8, 8))), 6, path)


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=REPO, capture_output=True, text=True)
    if done.returncode:
        raise UsageError(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextmanager
def checkout(commit: str, folder: Path) -> Iterator[Path]:
    """The files of ``commit`` in ``folder``, as a git worktree for as long as the body runs."""
    git("worktree", "add", "--detach", str(folder), commit)
    try:
        yield folder
    finally:
        git("worktree", "remove", "--force", str(folder))


def run(
    tree: Path, algorithms: Sequence[str], executor: str, extra: Sequence[str], clock: str = "wall"
) -> dict[str, Arrays]:
    """Runs the methods with the code of ``tree``; the arrays of each result, without those that left none.

    clock: what `time.time` tells there, wall or cpu (seconds of the processor for the process).
    """
    results = Path(tempfile.mkdtemp(dir=tree.parent, prefix="results-"))
    shared = [*RUN.split(), "-ex", executor, "--data_dir", str(tree.parent), "--results_dir", str(results), *extra]
    lines = [["-algo", name, *shared, *FLAGS.get(name, "").split()] for name in algorithms]
    lines = [[str(tree.parent / word) if word == GENERATOR else word for word in words] for words in lines]
    # The variable comes before an editable install, so the commit's own packages are used.
    environment = os.environ | {"PYTHONPATH": str(tree / "system"), "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tree), json.dumps(lines), clock],
        cwd=tree / "system",
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    found = {}
    for name in algorithms:
        for path in results.glob(f"*_{name}_compare_0.h5"):
            with h5py.File(path) as file:
                found[name] = {key: file[key][()] for key in file}
    if done.returncode or len(found) < len(algorithms):
        print(f"---- {tree.name}, {executor}:\n{done.stdout[-2000:]}", file=sys.stderr)
    if done.returncode:
        raise RunError(f"the runs of {tree.name} with the executor {executor} broke off")
    return found


def differences(old: Arrays | None, new: Arrays | None) -> list[str]:
    """What differs, in words: runs that failed, arrays that are in one alone, and arrays with another bit."""
    if old is None or new is None:
        return [f"no result in {which}" for which, arrays in (("OLD", old), ("NEW", new)) if arrays is None]
    names = {name for name in (*old, *new) if not any(word in name for word in TIMES)}
    found = []
    for name in sorted(names):
        if name not in old or name not in new:
            found.append(f"{name} in {'NEW' if name in new else 'OLD'} alone")
            continue
        one, other = np.asarray(old[name]), np.asarray(new[name])
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            found.append(f"{name} {one.dtype}{one.shape} -> {other.dtype}{other.shape}")
        elif one.tobytes() != other.tobytes():
            found.append(f"{name} by up to {np.nanmax(np.abs(one - other)):.1e}")
    return found


def methods(old: Path, new: Path, asked: Sequence[str]) -> list[str]:
    """The methods to compare: every one has a golden curve, in every commit."""
    first, second = ({path.stem for path in (tree / "tests" / "golden").glob("*.txt")} for tree in (old, new))
    if unknown := set(asked) - (first & second):
        raise UsageError(f"not a method of both commits: {', '.join(sorted(unknown))}")
    if not first & second:
        raise UsageError("the two commits have no method in common (tests/golden names them)")
    if alone := sorted(first ^ second):
        print(f"in one commit alone, not compared: {', '.join(alone)}")
    return list(asked) or sorted(first & second, key=str.lower)


def compare(old: Path, new: Path, names: Sequence[str], executors: Sequence[str], extra: Sequence[str]) -> bool:
    """Prints a table of what differs; whether all is equal."""
    found: dict[tuple[str, str], list[str]] = {}
    for executor in executors:
        first, second = (run(tree, names, executor, extra) for tree in (old, new))
        found |= {(name, executor): differences(first.get(name), second.get(name)) for name in names}
    print(f"| method | {' | '.join(executors)} |\n|---{'|---' * len(executors)}|")
    for name in names:
        print(f"| {name} | {' | '.join('; '.join(found[name, executor]) or 'equal' for executor in executors)} |")
    different = sum(map(bool, found.values()))
    print(f"{len(found)} runs a commit, {different} different")
    return not different


def compare_times(old: Path, new: Path, extra: Sequence[str], turns: int) -> None:
    """Prints the time of a round in NEW over that in OLD, for a few methods on larger clients."""
    ratios: dict[str, list[float]] = {name: [] for name in TIMED_ALGORITHMS}
    for turn in range(turns):
        median = {}
        for tree in (old, new)[:: -1 if turn % 2 else 1]:
            found = run(tree, TIMED_ALGORITHMS, "loop", [*TIMED.split(), *extra], clock="cpu")
            median[tree] = {name: statistics.median(arrays["rs_seconds"][1:]) for name, arrays in found.items()}
        for name, known in ratios.items():
            known.append(median[new][name] / median[old][name])
    print("| time of a round | NEW / OLD | lowest - highest turn |\n|---|---|---|")
    for name, known in ratios.items():
        print(f"| {name} | {statistics.median(known):.3f} | {min(known):.3f} - {max(known):.3f} |")


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    extra = words[words.index("--") + 1 :] if "--" in words else []
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD", help="a commit, branch or tag")
    parser.add_argument("new", metavar="NEW", help="another one; files that are not committed do not take part")
    parser.add_argument("--algorithms", nargs="+", default=[], help="default: all that both commits have")
    parser.add_argument(
        "--executors", nargs="+", choices=EXECUTORS, default=[name for name in EXECUTORS if name != "ray"]
    )
    parser.add_argument("--time", type=int, default=0, metavar="TURNS", help="turns of timed runs (0: none)")
    args = parser.parse_args(words[: words.index("--")] if extra else words)
    try:
        commits = [git("rev-parse", "--verify", f"{name}^{{commit}}") for name in (args.old, args.new)]
        print(f"OLD {args.old} = {commits[0][:10]}, NEW {args.new} = {commits[1][:10]}, torch {torch.__version__}")
        with tempfile.TemporaryDirectory(prefix="compare-commits-") as temporary:
            folder = Path(temporary).resolve()
            for name, described in DATA.items():
                make_dataset(folder / name, *described)
            make_generator(folder / GENERATOR)
            with checkout(commits[0], folder / "OLD") as old, checkout(commits[1], folder / "NEW") as new:
                equal = compare(old, new, methods(old, new, args.algorithms), args.executors, extra)
                if args.time > 0:
                    compare_times(old, new, extra, args.time)
        return 0 if equal else 1
    except Exception as error:
        return report(error)


if __name__ == "__main__":
    console.prepare()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that no worktree is left behind
    sys.exit(main())

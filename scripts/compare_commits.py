"""Whether two commits compute the same, bit for bit: every method under every executor, on this machine.

python scripts/compare_commits.py main HEAD
python scripts/compare_commits.py v0.1 HEAD --algorithms FedCPD FedRep --executors loop
python scripts/compare_commits.py main HEAD -- --attack signflip --attack_rate 0.3     flags after -- go to every run

Each commit is checked out into a temporary folder and runs there by its own command line on the same tiny data set:
clients of ragged sizes, one of them with less than a batch, three of four in a round. All arrays in the result files
must be equal but for the times. The golden curves hold between machines, with a tolerance; this holds between commits.

Exit status: 0 all equal, 1 a difference or a failed run, 2 a commit or a name that does not exist.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import torch

from flcore.utils.errors import RunError, UsageError
from flcore.utils.paths import REPO

EXECUTORS = ("loop", "threads", "stacked")
RUN = "-data Tiny -go compare -gr 4 -jr 0.75 -eg 1 -m CNN -dev cpu --num_threads 1 -sd 1"
FLAGS = {  # methods that need a flag, or whose servers and clients take many steps
    "FedPA": "--pa_steps 5 --pa_gen_steps 4",
    "FedGH": "--server_epochs 4",
    "FedTGP": "--server_epochs 4",
    "FedKTL": "--server_epochs 4 --generator generator.pt -nd 6",
}
TIMES = ("seconds", "time", "Budget", "total_cost")  # words in the names of arrays that differ from run to run
TRAIN, TEST, CLASSES, SHAPE = (23, 12, 7, 31), (9, 8, 6, 5), 4, (1, 20, 20)

# Runs several command lines one after another in one process: importing torch takes longer than a run.
DRIVER = """
import json, runpy, sys, flcore
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


def write_inputs(folder: Path) -> None:
    """The data set Tiny in PFLlib's files, and generator.pt for FedKTL: latent vectors of 6 numbers -> 8 x 8 images."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, *SHAPE))
    statistic = []
    for part, sizes in (("train", TRAIN), ("test", TEST)):
        (folder / "Tiny" / part).mkdir(parents=True)
        for i, size in enumerate(sizes):
            y = rng.choice(CLASSES, size)
            x = (centres[y] + 0.5 * rng.normal(size=(size, *SHAPE))).astype(np.float32)
            data = np.array({"x": x, "y": y.astype(np.int64)}, dtype=object)
            np.savez_compressed(folder / "Tiny" / part / f"{i}.npz", data=data)
            statistic += [[[int(c), int((y == c).sum())] for c in np.unique(y)]] if part == "train" else []
    config = {"num_clients": len(TRAIN), "num_classes": CLASSES, "non_iid": False, "balance": False, "partition": "-"}
    config |= {"Size of samples for labels in clients": statistic, "alpha": 0.1, "batch_size": 10}
    (folder / "Tiny" / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.Tanh(), torch.nn.Unflatten(1, (1, 8, 8)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of torch advise against TorchScript
        torch.jit.trace(net, torch.zeros(1, 6)).save(str(folder / "generator.pt"))


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


def run(tree: Path, inputs: Path, results: Path, algorithms: Sequence[str], executor: str, extra: Sequence[str]) -> str:
    """Runs the methods with the code of ``tree``; returns what it printed."""
    shared = [*RUN.split(), "-ex", executor, "--data_dir", str(inputs), "--results_dir", str(results), *extra]
    lines = [["-algo", name, *shared, *FLAGS.get(name, "").split()] for name in algorithms]
    lines = [[str(inputs / word) if word == "generator.pt" else word for word in words] for words in lines]
    # The variable comes before an editable install, so the commit's own packages are used.
    environment = os.environ | {"PYTHONPATH": str(tree / "system"), "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    command = [sys.executable, "-c", DRIVER, str(tree), json.dumps(lines)]
    done = subprocess.run(
        command, cwd=tree / "system", env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise RunError(f"the runs of {tree.name} with the executor {executor} broke off:\n{done.stdout[-2000:]}")
    return done.stdout


def arrays(results: Path, algorithm: str) -> dict[str, np.ndarray] | None:
    """The arrays of a run by name, without the times; None where it left no file."""
    path = results / f"Tiny_{algorithm}_compare_0.h5"
    if not path.exists():
        return None
    with h5py.File(path) as file:
        return {name: file[name][()] for name in file if not any(word in name for word in TIMES)}


def differences(old: dict[str, np.ndarray] | None, new: dict[str, np.ndarray] | None) -> list[str]:
    """What differs, in words: runs that failed, arrays that are in one alone, and arrays with another bit."""
    missing = [f"no result in {which}" for which, found in (("OLD", old), ("NEW", new)) if found is None]
    if old is None or new is None:
        return missing
    found = [f"{name} in one alone" for name in sorted(old.keys() ^ new.keys())]
    for name in sorted(old.keys() & new.keys()):
        one, other = np.asarray(old[name]), np.asarray(new[name])
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            found.append(f"{name} {one.dtype}{one.shape} -> {other.dtype}{other.shape}")
        elif one.tobytes() != other.tobytes():
            found.append(f"{name} by up to {np.nanmax(np.abs(one - other)):.1e}")
    return found


def compare(old: str, new: str, algorithms: Sequence[str], executors: Sequence[str], extra: Sequence[str]) -> bool:
    """Prints a table of the comparison; whether all is equal."""
    with tempfile.TemporaryDirectory(prefix="compare-commits-") as temporary:
        folder = Path(temporary).resolve()
        write_inputs(folder)
        with checkout(old, folder / "OLD") as old_tree, checkout(new, folder / "NEW") as new_tree:
            # every method has a golden curve, in every commit
            golden = [{path.stem for path in (tree / "tests/golden").glob("*.txt")} for tree in (old_tree, new_tree)]
            both = golden[0] & golden[1]
            names = list(algorithms) or sorted(both, key=str.lower)
            if unknown := set(names) - both:
                raise UsageError(f"not a method of both commits: {', '.join(sorted(unknown))}")
            if not names:
                raise UsageError("the two commits have no method in common (tests/golden names them)")
            if alone := sorted(golden[0] ^ golden[1]):
                print(f"in one commit alone, not compared: {', '.join(alone)}")
            found: dict[tuple[str, str], list[str]] = {}
            for executor in executors:
                printed = {}
                for tree in (old_tree, new_tree):
                    printed[tree] = run(tree, folder, folder / f"{tree.name}-{executor}", names, executor, extra)
                for name in names:
                    results = (arrays(folder / f"{tree.name}-{executor}", name) for tree in (old_tree, new_tree))
                    found[name, executor] = differences(*results)
                for tree, text in printed.items():
                    if any("no result" in word and tree.name in word for words in found.values() for word in words):
                        print(f"---- {tree.name}, {executor}:\n{text[-2000:]}", file=sys.stderr)
    print(f"| method | {' | '.join(executors)} |\n|---{'|---' * len(executors)}|")
    for name in names:
        cells = ["; ".join(found[name, executor]) or "equal" for executor in executors]
        print(f"| {name} | {' | '.join(cells)} |")
    different = sum(map(bool, found.values()))
    print(f"{len(found)} runs a commit, {different} different")
    return not different


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    extra = words[words.index("--") + 1 :] if "--" in words else []
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD", help="a commit, branch or tag")
    parser.add_argument("new", metavar="NEW", help="another one; files that are not committed do not take part")
    parser.add_argument("--algorithms", nargs="+", default=[], help="default: all that both commits have")
    parser.add_argument("--executors", nargs="+", choices=EXECUTORS, default=EXECUTORS)
    args = parser.parse_args(words[: words.index("--")] if extra else words)
    try:
        commits = [git("rev-parse", "--verify", f"{name}^{{commit}}") for name in (args.old, args.new)]
        print(f"OLD {args.old} = {commits[0][:10]}, NEW {args.new} = {commits[1][:10]}, torch {torch.__version__}")
        return 0 if compare(commits[0], commits[1], args.algorithms, args.executors, extra) else 1
    except (UsageError, RunError) as error:
        print(f"compare_commits: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())

"""Measures runs of very many clients on made-up data: seconds a round, by the clock and of the processor, and memory.

python scripts/scale.py                                           1,000, 10,000 and 100,000 clients, three executors
python scripts/scale.py --clients 1000 100000 --executors loop    some of them
python scripts/scale.py --participants 0                          a thousandth of the clients takes part, instead of 100

Every measurement is a process of its own. The data sets have the clients' files as links to a few hundred that differ,
which is quick to make; for a run they are as many files as any. They stay in --data_dir.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flcore.experiment import Experiment
from flcore.hyperparams import user_path
from flcore.utils import console
from flcore.utils.errors import RunError, report
from flcore.utils.paths import REPO
from flcore.utils.seeds import numpy_generator

DIFFERENT = 500  # files; a file system bears as many links to each as are needed
CLASSES, SHAPE, SIZES = 10, (1, 8, 8), {"train": 20, "test": 10}
EXECUTORS = ("loop", "threads", "ray")
SCORED = 100  # clients


def make_data(root: Path, clients: int) -> str:
    """Writes a data set of ``clients`` clients of noise, each around the means of two classes; returns its name."""
    name = f"Many{clients}"
    folder = root / name
    if (folder / "config.json").exists():
        return name
    means = numpy_generator(0, "scale").normal(size=(CLASSES, *SHAPE))
    for part, size in SIZES.items():
        (folder / part).mkdir(parents=True, exist_ok=True)
        for i in range(clients):
            path = folder / part / f"{i}.npz"
            if i >= DIFFERENT:
                os.link(folder / part / f"{i % DIFFERENT}.npz", path)
                continue
            draw = numpy_generator(0, "scale", i, part)
            y = (i + draw.integers(2, size=size)) % CLASSES
            x = (means[y] + draw.normal(size=(size, *SHAPE))).astype(np.float32)
            np.savez(path, data=np.array({"x": x, "y": y}, dtype=object))
    config = {"num_clients": clients, "num_classes": CLASSES, "shape": SHAPE, "range": [-6.0, 6.0]}
    (folder / "config.json").write_text(json.dumps(config))
    return name


def resident(pid: int | str) -> float:
    """Resident memory of a process now, in MB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def processor(pid: int | str) -> float:
    """Seconds that a process has computed, on all its cores together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(args: argparse.Namespace, clients: int, executor: str) -> dict[str, Any]:
    """One run, in this process."""
    before, started = resident("self"), time.perf_counter()
    settings = {"algorithm": args.algorithm, "dataset": f"Many{clients}", "data_dir": str(args.data_dir)}
    settings |= {"join_ratio": (args.participants or clients / 1000) / clients, "eval_clients": SCORED}
    settings |= {"executor": executor, "global_rounds": args.rounds, "model": "DNN", "results_dir": None}
    server = Experiment(**settings, device="cpu").server()
    ready, turn, actors = time.perf_counter() - started, time.perf_counter(), list[int]()
    seconds, used, memory, far = list[float](), list[float](), list[float](), list[float]()
    for _ in server.each_round():
        seconds.append(time.perf_counter() - turn)
        if executor == "ray" and not actors:
            import ray

            actors = ray.get([slot.handle.ready.remote() for slot in server.executor.slots])
        used.append(processor("self") + sum(map(processor, actors)))
        memory.append(resident("self") - before)
        far.append(sum(map(resident, actors)))
        turn = time.perf_counter()
    made = len(server.lasting_clients())
    server.executor.close()
    computed = (used[-1] - used[0]) / (len(used) - 1)
    wall = statistics.median(seconds[1:])
    return {"start": ready, "seconds": wall, "computed": computed, "memory": memory, "made": made, "actors": far}


def apart(words: Sequence[str], clients: int, executor: str) -> dict[str, Any]:
    """One run, in a process of its own."""
    command = [sys.executable, __file__, *words, "--one", str(clients), executor]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RunError(f"{clients} clients on {executor}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--clients", type=int, nargs="+", default=[1000, 10_000, 100_000])
    add("--executors", nargs="+", choices=EXECUTORS, default=EXECUTORS)
    add("--participants", type=int, default=100, help="of a round; 0: a thousandth of the clients (100)")
    add("--algorithm", default="FedRep", help="method (FedRep)")
    add("--rounds", type=int, default=10, help="of each run; the first does not count (10)")
    add("--data_dir", type=user_path, default=REPO / "dataset", help="folder of the data sets")
    add("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.one:
        print(json.dumps(measure(args, int(args.one[0]), args.one[1])))
        return 0
    try:
        table(args, sys.argv[1:] if argv is None else argv)
    except Exception as error:
        return report(error)
    return 0


def table(args: argparse.Namespace, words: Sequence[str]) -> None:
    first: dict[str, Any] = {}
    print("| clients | executor | start, s | round | computed | MB, first | MB, last | clients kept | actors, MB |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for clients in args.clients:
        make_data(args.data_dir, clients)
        for executor in args.executors:
            found = apart(words, clients, executor)
            first = first or found
            ratios = " | ".join(f"{found[name] / first[name]:.2f}" for name in ("seconds", "computed"))
            actors = f"{found['actors'][0]:.0f}, {found['actors'][-1]:.0f}" if found["actors"][0] else "-"
            start, end = found["memory"][0], found["memory"][-1]
            print(
                f"| {clients:,} | {executor} | {found['start']:.1f} | {ratios} | {start:.0f} | {end:.0f} "
                f"| {found['made']} | {actors} |",
                flush=True,
            )
    print(f"\n1 is {first['seconds']:.3f} s a round, and {first['computed']:.3f} s of the processor")


if __name__ == "__main__":
    console.prepare()
    sys.exit(main())

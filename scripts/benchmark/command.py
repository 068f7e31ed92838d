"""The command line, and the file of results."""

import argparse
import os
import platform
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmark import parts
from benchmark.contestants import STAND_IN, Setting
from benchmark.data import make_data
from benchmark.turns import Json
from flcore.experiment import EXECUTORS
from flcore.hyperparams import user_path
from flcore.utils.errors import report
from flcore.utils.mem_utils import peak_memory
from flcore.utils.paths import REPO
from flcore.utils.runs.files import write_json
from flcore.utils.runs.provenance import run_info

MADE_UP = "made-up data"


def processor() -> str:
    """The name of the processor, as far as the system tells."""
    try:
        names = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def at_least_1(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text}")
    return value


def read_arguments(argv: Sequence[str] | None, description: str | None = None) -> argparse.Namespace:
    executors = [*EXECUTORS, STAND_IN]
    without_ray = [name for name in executors if name != "ray"]
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    what = parser.add_argument_group("what to measure (without any of these: --rounds)")
    what.add_argument("--rounds", action="store_true", help="seconds a round, ratios, roofline")
    what.add_argument("--overhead", action="store_true", help="share of a round outside forward and backward")
    what.add_argument("--flops", action="store_true", help="FedCPD's cost over FedRep's, counted and measured")
    what.add_argument("--scaling", action="store_true", help="over clients, samples and local epochs, on made-up data")
    add(
        "--algorithms",
        nargs="+",
        default=["FedAvg", "FedRep", "FedCPD --cpd_fd 0"],
        metavar="NAME",
        help="algorithms, with flags of their own in quotation marks (FedAvg FedRep 'FedCPD --cpd_fd 0')",
    )
    add("--executors", nargs="+", choices=executors, default=without_ray, help="what runs them (all but ray)")
    add("--repetitions", type=at_least_1, default=5, help="turns that count (5)")
    add("--pfllib", type=user_path, metavar="DIR", help="a checkout of PFLlib to compare with")
    add("-data", "--dataset", help="a data set; without it, images are made up")
    add("--data_dir", type=user_path, default=REPO / "dataset", help="folder of the data sets")
    add("--clients", type=at_least_1, default=20, help="clients of the made-up data (20)")
    add("--samples", type=at_least_1, default=12_000, help="images of the made-up data (12000)")
    add("--classes", type=at_least_1, default=100, help="classes of the made-up data (100)")
    add("--shape", type=at_least_1, nargs="+", default=[3, 32, 32], help="an image of the made-up data (3 32 32)")
    add("-m", "--model", default="CNN", help="model (CNN)")
    add("-lbs", "--batch_size", type=at_least_1, default=10, help="samples in a batch (10)")
    add("-lr", "--lr", type=float, default=0.01, help="learning rate (0.01)")
    add("-sd", "--seed", type=int, default=0, help="seed of data, weights and batches (0)")
    add("-dev", "--device", default="auto", help="auto, cpu, cuda, cuda:N (auto)")
    add("--num_threads", type=at_least_1, default=1, help="threads inside one operation of ours (1)")
    add("--out", type=user_path, default=REPO / "results" / "bench.json", metavar="FILE.json", help="the results")
    args = parser.parse_args(argv)
    args.torch_threads = torch.get_num_threads()  # of PFLlib, which leaves torch's choice
    args.rounds = args.rounds or not (args.overhead or args.flops or args.scaling)
    if args.pfllib and not (args.pfllib / "system" / "main.py").is_file():
        parser.error(f"argument --pfllib: there is no system/main.py in {args.pfllib}; name the folder of a checkout")
    for algorithm in args.algorithms:
        try:
            if not shlex.split(algorithm):
                parser.error("argument --algorithms: one of the names is empty")
        except ValueError as error:
            parser.error(f"argument --algorithms: {algorithm}: {error}")
    if args.out.suffix != ".json":
        parser.error(f"argument --out: must end in .json, not {args.out.name}")
    if args.clients * 8 > args.samples and not args.dataset:
        parser.error(f"argument --samples: {args.samples} are too few for {args.clients} clients")
    if args.scaling and args.samples < 8 * max(parts.CLIENTS):
        most = max(parts.CLIENTS)
        parser.error(f"argument --samples: --scaling needs at least {8 * most} for {most} clients")
    args.pfllib = args.pfllib and args.pfllib.resolve()
    return args


def main(argv: Sequence[str] | None = None, description: str | None = None) -> int:
    """The exit status; ``description`` is what --help says first."""
    args = read_arguments(argv, description)
    words = sys.argv[1:] if argv is None else argv
    try:
        with tempfile.TemporaryDirectory(prefix="bench") as folder:
            run(args, f"python scripts/bench.py {shlex.join(words)}".strip(), Path(folder))
    except KeyboardInterrupt:
        print("interrupted; what was finished is in the result file", file=sys.stderr)
        return 130
    except Exception as error:
        return report(error)
    return 0


def run(args: argparse.Namespace, command: str, scratch: Path) -> None:
    """All parts that are asked for; the file is written after each."""
    if args.dataset:
        setting = Setting(args, args.data_dir, args.dataset)
    else:
        print(f"data: {args.samples} images, {args.clients} clients, made up", flush=True)
        setting = Setting(args, *make_data(scratch, args.clients, args.samples, args.classes, args.shape, args.seed))
    for algorithm in args.algorithms:  # a mistake is refused before anything is measured
        checked = setting.experiment(algorithm, "loop").context()
    data = {name: getattr(checked, name) for name in ("num_clients", "num_classes", "shape", "data_digest")}
    about = {"command": command, "arguments": vars(args), "seed": args.seed}
    result = run_info(about | {"data": {"name": args.dataset or MADE_UP} | data})
    result |= {"processor": processor(), "cores": os.cpu_count(), "device": str(checked.device)}
    write_json(args.out, result)
    measure: dict[str, Callable[[], Json]] = {
        "rounds": lambda: parts.rounds(setting, scratch),
        "overhead": lambda: parts.overhead(setting),
        "flops": lambda: parts.flops(setting),
        "scaling": lambda: parts.scaling(args, scratch),
    }
    for name, part in measure.items():
        if getattr(args, name):
            print(f"== {name}", flush=True)
            result |= part() | {"peak_memory_bytes": peak_memory()}
            write_json(args.out, result)
    print(f"results: {args.out}")

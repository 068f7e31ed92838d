"""The command line: PFLlib's flags and a few of ours, as one table.

Differences from PFLlib, all deliberate: the defaults of -data, -gr, -lr, -dev, -nc and -ncl (the FedCPD paper's
protocol, and what the data set's config.json says); booleans parse, so that `-ld False` is False; -dev takes auto,
cuda:N and mps; values out of range are refused before anything is read.
"""

import argparse
import math
import re
import sys
from argparse import SUPPRESS
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flcore.utils.errors import UsageError
from flcore.utils.paths import REPO


@dataclass(frozen=True)
class Limit:
    """What values a flag takes: a test, and the same in words for the error message."""

    holds: Callable[[Any], bool]
    words: str


POSITIVE = Limit(lambda v: v > 0, "above 0")
AT_LEAST_0 = Limit(lambda v: v >= 0, "0 or more")
AT_LEAST_1 = Limit(lambda v: v >= 1, "1 or more")
SHARE = Limit(lambda v: 0 <= v <= 1, "from 0 to 1")
JOIN_SHARE = Limit(lambda v: 0 < v <= 1, "above 0 and at most 1")
DELTA = Limit(lambda v: 0 < v < 1, "above 0 and below 1")
DROP_SHARE = Limit(lambda v: 0 <= v < 1, "at least 0 and below 1")
BATCH = Limit(lambda v: v >= 1 or v == -1, "1 or more, or -1 for one batch of all samples")
SEED = Limit(lambda v: 0 <= v < 2**63, "from 0 to 2**63 - 1")
THREADS = Limit(lambda v: 1 <= v <= 1024, "from 1 to 1024")
PERCENT = Limit(lambda v: 1 <= v <= 100, "from 1 to 100")
STACK = Limit(lambda v: v == "auto" or v.isdecimal() and int(v) > 0, "auto, or 1 or more")
DEVICE = Limit(lambda v: re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", v) is not None, "auto, cpu, cuda, cuda:N or mps")
ON_NAN = Limit(lambda v: v in ("skip", "stop"), "skip or stop")
ATTACK = Limit(lambda v: v in ("none", "signflip", "noise", "labelflip"), "none, signflip, noise or labelflip")
AGGREGATE = Limit(lambda v: v in ("mean", "median", "trimmed", "krum"), "mean, median, trimmed or krum")
TRIM = Limit(lambda v: 0 <= v < 0.5, "at least 0 and below 0.5")

GENERAL, PARTICIPATION, FAULTS, RESULTS = "general", "participation", "faults, attacks and defences", "results"
ALGORITHM = "algorithm-specific (an algorithm that does not use one says so)"
IDLE = "accepted for PFLlib's sake, without effect yet"


@dataclass(frozen=True)
class Flag:
    """One command-line flag; `name` is its long form and the parsed attribute, `short` may be empty."""

    short: str
    name: str
    type: type
    default: Any
    group: str
    help: str
    limit: Limit | None = None

    @property
    def label(self) -> str:
        return "/".join(self.spellings)

    @property
    def spellings(self) -> list[str]:
        return [self.short, f"--{self.name}"] if self.short else [f"--{self.name}"]


FLAGS = (
    Flag("-algo", "algorithm", str, "FedAvg", GENERAL, "algorithm to run"),
    Flag("-data", "dataset", str, "Digits", GENERAL, "data set: a folder in --data_dir"),
    Flag("-m", "model", str, "CNN", GENERAL, "model"),
    Flag("-nc", "num_clients", int, None, GENERAL, "number of clients; if not given, the data set's", AT_LEAST_1),
    Flag("-ncl", "num_classes", int, None, GENERAL, "number of classes; if not given, the data set's", AT_LEAST_1),
    Flag("-gr", "global_rounds", int, 200, GENERAL, "communication rounds", AT_LEAST_0),
    Flag("-ls", "local_epochs", int, 1, GENERAL, "local epochs a round", AT_LEAST_0),
    Flag("-lbs", "batch_size", int, 10, GENERAL, "samples in a batch; -1: all of a client's", BATCH),
    Flag("-lr", "local_learning_rate", float, 0.01, GENERAL, "learning rate of the clients", POSITIVE),
    Flag("-ld", "learning_rate_decay", bool, False, GENERAL, "multiply the learning rate by -ldg after every round"),
    Flag("-ldg", "learning_rate_decay_gamma", float, 0.99, GENERAL, "factor of -ld", POSITIVE),
    Flag("-fs", "few_shot", int, 0, GENERAL, "training samples kept of each class; 0: all", AT_LEAST_0),
    Flag("-sd", "seed", int, 0, GENERAL, "seed of all randomness", SEED),
    Flag("-dev", "device", str, "auto", GENERAL, "auto (cuda if there is one), cpu, cuda, cuda:N or mps", DEVICE),
    Flag("-did", "device_id", str, "0", GENERAL, "number of the CUDA card, as in -dev cuda:N"),
    Flag("-ex", "executor", str, "auto", GENERAL, "how the clients of a round are run"),
    Flag("", "stack_size", str, "auto", GENERAL, "clients at once with -ex stacked; auto: as memory allows", STACK),
    Flag("", "num_threads", int, 1, GENERAL, "threads inside one operation on the CPU", THREADS),
    Flag("", "state_dir", str, None, GENERAL, "folder for what clients keep between rounds, instead of memory"),
    Flag(
        "", "state_cache", int, 64, GENERAL, "clients in memory with --state_dir; take at least one a core", AT_LEAST_1
    ),
    Flag("", "data_dir", str, str(REPO / "dataset"), GENERAL, "folder of the data sets"),
    # Participation
    Flag("-jr", "join_ratio", float, 1.0, PARTICIPATION, "share of the clients that join a round", JOIN_SHARE),
    Flag("-rjr", "random_join_ratio", bool, False, PARTICIPATION, "draw the number that join, from -jr of them to all"),
    Flag("-cdr", "client_drop_rate", float, 0.0, PARTICIPATION, "share of the uploads that are lost", DROP_SHARE),
    Flag("-nnc", "num_new_clients", int, 0, PARTICIPATION, "clients held back for a test at the end", AT_LEAST_0),
    Flag("-ften", "fine_tuning_epoch_new", int, 0, PARTICIPATION, "fine-tuning epochs of new clients", AT_LEAST_0),
    Flag("-tsr", "train_slow_rate", float, 0.0, PARTICIPATION, "share of the clients that train slowly", SHARE),
    Flag("-ssr", "send_slow_rate", float, 0.0, PARTICIPATION, "share of the clients that send slowly", SHARE),
    Flag("-ts", "time_select", bool, False, PARTICIPATION, "leave out uploads that come after -tth"),
    Flag("-tth", "time_threthold", float, 10000, PARTICIPATION, "limit in simulated seconds; implies -ts", POSITIVE),
    # Faults
    Flag("", "on_nan", str, "skip", FAULTS, "a client with NaN or infinite values: leave out, or end the run", ON_NAN),
    Flag("", "label_noise", float, 0.0, FAULTS, "share of every client's training labels made wrong", SHARE),
    Flag("", "attack", str, "none", FAULTS, "what attackers do: signflip, noise, labelflip", ATTACK),
    Flag("", "attack_rate", float, 0.2, FAULTS, "share of the clients that attack, with --attack", SHARE),
    Flag("", "attack_scale", float, 4.0, FAULTS, "strength of signflip and noise, in updates", POSITIVE),
    Flag("", "aggregate", str, "mean", FAULTS, "mean, or one that bears attackers: median, trimmed, krum", AGGREGATE),
    Flag("", "trim", float, 0.3, FAULTS, "share of the uploads that trimmed and krum take for wrong", TRIM),
    # Results
    Flag("-go", "goal", str, "test", RESULTS, "name of the experiment, part of the result's file name"),
    Flag("", "results_dir", str, str(REPO / "results"), RESULTS, "folder of the results"),
    Flag("", "overwrite", bool, False, RESULTS, "replace a result of the same name, also a finished one"),
    Flag("", "reuse", bool, False, RESULTS, "keep a finished result of the same settings and code; no new run"),
    Flag("-t", "times", int, 1, RESULTS, "number of repeats", AT_LEAST_1),
    Flag("-pv", "prev", int, 0, RESULTS, "number of the first repeat", AT_LEAST_0),
    Flag(
        "",
        "checkpoint_every",
        int,
        0,
        RESULTS,
        "rounds between checkpoints, which go when the run is finished; 0: none",
        AT_LEAST_0,
    ),
    Flag(
        "",
        "resume",
        bool,
        False,
        RESULTS,
        "go on after the last checkpoint of the unfinished run of these settings; finished ones stay as they are",
    ),
    Flag("-eg", "eval_gap", int, 1, RESULTS, "rounds between evaluations", AT_LEAST_1),
    Flag("-ab", "auto_break", bool, False, RESULTS, "stop when the accuracy has not risen for -tc evaluations"),
    Flag("-tc", "top_cnt", int, 100, RESULTS, "patience of -ab, in evaluations", AT_LEAST_1),
    Flag("-dlg", "dlg_eval", bool, False, RESULTS, "rate how well an attacker rebuilds images from the uploads"),
    Flag("-dlgg", "dlg_gap", int, 100, RESULTS, "rounds between ratings of -dlg", AT_LEAST_1),
    Flag("-bnpc", "batch_num_per_client", int, 2, RESULTS, "batches of a client that -dlg compares with", AT_LEAST_1),
    # Algorithm-specific
    Flag("-bt", "beta", float, 0.0, ALGORITHM, "beta"),
    Flag("-lam", "lamda", float, 1.0, ALGORITHM, "weight of the regularizer", AT_LEAST_0),
    Flag("-mu", "mu", float, 0.0, ALGORITHM, "weight of the proximal term", AT_LEAST_0),
    Flag("-K", "K", int, 5, ALGORITHM, "personal training steps", AT_LEAST_1),
    Flag("-lrp", "p_learning_rate", float, 0.01, ALGORITHM, "learning rate of the personal model", POSITIVE),
    Flag("-M", "M", int, 5, ALGORITHM, "models a client downloads", AT_LEAST_1),
    Flag("-itk", "itk", int, 4000, ALGORITHM, "iterations of the quadratic solver", AT_LEAST_1),
    Flag("-alk", "alphaK", float, 1.0, ALGORITHM, "step size of the attentive update"),
    Flag("-sg", "sigma", float, 1.0, ALGORITHM, "width of the similarity", POSITIVE),
    Flag("-al", "alpha", float, 1.0, ALGORITHM, "alpha"),
    Flag("-pls", "plocal_epochs", int, 1, ALGORITHM, "epochs of the personal part (FedRep: the head)", AT_LEAST_0),
    Flag("-tau", "tau", float, 1.0, ALGORITHM, "temperature", POSITIVE),
    Flag("-fte", "fine_tuning_epochs", int, 10, ALGORITHM, "fine-tuning epochs after training", AT_LEAST_0),
    Flag("-dlr", "dr_learning_rate", float, 0.0, ALGORITHM, "learning rate of the dual variable", AT_LEAST_0),
    Flag("-L", "L", float, 1.0, ALGORITHM, "Lipschitz constant", POSITIVE),
    Flag("-nd", "noise_dim", int, 512, ALGORITHM, "size of the generator's noise", AT_LEAST_1),
    Flag("-glr", "generator_learning_rate", float, 0.005, ALGORITHM, "learning rate of the generator", POSITIVE),
    Flag("-hd", "hidden_dim", int, 512, ALGORITHM, "hidden units of the generator", AT_LEAST_1),
    Flag("-se", "server_epochs", int, 1000, ALGORITHM, "epochs of the server's own training", AT_LEAST_0),
    Flag("-lf", "localize_feature_extractor", bool, False, ALGORITHM, "keep the feature extractor on the client"),
    Flag("-slr", "server_learning_rate", float, 1.0, ALGORITHM, "learning rate of the server", POSITIVE),
    Flag("-et", "eta", float, 1.0, ALGORITHM, "learning rate of the aggregation weights", AT_LEAST_0),
    Flag("-s", "rand_percent", int, 80, ALGORITHM, "percent of the samples used for the local aggregation", PERCENT),
    Flag("-p", "layer_idx", int, 2, ALGORITHM, "number of top layers aggregated adaptively", AT_LEAST_0),
    Flag("-mlr", "mentee_learning_rate", float, 0.005, ALGORITHM, "learning rate of the mentee", POSITIVE),
    Flag("-Ts", "T_start", float, 0.95, ALGORITHM, "energy kept by the compression, first round", SHARE),
    Flag("-Te", "T_end", float, 0.98, ALGORITHM, "energy kept by the compression, last round", SHARE),
    Flag("-mo", "momentum", float, 0.1, ALGORITHM, "momentum of the running mean", SHARE),
    Flag("-klw", "kl_weight", float, 0.0, ALGORITHM, "weight of the divergence term", AT_LEAST_0),
    Flag("-fsb", "first_stage_bound", int, 0, ALGORITHM, "rounds of the first stage", AT_LEAST_0),
    Flag("-ca", "fedcross_alpha", float, 0.99, ALGORITHM, "share of its own model in a cross-aggregation", SHARE),
    Flag("-cmss", "collaberative_model_select_strategy", int, 1, ALGORITHM, "choice of the partner model", AT_LEAST_0),
    Flag("", "proto_min_count", int, 1, ALGORITHM, "samples a class needs for its prototype to go up", AT_LEAST_1),
    Flag("", "proto_noise", float, 0.0, ALGORITHM, "noise multiplier for uploaded prototypes; 0: off", AT_LEAST_0),
    Flag("", "proto_clip", float, 5.0, ALGORITHM, "longest embedding with --proto_noise (L2)", POSITIVE),
    Flag("", "dp_delta", float, 1e-5, ALGORITHM, "delta at which --proto_noise's epsilon is told", DELTA),
    # Without effect yet
    Flag("-sfn", "save_folder_name", str, "items", IDLE, "folder of saved models"),
    Flag("-fd", "feature_dim", int, 512, IDLE, "size of the features", AT_LEAST_1),
    Flag("-vs", "vocab_size", int, 80, IDLE, "vocabulary of a text data set", AT_LEAST_1),
    Flag("-ml", "max_len", int, 200, IDLE, "longest text", AT_LEAST_1),
)
# flag -> the other flag, and the value of that one with which it does nothing
NEEDS: dict[str, tuple[str, Any]] = {
    "attack_rate": ("attack", "none"),
    "attack_scale": ("attack", "none"),
    "trim": ("aggregate", "mean"),
    "proto_clip": ("proto_noise", 0),
    "dp_delta": ("proto_noise", 0),
    "state_cache": ("state_dir", ""),
    "dlg_gap": ("dlg_eval", False),
    "batch_num_per_client": ("dlg_eval", False),
}
WEIGHTS = {"lamda", "mu", "kl_weight"}  # of terms that make a method what it is
OLD_SPELLINGS = {"-nb": "num_classes"}

TRUE, FALSE = ("true", "1", "yes", "y", "on"), ("false", "0", "no", "n", "off")


def _reader(flag: Flag) -> Callable[[str], Any]:
    """The function argparse uses to read one value; its errors name the flag and say what is allowed."""

    def read(text: str) -> Any:
        value: Any
        if flag.type is bool:
            if text.lower() not in TRUE + FALSE:
                raise argparse.ArgumentTypeError(f"must be True or False, not '{text}'")
            return text.lower() in TRUE
        try:
            value = flag.type(text)
        except ValueError:
            kind = {int: "a whole number", float: "a number"}[flag.type]
            raise argparse.ArgumentTypeError(f"must be {kind}, not '{text}'") from None
        if flag.type is float and not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"must be a finite number, not '{text}'")
        if flag.limit and not flag.limit.holds(value):
            raise argparse.ArgumentTypeError(f"must be {flag.limit.words}, not '{text}'")
        return value

    return read


def make_parser(executors: Sequence[str] = ("auto", "loop")) -> argparse.ArgumentParser:
    """A parser of all flags of the table; `executors` are the choices of -ex."""
    parser = argparse.ArgumentParser(
        prog="main.py",
        usage="python main.py -algo ALGORITHM -data DATASET [flags]        (--help lists all flags)",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=44, width=132),
        allow_abbrev=False,  # a slip such as --local_ep must not become another flag
        epilog="Booleans: -ld, -ld True, -ld False; also 1/0, yes/no and --no-learning_rate_decay.",
    )
    groups = {name: parser.add_argument_group(name) for name in dict.fromkeys(flag.group for flag in FLAGS)}
    for flag in FLAGS:
        default = "" if flag.default is None else f" (default: {str(flag.default).replace('%', '%%')})"
        options: dict[str, Any] = {
            "type": _reader(flag),
            "default": flag.default,
            "help": flag.help + default,
            "metavar": {int: "N", float: "X", str: "NAME", bool: "BOOL"}[flag.type],
        }
        if flag.type is bool:
            options |= {"nargs": "?", "const": True}
            parser.add_argument(
                f"--no-{flag.name}", dest=flag.name, action="store_false", default=SUPPRESS, help=SUPPRESS
            )
        if flag.name == "executor":
            options |= {"choices": list(executors), "metavar": "{" + ",".join(executors) + "}"}
        groups[flag.group].add_argument(*flag.spellings, **options)
        for old in (old for old, name in OLD_SPELLINGS.items() if name == flag.name):
            parser.add_argument(
                old, dest=flag.name, type=_reader(flag), default=argparse.SUPPRESS, help=argparse.SUPPRESS
            )
    return parser


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Reads the command line and checks what concerns two flags; a mistake ends the program with exit code 2.

    The result has, besides the flags, `given`: a frozenset of the names that were typed.
    """
    args = parser.parse_args(argv)
    if args.prev >= args.times:
        parser.error(f"argument -pv/--prev: must be below -t/--times ({args.times}), not {args.prev}")
    for old, name in OLD_SPELLINGS.items():
        if any(word.split("=")[0] == old for word in argv):
            print(f"note: {old} is an old spelling of --{name}", file=sys.stderr)
    # A second pass over a namespace whose every name is taken: argparse then sets only what was typed.
    untouched = object()
    typed = parser.parse_args(argv, argparse.Namespace(**dict.fromkeys(vars(args), untouched)))
    args.given = frozenset(name for name, value in vars(typed).items() if value is not untouched)
    return args


def idle_flags(args: argparse.Namespace) -> set[str]:
    """The flags that do nothing because another one is off."""
    return {name for name, (other, off) in NEEDS.items() if (getattr(args, other) or off) == off}


def describe_ignored(args: argparse.Namespace, used: set[str]) -> list[str]:
    """One line for every typed flag that the chosen algorithm does not use, that switches its own term off, or that
    does nothing yet.

    `used` holds the names the algorithm uses, of the algorithm-specific table or added by an algorithm itself.
    """
    table = {flag.name: flag for flag in FLAGS}
    off = sorted(name for name in args.given & used & WEIGHTS if getattr(args, name) == 0)
    notes = [f"note: {table[name].label} 0 switches a term of {args.algorithm} off" for name in off]
    idle = args.given & idle_flags(args)
    notes += [f"note: {table[name].label} has no effect without --{NEEDS[name][0]}" for name in sorted(idle)]
    for name in sorted(args.given - used - idle):
        flag = table.get(name)
        if flag is None:  # added by an algorithm
            notes.append(f"note: --{name} has no effect on {args.algorithm}")
        elif flag.group == ALGORITHM:
            notes.append(f"note: {flag.label} has no effect on {args.algorithm}")
        elif flag.group == IDLE:
            notes.append(f"note: {flag.label} is accepted but has no effect yet")
    return notes


def resolve_device(args: argparse.Namespace, say: Callable[[str], None] = print) -> torch.device:
    """The device that -dev and -did name, said in one line.

    Card numbers count what the caller's CUDA_VISIBLE_DEVICES leaves visible; that variable is never written.

    Raises:
        UsageError: the device was named and is not there.
    """
    kind, _, number = args.device.partition(":")
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    idle = "-did has no effect" if "device_id" in args.given else ""
    if kind == "auto" and not cards:
        say(f"device: cpu ({'; '.join(filter(None, ('no CUDA device found', idle)))})")
        return torch.device("cpu")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UsageError("-dev mps: this machine or this build of torch has no MPS device; use -dev cpu or -dev auto")
    if kind in ("cpu", "mps"):
        say(f"device: {kind}" + (f" ({idle})" if idle else ""))
        return torch.device(kind)

    if not args.device_id.isdecimal():
        raise UsageError(f"-did {args.device_id}: takes the number of one card, such as 0")
    if number and "device_id" in args.given and int(number) != int(args.device_id):
        raise UsageError(f"-dev {args.device} and -did {args.device_id} name different cards; give one of them")
    card = int(number or args.device_id)
    if not cards:
        raise UsageError(f"-dev {args.device}: torch sees no CUDA device; use -dev cpu or -dev auto")
    if card >= cards:
        raise UsageError(
            f"-dev {args.device} -did {args.device_id}: there is no card {card}, torch sees {cards} (from 0)"
        )
    say(f"device: cuda:{card} ({torch.cuda.get_device_name(card)})")
    return torch.device("cuda", card)

"""Runs one federated algorithm on one data set:  python main.py -algo FedCPD -data Cifar100 -nc 20"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch

from flcore import registry
from flcore.data.ensure import ensure_dataset, known_datasets
from flcore.executors.loop import LoopExecutor
from flcore.executors.stacked import StackedExecutor
from flcore.executors.threads import ThreadsExecutor
from flcore.trainmodel.build import MODELS, build_model, known_model, split_head
from flcore.utils import cli, interrupt
from flcore.utils.errors import RunError, UsageError, report
from flcore.utils.runs.checkpoint import Checkpoints
from flcore.utils.runs.claim import claim_run
from flcore.utils.runs.provenance import run_info, run_settings
from flcore.utils.runs.read import print_best, read_accuracies
from flcore.utils.seeds import numpy_generator, seed_everything

EXECUTORS = {"loop": LoopExecutor, "threads": ThreadsExecutor, "stacked": StackedExecutor}


def read_arguments(argv: list[str]) -> tuple[argparse.Namespace, registry.Method, Any]:
    """The checked arguments, the method's card and its server class."""
    method = registry.find(cli.algorithm_in(argv))
    arguments = cli.read(argv, method, registry.METHODS, {"model": MODELS, "dataset": known_datasets()})
    for note in arguments.notes:
        print(note)
    unused = frozenset(arguments.values) - arguments.used | {"unused", "method"}  # no settings of this run
    return arguments.namespace(algorithm=method.name, unused=unused), method, method.server_class()


def use_data(args: argparse.Namespace) -> None:
    """Makes sure that the data set is there and fits; takes from it what was not given."""
    wanted = None if args.num_clients is None else args.num_clients + args.num_new_clients
    args.dataset = ensure_dataset(args.dataset, wanted, args.data_dir)
    config = args.dataset.config()
    if args.num_clients is None:
        args.num_clients = config["num_clients"] - args.num_new_clients
        if args.num_clients < 1:
            raise UsageError(
                f"-nnc {args.num_new_clients} leaves no client: {args.dataset} has {config['num_clients']}."
            )
    if args.num_classes not in (None, config["num_classes"]):
        raise UsageError(
            f"-ncl {args.num_classes}: {args.dataset} has {config['num_classes']} classes; leave -ncl out."
        )
    args.num_classes = config["num_classes"]
    args.shape = args.dataset.shape()
    args.data_digest = args.dataset.digest()
    # Better refused now than after the model is built, or after training.
    for i in (0, *range(args.num_clients, args.num_clients + args.num_new_clients)):
        args.dataset.read(i)


def run(args: argparse.Namespace, method: registry.Method, server_class: Any) -> None:
    """All repeats (``-pv`` to ``-t``), each with its result files."""
    goal, model_name = args.goal, args.model
    settings = run_settings(args, args.data_digest, args.unused)
    for repeat in range(args.prev, args.times):
        args.repeat = repeat
        files = claim_run(
            *(args.results_dir, args.dataset, args.algorithm, goal, repeat, settings),
            *(args.overwrite, args.reuse, args.resume),
        )
        goal, args.result_path = files.goal, files.h5
        if files.reused:
            continue
        files.update(**run_info(args, {"evaluation_point": "A: after download, before training"}))
        with files.recording():
            seed_everything(int(numpy_generator(args.seed, repeat, "initial model").integers(2**31)))
            args.module_seed = int(numpy_generator(args.seed, repeat, "personal modules").integers(2**31))
            args.model = build_model(model_name, args.shape, args.num_classes)
            if method.head_split:
                args.model = split_head(args.model)
            args.model.to(args.device)
            server = server_class(args, repeat)
            files.update(**server.privacy)
            if args.dataset.digest() != args.data_digest:
                raise RunError(f"data set {args.dataset} was changed while this run was using it; start it again")
            options = {"stack_size": args.stack_size} if args.executor == "stacked" else {}
            server.executor = EXECUTORS[args.executor](**options)
            size = sum(parameter.numel() for parameter in args.model.parameters())
            print(
                f"{args.algorithm} on {args.dataset}: {args.num_clients} clients, {args.global_rounds} rounds, "
                f"{model_name} with {size:,} parameters, executor {server.executor.name}"
            )
            if server.has_own_loop():
                print(f"{args.algorithm} brings its own round loop: its clients train one after another.")
            server.checkpoints = Checkpoints(
                files.h5, files.info | {"num_clients": args.num_clients}, args.checkpoint_every, args.resume
            )
            server.checkpoints.check(server)
            server.train()
        print(f"results: {files.h5}")
    print_best(read_accuracies(Path(args.results_dir), args.dataset, args.algorithm, goal, args.times))


def main(argv: list[str] | None = None) -> int:
    started = time.time()
    argv = sys.argv[1:] if argv is None else argv
    if "--list" in argv or argv[:2] == ["-algo", "help"]:
        print(registry.table())
        return 0
    try:
        args, method, server_class = read_arguments(argv)
        args.device = cli.resolve_device(args)
        if args.executor == "auto":
            args.executor = {"cpu": "threads", "cuda": "stacked"}.get(args.device.type, "loop")
        torch.set_num_threads(args.num_threads)
        known_model(args.model)  # refused before any data is made
        use_data(args)
        run(args, method, server_class)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        return report(error)
    print(f"total time {time.time() - started:.1f} s")
    return 0


if __name__ == "__main__":
    interrupt.install()
    sys.exit(main())

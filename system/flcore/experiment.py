"""The one place where a run is wired:  Experiment(algorithm="FedCPD", dataset="Digits", cpd_align=5.0).run().accuracy

`main.py`, the scripts, the tests and a notebook all use it. Running an experiment leaves nothing behind but its result
files: global generators, torch's number of threads and signal handlers are afterwards what they were.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch

from flcore import registry
from flcore.context import RunContext
from flcore.data.ensure import ensure_dataset, known_datasets
from flcore.executors.base import Executor
from flcore.executors.loop import LoopExecutor
from flcore.executors.ray_executor import RayExecutor
from flcore.executors.stacked import StackedExecutor
from flcore.executors.threads import ThreadsExecutor
from flcore.hyperparams import user_path
from flcore.observers import Observer
from flcore.predictor import Network, Predictors
from flcore.result import Repeat, Result
from flcore.servers.support import predictors
from flcore.trackers import trackers
from flcore.trainmodel.build import MODELS, split_head
from flcore.trainmodel.network import Wanted, prepare
from flcore.trainmodel.pretrained import digest_of
from flcore.trainmodel.sources import explained, read_arguments, source_of
from flcore.utils import cli
from flcore.utils.errors import RunError, UsageError
from flcore.utils.runs.checkpoint import Checkpoints
from flcore.utils.runs.claim import claim_run
from flcore.utils.runs.files import as_arrays
from flcore.utils.runs.provenance import NOT_SETTINGS, but_rounds, run_info, run_settings, settings_digest
from flcore.utils.runs.read import read_run
from flcore.utils.runs.record import RunFiles
from flcore.utils.seeds import isolated, numpy_generator, seed_everything

EXECUTORS: dict[str, Callable[..., Executor]] = {
    each.name: each for each in (LoopExecutor, ThreadsExecutor, StackedExecutor, RayExecutor)
}
UNLESS_GIVEN = ("model_args", "head", "pretrained", "eval_clients", "validation")  # no settings while they are off
COMMAND_LINE = {"quiet", "verbose", "log", "config"}
FILES = (
    "tensorboard",
    "checkpoint_every",
    "keep_checkpoint",
    "resume",
    "reuse",
    "overwrite",
)  # flags that need a folder of results

log = logging.getLogger(__name__)


class Experiment:
    """One algorithm on one data set with its settings, for all its repeats (``times``).

    Args:
        settings: the command line's flags by their long names, such as ``num_clients=20``. ``results_dir=None``:
            nothing is written; otherwise results go where the command line puts them. ``model`` may be a module, or a
            class or function that makes one, and ``model_args`` a dict.

    Raises:
        UsageError: a name or a value is wrong; in the words of the command line, and with the nearest name.
    """

    def __init__(self, **settings: Any) -> None:
        for name in COMMAND_LINE.intersection(settings):
            raise UsageError(f"{name}: is for the command line; run(observers=[Terminal()]) prints from Python")
        self.writes = settings.get("results_dir", "") is not None
        method = registry.find(str(settings.get("algorithm", "FedAvg")))
        given = {name: value for name, value in settings.items() if self.writes or name != "results_dir"}
        model = given.get("model")
        if callable(model):  # a module, too
            given["model"] = "an object"
        self._take(cli.settle(method, given, registry.METHODS), model if callable(model) else None)
        if not self.writes and (asked := [name for name in FILES if self.values[name]]):
            raise UsageError(f"{asked[0]}: needs a folder of results, and results_dir is None")

    @classmethod
    def from_argv(cls, argv: Sequence[str], writes: bool = True) -> Experiment:
        """The experiment that a command line means; without any files unless it ``writes``."""
        self = cls.__new__(cls)
        self.writes = writes
        hints = {"model": MODELS, "dataset": known_datasets()}
        algorithm, config = cli.chosen_in(argv)
        self._take(cli.read(argv, registry.find(algorithm), registry.METHODS, hints, config))
        return self

    @classmethod
    def from_config(cls, path: Path | str, **settings: Any) -> Experiment:
        """The experiment that a TOML file of settings describes; ``settings`` win over what it says."""
        config = cli.read_config(user_path(path))
        return cls(**{name: value for name, value in config.items() if name not in COMMAND_LINE} | settings)

    def _take(self, arguments: cli.Arguments, model: Callable[..., Any] | None = None) -> None:
        """model: the network, or what makes it, where that is no name."""
        self.method: registry.Method = arguments.method
        values = arguments.values
        self.given = arguments.given
        self.used = arguments.used - {name for name in UNLESS_GIVEN if not values[name]}
        if values["local_momentum"] and values["optimizer"] != "sgd":
            raise UsageError(f"--local_momentum is for --optimizer sgd; {values['optimizer']} has moments of its own")
        self.source = source_of(model or values["model"], read_arguments(values["model_args"]))
        self.network = {"model": self.source.label}  # what run.json says of it: contents, wherever they lie
        self.places: dict[str, Any] = {}  # and where they lay
        if self.source.digest is not None:
            self.network["model_digest"] = self.source.digest
            self.places["model"] = self.source.place or self.source.label
        if values["pretrained"]:
            self.network["pretrained"] = digest_of(values["pretrained"])
            self.places["pretrained"] = values["pretrained"]
        names = {"algorithm": self.method.name, "model": self.source.label}
        self.values = MappingProxyType({**values, **names})
        for note in arguments.notes:
            log.warning(note)

    # ---- building ------------------------------------------------------------------------------------------------

    def context(self, repeat: int = 0, **changed: Any) -> RunContext:
        """What is known of one repeat before its first round; makes the data set where it is missing.

        changed: fields of the context to be taken instead.
        """
        with isolated():
            return self._context(self._prepared(), repeat, **changed)

    def server(self, repeat: int = 0, **changed: Any) -> Any:
        """The server of one repeat, ready for `train` and without files, for whoever wants to look inside."""
        with isolated():
            return self._server(self._context(self._prepared(), repeat, **changed))

    def _prepared(self) -> dict[str, Any]:
        """The fields of the context that all repeats have in common."""
        values = dict(self.values)
        card = values["device_id"] if "device_id" in self.given else None
        device = cli.resolve_device(values["device"], card, log.info)
        executor = values["executor"]
        if executor == "auto":
            executor = {"cpu": "threads", "cuda": "stacked"}.get(device.type, "loop")
        data = self._data()
        values |= data | {"device": device, "executor": executor}
        digest = data["dataset"].digest()
        return {
            **data,
            "method": self.method,
            "algorithm": self.method.name,
            "data_digest": digest,
            "device": device,
            "executor": executor,
            "model_name": values["model"],
            "seed": values["seed"],
            "given": self.given,
            "settings": run_settings({name: values[name] for name in (*self.used, "shape")} | self.network, digest),
            "values": MappingProxyType(values),
        }

    def _data(self) -> dict[str, Any]:
        """Makes sure that the data set is there and fits; tells its name, size and shape."""
        values = self.values
        if values["executor"] == "flower":
            how = "pip install 'flwr[simulation]>=1.42', then flwr run examples/flower"
            raise UsageError(f"-ex flower: a federation is started by Flower's own command: {how}; see docs/flower.md")
        clients, new, classes = (values[name] for name in ("num_clients", "num_new_clients", "num_classes"))
        wanted = None if clients is None else clients + new
        dataset = ensure_dataset(values["dataset"], wanted, values["data_dir"], log.info, new)
        dataset.validation = values["validation"]
        config = dataset.config()
        if clients is None:
            clients = config["num_clients"] - new
            if clients < 1:
                raise UsageError(f"-nnc {new} leaves no client: {dataset} has {config['num_clients']}; use fewer")
        if classes not in (None, config["num_classes"]):
            raise UsageError(f"-ncl {classes}: {dataset} has {config['num_classes']} classes; leave -ncl out.")
        # Better refused now than after the model is built, or after training.
        for i in (0, *range(clients, clients + new)):
            dataset.read(i)
        taken_for, warnings = dataset.describe()
        log.info(taken_for)
        for warning in warnings:
            log.warning(f"{dataset}: {warning}")
        fitting = {"num_clients": clients, "num_classes": config["num_classes"]}
        return fitting | {"dataset": dataset, "shape": dataset.shape()}

    def _context(self, prepared: Mapping[str, Any], repeat: int, **changed: Any) -> RunContext:
        seeds = {
            f"{name}_seed": int(numpy_generator(prepared["seed"], repeat, purpose).integers(2**31))
            for name, purpose in (("model", "initial model"), ("module", "personal modules"))
        }
        known = {**prepared, **seeds, "repeat": repeat, "result_path": None, **changed}
        if "model" not in known:
            seed_everything(known["model_seed"])
            network = self._network(known["shape"], known["num_classes"], known["device"])
            known["model"] = network.base if self.method.head == "cut" else network
        return RunContext(**known)

    def _network(self, shape: tuple[int, ...], num_classes: int, device: torch.device) -> Any:
        """The common initial network, ready for every method; somebody else's is looked at first."""
        model, split = self.source.build(shape, num_classes), self.method.head != "whole"
        head, pretrained = self.values["head"], self.values["pretrained"]
        if self.source.digest is None and not head and not pretrained:
            return (split_head(model) if split else model).to(device)
        model, lines = prepare(model, Wanted(self.source.label, shape, num_classes, head, pretrained, split))
        for line in lines:
            log.info(line)
        model = model.to(device)
        with explained(self.source.label, f"does not run on {device}"), torch.no_grad():
            model.eval()(torch.zeros(1, *shape).to(device))  # tensors that it makes itself may lie elsewhere
        return model.train()

    def predictor_network(
        self, shape: tuple[int, ...], class_names: Sequence[str], device: torch.device, weights: Any = None
    ) -> Network:
        """The network that a client's predictor runs on, for samples of ``shape``.

        weights: the network if it is there already; its values do not matter.
        """
        with isolated():
            model = weights or self._network(shape, len(class_names), device)
            known = {**self.values, "device": device, "model": model, "num_classes": len(class_names)}
            args = SimpleNamespace(**known, module_seed=0)
            rule = self.method.server_class().rule
            forward = rule.network(args, torch.zeros(1, *shape))
            return Network(rule, forward, rule.hyperparameters(args), shape, tuple(class_names), device)

    def _save_models(self, server: Any, files: RunFiles | None) -> Predictors | None:
        """Keeps the trained models of a run that has ended, on disk where it has files."""
        context, names = server.args, server.args.dataset.class_names()
        if self.values["save_models"] == "none" or not predictors.has_predictors(server):
            return None
        if not files:
            network = partial(self.predictor_network, context.shape, names, context.device, context.model)
            kept = predictors.in_memory(server)
            return Predictors(lambda: (network(), kept))
        run = {key: files.info[key] for key in ("settings_digest", "repeat", "start")}
        predictors.write(server, files.h5, run, shape=context.shape, class_names=names)
        return self._predictors(files.h5, context.shape, names, context.device)

    def _predictors(self, h5: Path, *about: Any) -> Predictors:
        """The trained models beside a result file; `about`: the arguments of `predictor_network`."""
        return Predictors(lambda: (self.predictor_network(*about), predictors.Models(h5, about[-1])))

    def _server(self, context: RunContext) -> Any:
        args = context if self.method.settings_class() else context.namespace()  # a PFLlib-style pair may add to it
        server = self.method.server_class()(args, context.repeat)
        options = {"stack_size": context.stack_size} if context.executor in ("stacked", "ray") else {}
        if context.executor == "ray":
            options |= {"address": context.ray_address, "actors": context.ray_actors, "sums": context.ray_sums}
        server.executor = EXECUTORS[context.executor](**options)
        return server

    # ---- running -------------------------------------------------------------------------------------------------

    def run(self, observers: Sequence[Observer] = ()) -> Result:
        """Runs all repeats (``prev`` to ``times``), each with its result files. ``observers`` hear of every round.

        Raises:
            UsageError: what the settings ask for cannot be done.
            RunError: the run failed; what it recorded is in its files.
            KeyboardInterrupt: the user ended it, likewise.
        """
        observers = [*trackers(self.values), *observers]
        with isolated(), _threads(self.values["num_threads"]):
            prepared, goal, repeats = self._prepared(), self.values["goal"], []
            for repeat in range(self.values["prev"], self.values["times"]):
                files = self._claim(prepared, goal, repeat)
                if files:
                    goal = files.goal
                if files and files.reused:
                    about = prepared["shape"], prepared["dataset"].class_names(), prepared["device"]
                    models = self._predictors(files.h5, *about)
                    repeats.append(Repeat(repeat, read_run(files.h5).arrays, files.info, files.h5, models))
                else:
                    repeats.append(self._repeat(prepared, repeat, files, observers))
            result = Result(tuple(repeats), prepared["settings"])
            for observer in observers:
                observer.on_result(result)
            return result

    def _claim(self, prepared: Mapping[str, Any], goal: str, repeat: int) -> RunFiles | None:
        if not self.writes:
            return None
        return claim_run(
            *(self.values["results_dir"], prepared["dataset"], self.method.name, goal, repeat, prepared["settings"]),
            **{name: self.values[name] for name in ("overwrite", "reuse", "resume")},
            by_rounds=self.method.by_rounds,
            say=log.info,
        )

    def _repeat(
        self, prepared: Mapping[str, Any], repeat: int, files: RunFiles | None, observers: Sequence[Observer]
    ) -> Repeat:
        if files:
            # beside the settings: how the run is carried out, and which flags its command has
            arguments = {name: value for name, value in sorted(prepared["values"].items()) if name in NOT_SETTINGS}
            arguments |= self.places
            point = "A: after download, before training"
            files.update(**run_info({"arguments": arguments, "given": self.given, "evaluation_point": point}))
        status, server, models, told = "failed", None, None, list[Observer]()
        try:
            with files.recording(self.values["keep_checkpoint"]) if files else nullcontext():
                context = self._context(prepared, repeat, result_path=files.h5 if files else None)
                server = self._server(context)
                self._check(server, files)
                for observer in observers:
                    told.append(observer)
                    observer.on_start(context)
                server.observers = told
                try:
                    server.train()
                finally:
                    server.recorder.close()
                status = "stopped" if server.recorder.stopped else "finished"
                if files:
                    files.stopped = server.recorder.stopped
                models = self._save_models(server, files)
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            if server:
                server.executor.close()
            arrays = as_arrays(server.recorder.lists()) if server else {}
            info = {**(files.info if files else {}), "status": status}
            done = Repeat(repeat, arrays, info, files.h5 if files else None, models)
            for observer in told:
                observer.on_end(done)
        if files:
            log.info(f"results: {files.h5}")
        return done

    def _check(self, server: Any, files: RunFiles | None) -> None:
        """The last look before training: says what is going to run, and refuses what would not end well."""
        context = server.args
        if context.dataset.digest() != context.data_digest:
            raise RunError(f"data set {context.dataset} was changed while this run was using it; start it again")
        parameters = list(context.model.parameters())
        size = sum(parameter.numel() for parameter in parameters)
        network = {
            "parameters": size,
            "frozen": sum(parameter.numel() for parameter in parameters if not parameter.requires_grad),
            "dtype": ", ".join(sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters})),
        }
        rounds = f"{context.global_rounds} round{'s' * (context.global_rounds != 1)}"
        log.info(
            f"{context.algorithm} on {context.dataset}: {context.num_clients} clients, {rounds}, {context.model_name} "
            f"with {size:,} parameters, executor {server.executor.name}"
        )
        if server.own_loop:
            log.info(f"{context.algorithm} brings its own round loop: its clients train one after another.")
        log.debug(f"settings: {', '.join(f'{name} {value}' for name, value in context.settings.items())}")
        if files:
            files.update(network=network, **server.privacy)
            identity = files.info | {
                "num_clients": context.num_clients,
                "settings_digest": settings_digest(but_rounds(context.settings)),
            }
            how = context.checkpoint_every, context.resume, log.info, context.keep_checkpoint, files.continued
            server.checkpoints = Checkpoints(files.h5, identity, *how)
            server.checkpoints.check(server)


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """torch's threads inside one operation are ``number`` in the body."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)

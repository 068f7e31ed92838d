"""One client's half of a federated algorithm, written once and run by any executor.

A rule is a set of static, pure functions on ``dict[str, Tensor]`` for ONE client, without a client axis. They hold no
data-dependent Python branch (masks instead), so the same code runs in a plain loop and under ``torch.func.vmap``.
`LocalRule.train` is the plain loop: the reference that every faster executor is tested against.

This file imports torch and `hyperparams` only: it is also copied into PFLlib checkouts, where `LocalRule` is mixed into
their `Client`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice, repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flcore.hyperparams import Settings
from flcore.trainmodel.forward import Forward, Tensors, load_tensors, shared_part, tensors_of
from flcore.trainmodel.optimizers import LocalOptimizer
from flcore.trainmodel.prototypes import class_prototypes

Data = tuple[Tensor, Tensor]


class Phase(NamedTuple):
    """A stretch of local training: how many epochs, and which parameters move meanwhile."""

    epochs: int
    moves: tuple[str, ...] = ("",)  # prefixes of parameter names
    loss: Callable[..., Tensor] | None = None  # None: the rule's own `local_loss`
    steps: int | None = None  # so many mini-batches instead, in as many passes as they take
    on_features: bool = False  # the extractor is fixed: its output z (B, K) takes the place of x in the loss

    def take(self, batches: Any) -> Iterator[Any]:
        """The mini-batches of its steps: ``batches`` again and again, each time anew."""
        passes = self.epochs if self.steps is None else -(-self.steps // max(len(batches), 1))
        return islice(chain.from_iterable(repeat(batches, passes)), self.steps)


def build_forward(rule: type[LocalRule], net: nn.Module, x: Tensor, hp: Settings) -> Forward:
    """Attaches the rule's personal modules to ``net`` and wraps it, for inputs shaped like those of ``x`` (n, ...).

    The modules get a random stream of their own: a method whose extra modules are switched off must not differ from
    the simpler method in anything else.
    """
    forward = Forward(net, x.new_zeros(1, *x.shape[1:]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(hp.module_seed)
        for name, module in rule.local_modules(forward, hp).items():
            net.add_module(name, module.to(x.device))
    return forward


def head_loss(
    forward: Forward, params: Tensors, z: Tensor, y: Tensor, shared: Tensors, state: Tensors, hp: Any
) -> Tensor:
    """Cross-entropy of the head on the extractor's output z (B, K): the loss of a phase ``on_features``."""
    return F.cross_entropy(forward.call("head", params, z), y)


def send_embeddings(
    forward: Forward, params: Tensors, data: Data, shared: Tensors, state: Tensors, hp: Any
) -> tuple[Tensors, Tensors]:
    """A `local_end` that uploads the class means of the extractor's output, and changes no state."""
    return state, {"embeddings": forward.in_batches(params, data[0])}


def train_step(
    loss_of: Callable[[], Tensor], correct: Callable[[Tensors], Tensors], moving: Tensors, optimizer: LocalOptimizer
) -> Tensor:
    """One step of ``optimizer`` on ``moving``, in place; returns the loss before it.

    The loss is a scalar, or (N,) for N clients stacked along the first axis of every tensor. These do not touch each
    other, so that the gradient of their sum holds the gradient of each.

    Args:
        loss_of: the loss at the present values of ``moving``.
        correct: from the gradients, by name, to those that the optimiser gets.
        moving: the parameters that move, which require gradients.
    """
    loss = loss_of()
    found = torch.autograd.grad(loss, list(moving.values()), torch.ones_like(loss), allow_unused=True)
    grads = {
        name: torch.zeros_like(value) if grad is None else grad
        for (name, value), grad in zip(moving.items(), found, strict=True)
    }
    with torch.no_grad():
        optimizer.step(moving, correct(grads))
    return loss.detach()


def safe_default(declared: type, field: str, value: object, hooks: set[str]) -> None:
    """Gives ``field`` its safe ``value`` where a class overrides one of the ``hooks`` without saying what it means."""
    owner = next(one for one in declared.__mro__ if field in vars(one) or not hooks.isdisjoint(vars(one)))
    if field not in vars(owner):
        setattr(declared, field, value)


class LocalRule:
    """The local half of an algorithm. Subclasses override the static hooks they need; the rest is plain FedAvg.

    Names shared by all hooks: ``forward`` (see `Forward`), ``params`` this client's parameters and buffers, ``data``
    all its training samples (x, y), ``shared`` this round's message from the server, the same for everybody (global
    weights under their parameter names, and whatever else the method sends), ``state`` this client's own tensors from
    earlier rounds, ``hp`` the settings (an instance of the rule's ``settings``), while training with the present
    ``round`` and the decayed ``lr``. All are read-only.
    """

    settings: type[Settings] = Settings  # the dataclass of the method's settings
    # What else a rule declares. A class that overrides the hook in question and does not say gets the safe value.
    stackable = True  # False: a rule that cannot run under vmap, such as a loop until convergence
    replaced: tuple[str, ...] = ("",)  # prefixes of shared weights whose former values a download makes needless
    corrects = False  # `local_grad` changes gradients

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        safe_default(cls, "replaced", (), {"receive", "local_begin"})
        safe_default(cls, "corrects", True, {"local_grad"})

    # ---- the rule: what an algorithm overrides -----------------------------------------------------------------------

    @classmethod
    def hyperparameters(cls, args: Any) -> Any:
        """What the hooks get as ``hp``: the rule's ``settings`` with the values of the run's ``args``."""
        decay = args.learning_rate_decay_gamma if args.learning_rate_decay else 1.0
        return cls.settings.of(args, lr=args.local_learning_rate, lr_decay=decay)

    @staticmethod
    def local_modules(forward: Forward, hp: Any) -> dict[str, nn.Module]:
        """Personal modules beside base and head, attached to the network under their names."""
        return {}

    @staticmethod
    def local_init(params: Tensors, hp: Any) -> Tensors:
        """The state before the first round. Its keys and shapes stay the same for the whole run."""
        return {}

    @staticmethod
    def local_begin(
        forward: Forward, params: Tensors, received: Tensors, data: Data, shared: Tensors, state: Tensors, hp: Any
    ) -> Tensors:
        """How the download is merged into this client's parameters; here it overwrites them."""
        return {**params, **received}

    @staticmethod
    def local_solve(forward: Forward, params: Tensors, data: Data, hp: Any) -> Tensors:
        """Parameters that do not train but follow from the others and the data, by name: called after every download
        and, before `local_end`, after training. Here none.
        """
        return {}

    @staticmethod
    def local_plan(hp: Any) -> list[Phase]:
        """The order of updates; here all parameters move together."""
        return [Phase(hp.local_epochs)]

    @staticmethod
    def local_loss(
        forward: Forward, params: Tensors, x: Tensor, y: Tensor, shared: Tensors, state: Tensors, hp: Any
    ) -> Tensor:
        """The objective on one mini-batch, a scalar mean over the batch; here cross-entropy."""
        return F.cross_entropy(forward(params, x)[0], y)

    @staticmethod
    def local_grad(grads: Tensors, params: Tensors, shared: Tensors, state: Tensors, hp: Any) -> Tensors:
        """Correction of the gradients before the optimiser's step, which adds weight decay and momentum to it."""
        return grads

    @staticmethod
    def local_draw(generator: Any, forward: Forward, size: int, hp: Any) -> Tensors:
        """Random numbers for one step on a batch of ``size`` samples; `local_loss` finds them in ``state``. Here none.

        Drawn on the CPU from the client's own ``generator`` of this round (`draws`), outside the differentiated part.
        """
        return {}

    @staticmethod
    def local_end(
        forward: Forward, params: Tensors, data: Data, shared: Tensors, state: Tensors, hp: Any
    ) -> tuple[Tensors, Tensors]:
        """After training: the new state, and what is uploaded besides the shared weights.

        A rule that sends class means does not make them. It uploads ``embeddings`` (n, D), of what they are the means,
        in the order of ``data``, and `end_training` makes ``prototypes`` (C, D) and ``counts`` (C,) of them.
        """
        return state, {}

    @staticmethod
    def local_predict(forward: Forward, params: Tensors, x: Tensor, shared: Tensors, state: Tensors, hp: Any) -> Tensor:
        """Scores (B, num_classes), the largest wins; here the logits."""
        return forward(params, x)[0]

    # ---- one client in PFLlib's shape --------------------------------------------------------------------------------

    frozen: Collection[str] = ()  # parameters that never move, since the network says so (``requires_grad`` False)
    model: nn.Module
    device: Any
    train_samples: int
    train_time_cost: dict[str, float]
    load_train_data: Callable[..., Any]

    def setup_rule(self, args: Any, forward: Forward | None = None) -> None:
        """Prepares the rule; to be called once the client's model and data are there (again does nothing).

        Args:
            args: the run's arguments.
            forward: a network to share with other clients of the same rule; None wraps this client's own model.
        """
        if hasattr(self, "hp"):
            return
        self.hp = self.hyperparameters(args)
        self.round = 0
        self.forward = forward or build_forward(type(self), self.model, self.data[0], self.hp)
        parameters = dict(self.forward.net.named_parameters())
        self.trainable = [name for name, value in parameters.items() if value.requires_grad]
        self.frozen = parameters.keys() - set(self.trainable)
        self.shared: Tensors = {}
        self.upload: Tensors = {}
        self.state = self.local_init(self.params, self.hp)
        self.train_loss = (0.0, 0)  # of the last phase: sum over samples, number of samples

    @property
    def params(self) -> Tensors:
        """This client's parameters and buffers: views, to be replaced but never changed in place."""
        return tensors_of(self.model)

    @params.setter
    def params(self, tensors: Tensors) -> None:
        load_tensors(self.model, tensors)

    @property
    def data(self) -> Data:
        """All training samples: x (n, ...), y (n), on the client's device."""
        if not hasattr(self, "_data"):
            samples = list(self.load_train_data().dataset)
            x, y = (torch.stack([torch.as_tensor(part) for part in column]) for column in zip(*samples, strict=True))
            self._data = x.to(self.device), y.to(self.device)
        return self._data

    def receive(self, message: Tensors, current_round: int) -> None:
        """Takes the server's message, at hand as ``shared`` from now on, and merges what is named like own weights."""
        self.round = current_round
        self.shared = message
        params = self.params
        received = {name: value for name, value in message.items() if name in params}
        data: Any = self.data if self.begins() else None  # not read for nothing: it may be far away
        merged = self.local_begin(self.forward, params, received, data, self.shared, self.state, self.hp)
        self.params = {**merged, **self.local_solve(self.forward, merged, data, self.hp)}

    @classmethod
    def begins(cls) -> bool:
        """Whether it does more with a download than the plain `local_begin`."""
        return cls.local_begin is not LocalRule.local_begin or cls.local_solve is not LocalRule.local_solve

    def message(self, shares: tuple[str, ...]) -> Tensors:
        """What goes up: the weights under the prefixes ``shares``, and what `local_end` adds."""
        return shared_part(self.params, shares, self.frozen) | self.upload

    def train(self) -> None:
        """One round of local training: the rule's plan, batch by batch."""
        started = time.time()
        hp = self.round_hp()
        params = {name: value if name in self.frozen else value.clone() for name, value in self.params.items()}
        batches, draws = self.load_train_data(), self.draws()
        self.train_loss = (0.0, 0)
        for phase in self.phases(hp):
            self.train_loss = self.run_phase(phase, params, batches, draws, hp)
        self.end_training(params, hp)
        self.train_time_cost["total_cost"] += time.time() - started

    def round_hp(self) -> Any:
        """The settings in this round's training."""
        return replace(self.hp, round=self.round, lr=self.hp.lr * self.hp.lr_decay**self.round)

    def phases(self, hp: Any) -> list[Phase]:
        """The rule's plan, without phases in which nothing moves."""
        return [phase for phase in self.local_plan(hp) if self.moving(phase)]

    def moving(self, phase: Phase) -> list[str]:
        """The names of the parameters that ``phase`` moves."""
        return [name for name in self.trainable if name.startswith(phase.moves)]

    def end_training(self, params: Tensors, hp: Any) -> None:
        """Takes over the trained ``params``, with what the rule makes of them."""
        params = {**params, **self.local_solve(self.forward, params, self.data, hp)}
        self.state, upload = self.local_end(self.forward, params, self.data, self.shared, self.state, hp)
        if own := {"prototypes", "counts"} & upload.keys():
            raise ValueError(f"{type(self).__name__}.local_end uploads {', '.join(sorted(own))}; give `embeddings`")
        if "embeddings" in upload:
            prototypes, counts = self.announce(*self.class_means(upload.pop("embeddings")))
            upload |= {"prototypes": prototypes, "counts": counts}
        self.upload, self.params = upload, params
        self.train_time_cost["num_rounds"] += 1

    def class_means(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Of the samples' embeddings z (n, D) the means of the classes (C, D), and the samples (C,) behind each.

        All class means that leave a client are made here, so that a host can blur them or leave some out.
        """
        return class_prototypes(z, self.data[1], self.hp.num_classes)

    def announce(self, prototypes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """What goes up of `class_means`; here both as they are. A rule may tell less, such as 1 for every number."""
        return prototypes, counts

    def draws(self) -> torch.Generator | None:
        """The generator of this round's `local_draw`; a host of rules that draw overrides it."""
        return None

    def run_phase(
        self, phase: Phase, params: Tensors, batches: Any, draws: torch.Generator | None, hp: Any
    ) -> tuple[float, int]:
        """Runs one phase on ``params`` in place; returns the sum of the loss over the samples, and their number."""
        loss_of = phase.loss or self.local_loss
        moving = {name: params[name].requires_grad_() for name in self.moving(phase)}
        correct, optimizer = partial(self._correct, params=params, hp=hp), LocalOptimizer(hp)
        total, count = torch.zeros((), device=self.device), 0
        for x, y, state in self.steps(phase, params, batches, draws, hp):
            loss = partial(loss_of, self.forward, params, x, y, self.shared, state, hp)
            total += train_step(loss, correct, moving, optimizer) * len(y)
            count += len(y)
        for value in moving.values():
            value.requires_grad_(False)
        return total.item(), count

    def _correct(self, grads: Tensors, params: Tensors, hp: Any) -> Tensors:
        return self.local_grad(grads, params, self.shared, self.state, hp)

    def steps(
        self, phase: Phase, params: Tensors, batches: Any, draws: torch.Generator | None, hp: Any
    ) -> Iterator[tuple[Tensor, Tensor, Tensors]]:
        """What each step of ``phase`` is about: a mini-batch (x, y), and the state with the step's random numbers.

        Sets the network to training where it moves. In a phase ``on_features`` x is what the extractor in ``params``
        makes of the samples.
        """
        cached = phase.on_features and hasattr(batches, "over")  # PFLlib's loader cannot: features batch by batch
        if cached:
            batches = batches.over(self.forward.in_batches(params, self.data[0]))
        self.forward.set_training(phase.moves)
        for x, y in phase.take(batches):
            x, y = x.to(self.device), y.to(self.device)
            if phase.on_features and not cached:
                with torch.no_grad():
                    x, _ = self.forward.features(params, x)
            drawn = self.local_draw(draws, self.forward, len(y), hp)
            yield x, y, self.state | {name: value.to(self.device) for name, value in drawn.items()}

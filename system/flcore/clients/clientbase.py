"""What one participant owns: weights, personal state, data. PFLlib's attributes and methods around a `LocalRule`."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flcore.clients.localrule import PASS_BATCH, Data, LocalRule, Tensors, build_forward
from flcore.clients.support import privacy
from flcore.trainmodel.weights import Kept, Weights
from flcore.utils.runs.files import whole_file
from flcore.utils.seeds import torch_generator


class Batches:
    """Mini-batches of tensors that lie in memory, shuffled anew by every pass.

    As in PFLlib an incomplete last batch is dropped, but a client with fewer samples than a batch trains on all it has.
    """

    def __init__(
        self, data: Data, batch_size: int, generator: torch.Generator | None = None, smallest: int = 1
    ) -> None:
        self.dataset = torch.utils.data.TensorDataset(*data)
        size = len(self.dataset)
        self.batch_size = size if batch_size < 0 else min(batch_size, size)
        self.generator = generator  # None: all samples in their order (evaluation)
        self.smallest = smallest  # samples that a batch needs (BatchNorm cannot train on one)

    def __len__(self) -> int:
        size = len(self.dataset)
        if self.batch_size < self.smallest:
            return 0
        return size // self.batch_size if self.generator else -(-size // self.batch_size)

    def __iter__(self) -> Iterator[Data]:
        x, y = self.dataset.tensors
        if self.generator:
            for chosen in self.order().to(y.device):
                yield x[chosen], y[chosen]
        elif len(self):
            yield from zip(x.split(self.batch_size), y.split(self.batch_size), strict=True)

    def order(self) -> Tensor:
        """The samples of the next shuffled pass: (number of mini-batches, batch size), on the CPU."""
        size, count = len(self.dataset), len(self)
        return torch.randperm(size, generator=self.generator)[: count * self.batch_size].view(count, self.batch_size)

    def over(self, x: Tensor) -> Batches:
        """The same mini-batches in the same order, with other inputs ``x`` (n, ...) for the samples."""
        other = copy.copy(self)
        other.dataset = torch.utils.data.TensorDataset(x, self.dataset.tensors[1])
        return other


class Client(LocalRule):
    """One participant. Subclasses either override the rule's hooks or, as in PFLlib, `train` itself.

    Args:
        args: the run's arguments; ``args.model`` is the common initial network.
        id: index of the participant, the ``<id>.npz`` of its data.
        train_samples, test_samples: numbers of samples.
        train_data, test_data: tensors (x, y) if the caller has them already; read from the data set otherwise.
        forward: the network shared by the clients of one rule (see `LocalRule.setup_rule`).
        store: where the client's own tensors may lie (see `StateStore`); None: in memory.
    """

    # attributes that a later round reads, beside the message ``shared``, for checkpoints; a subclass adds its own ones
    remembers: tuple[str, ...] = (
        "params",
        "state",
        "round",
        "passes",
        "train_loss",
        "train_time_cost",
        "send_time_cost",
    )

    def __init__(self, args: Any, id: int, train_samples: int, test_samples: int, **kwargs: Any) -> None:
        self.args = args
        self.algorithm, self.dataset, self.device = args.algorithm, args.dataset, args.device
        self.id, self.train_samples, self.test_samples = id, train_samples, test_samples
        self.num_classes, self.batch_size, self.few_shot = args.num_classes, args.batch_size, args.few_shot
        self.local_epochs, self.learning_rate = args.local_epochs, args.local_learning_rate
        self.learning_rate_decay = args.learning_rate_decay
        self.save_folder_name = args.save_folder_name
        self.train_slow, self.send_slow = kwargs.get("train_slow", False), kwargs.get("send_slow", False)
        self.train_time_cost = {"num_rounds": 0, "total_cost": 0.0}
        self.send_time_cost = {"num_rounds": 0, "total_cost": 0.0}
        self.loss = nn.CrossEntropyLoss()
        self._tensors: dict[bool, Data] = {}
        for is_train, name in ((True, "train_data"), (False, "test_data")):
            if kwargs.get(name) is not None:
                self._tensors[is_train] = self._place(kwargs[name])
        self.round = self.passes = 0
        self.shared: Tensors = {}
        store = kwargs.get("store") if self.has_rule() else None
        self._kept: Kept = store.shelf(id, self._common_tensors) if store else {}
        self.state = {}
        if self.has_rule():
            forward = kwargs.get("forward") or build_forward(
                type(self), copy.deepcopy(args.model), self.data[0], self.hyperparameters(args)
            )
            self._network = forward.net
            self.weights = Weights(forward.net, self._kept)
            self.setup_rule(args, forward)
        else:
            self.weights = Weights(args.model)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.learning_rate)
            self.learning_rate_scheduler = torch.optim.lr_scheduler.ExponentialLR(
                self.optimizer, gamma=args.learning_rate_decay_gamma
            )

    @classmethod
    def has_rule(cls) -> bool:
        """False for a PFLlib-style client that brings its own `train`."""
        return cls.train is LocalRule.train

    def __init_subclass__(cls) -> None:
        """A rule cannot go round `class_means`, where --proto_noise and --proto_min_count act.

        Raises:
            TypeError: this one would.
        """
        if own := {"message", "end_training", "class_means"} & vars(cls).keys():
            raise TypeError(
                f"{cls.__name__} overrides {', '.join(sorted(own))}; `local_end` and `announce` are for rules"
            )

    def class_means(self, z: Tensor) -> tuple[Tensor, Tensor]:
        key = self.args.repeat, self.round, self.id
        return privacy.class_means(z, self.data[1], self.num_classes, self.args, *key)

    # ---- weights and data --------------------------------------------------------------------------------------------

    @property
    def model(self) -> nn.Module:
        """PFLlib's module; asking for it gives this client a private copy (see `Weights`)."""
        return self.weights.module

    @model.setter
    def model(self, module: nn.Module) -> None:
        self.weights.module = module

    @property
    def has_BatchNorm(self) -> bool:  # noqa: N802  (PFLlib's name)
        net = self.forward.net if self.has_rule() else self.model
        return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in net.modules())

    @property
    def params(self) -> Tensors:
        return self.weights.tensors

    @params.setter
    def params(self, tensors: Tensors) -> None:
        self.weights.tensors = tensors

    @property
    def state(self) -> Tensors:
        return self._kept["state"]

    @state.setter
    def state(self, tensors: Tensors) -> None:
        self._kept["state"] = tensors

    def _common_tensors(self) -> Iterator[Tensor]:
        """What this client shares with others: the initial weights and the download."""
        yield from self._network.state_dict().values()
        yield from self.shared.values()

    def is_replaced(self, name: str) -> bool:
        """Whether a download that holds the weights ``name`` replaces them, whatever they were.

        A rule with a `local_begin` of its own says so itself.
        """
        rule = type(self)
        return rule.local_begin is LocalRule.local_begin and rule.receive is LocalRule.receive

    def release(self) -> None:
        """Between rounds: drops what the next download replaces, and the upload, so that they hold no memory."""
        received = {name: value for name, value in self.shared.items() if self.is_replaced(name)}
        self.params = {name: received.get(name, value) for name, value in self.params.items()}
        self.upload = {}

    def tensors(self, is_train: bool) -> Data:
        """All samples of one split: x (n, ...), y (n), read once and kept on the device."""
        if is_train not in self._tensors:
            self._tensors[is_train] = self._place(self.dataset.tensors(self.id, is_train, self.few_shot))
        return self._tensors[is_train]

    def _place(self, data: Data) -> Data:
        """On the device, and on a CPU in the memory layout that the model is fastest with: convolutions follow it."""
        x, y = (part.to(self.device) for part in data)
        layout = getattr(getattr(self.args.model, "base", None), "layout", None)
        if layout and self.has_rule() and x.device.type == "cpu" and x.dim() == 4:
            x = torch.empty(x.shape, dtype=x.dtype, memory_format=layout).copy_(x)
        return x, y

    @property
    def data(self) -> Data:
        return self.tensors(is_train=True)

    def load_train_data(self, batch_size: int | None = None) -> Batches:
        """Shuffled mini-batches; the order depends on (seed, repeat, round, client, pass) alone."""
        self.passes += 1
        key = (self.args.repeat, self.round, self.id, "train", self.passes if not self.has_rule() else 0)
        generator = torch_generator(self.args.seed, *key)
        return Batches(self.data, batch_size or self.batch_size, generator, smallest=2 if self.has_BatchNorm else 1)

    def draws(self) -> torch.Generator:
        return torch_generator(self.args.seed, self.args.repeat, self.round, self.id, "draw")

    def load_test_data(self, batch_size: int | None = None) -> Batches:
        return Batches(self.tensors(is_train=False), batch_size or PASS_BATCH)

    # ---- evaluation --------------------------------------------------------------------------------------------------

    def scores(self, is_train: bool) -> tuple[Tensor, Tensor]:
        """Scores (n, num_classes) and labels (n) of one split, with the client's present weights."""
        x, y = self.tensors(is_train)
        return self.scores_of(x), y

    def scores_of(self, x: Tensor) -> Tensor:
        """Scores (n, num_classes) of any samples x (n, ...)."""
        with torch.no_grad():
            parts = [self._predict(part) for part in x.split(PASS_BATCH)] if len(x) else []
        return torch.cat(parts) if parts else x.new_zeros(0, self.num_classes)

    @classmethod
    def scored_by_rule(cls) -> bool:
        """Whether test metrics come from `local_predict` alone, so that many clients can be scored at once."""
        own = ("test_metrics", "scores", "_predict")
        return cls.has_rule() and all(getattr(cls, name) is getattr(Client, name) for name in own)

    def scored_like(self, other: Client) -> bool:
        """Whether both give the same scores to the same sample: all that `local_predict` sees is the same."""
        return (
            type(self).scored_by_rule()
            and type(self) is type(other)
            and self.forward is other.forward
            and self.shared is other.shared
            and same_objects(self.params, other.params)
            and same_objects(self.state, other.state)
        )

    def _predict(self, x: Tensor) -> Tensor:
        if not self.has_rule():
            self.model.eval()
            return self.model(x)
        self.forward.set_training(())
        return self.local_predict(self.forward, self.params, x, self.shared, self.state, self.hp)

    def test_metrics(self) -> tuple[int, int, float]:
        """Correct predictions, number of samples, AUC; see `metrics`."""
        return metrics(*self.scores(is_train=False))

    def train_metrics(self) -> tuple[float, int]:
        """Sum of the cross-entropy over all training samples, and their number."""
        scores, y = self.scores(is_train=True)
        return float(nn.functional.cross_entropy(scores, y, reduction="sum")) if len(y) else 0.0, len(y)

    # ---- PFLlib's helpers --------------------------------------------------------------------------------------------

    def set_parameters(self, model: nn.Module) -> None:
        """Takes over all parameters and buffers of ``model``."""
        self.params = {**self.params, **{name: value.clone() for name, value in model.state_dict().items()}}

    def clone_model(self, model: nn.Module, target: nn.Module) -> None:
        """Copies the parameters of ``model`` into ``target``."""
        self.update_parameters(target, list(model.parameters()))

    def update_parameters(self, model: nn.Module, new_params: Any) -> None:
        with torch.no_grad():
            for old, new in zip(model.parameters(), new_params, strict=False):
                old.copy_(new)

    def save_item(self, item: Any, item_name: str, item_path: str | None = None) -> None:
        save_item(item, Path(item_path or self.save_folder_name) / f"client_{self.id}_{item_name}.pt")

    def load_item(self, item_name: str, item_path: str | None = None) -> Any:
        return load_item(Path(item_path or self.save_folder_name) / f"client_{self.id}_{item_name}.pt", self.device)


def metrics(scores: Tensor, y: Tensor) -> tuple[int, int, float]:
    """Of scores (n, C) for labels y (n): correct predictions, n, micro-averaged one-vs-rest AUC (nan where undefined).

    A sample whose scores are not finite is not predicted correctly.
    """
    scores, y = scores.cpu(), y.cpu()  # once, instead of waiting for a device at every number
    correct = (scores.argmax(1) == y) & scores.isfinite().all(1)
    return int(correct.sum()), len(y), micro_auc(scores, y)


def micro_auc(scores: Tensor, y: Tensor) -> float:
    """AUC over all (sample, class) pairs of scores (n, C) against labels y (n), on the CPU; nan where undefined.

    From the sum of the true pairs' ranks (Mann and Whitney, 1947); the number of sklearn's roc_auc_score, but faster.
    """
    if len(y) == 0 or scores.shape[1] < 2 or not bool(scores.isfinite().all()):
        return float("nan")
    true, pairs = len(y), scores.numel()
    ordered = np.sort(np.asarray(scores), axis=None)
    own = np.asarray(scores.gather(1, y[:, None]))
    ranks = (np.searchsorted(ordered, own, "left") + np.searchsorted(ordered, own, "right") + 1) / 2  # ties: their mean
    return float((ranks.sum() - true * (true + 1) / 2) / (true * (pairs - true)))


def same_objects(some: Tensors, others: Tensors) -> bool:
    """Whether two dicts hold the very same tensors."""
    return some.keys() == others.keys() and all(others[name] is value for name, value in some.items())


def save_item(item: Any, path: Path) -> None:
    """Saves tensors, containers of them, or a module's state, never a pickled object; complete or not at all."""
    with whole_file(path) as partial:
        torch.save(copy.copy(item.state_dict()) if isinstance(item, nn.Module) else item, partial)


def load_item(path: Path, device: Any) -> Any:
    return torch.load(path, weights_only=True, map_location=device)

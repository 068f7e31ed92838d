"""What one participant owns: weights, personal state, data. PFLlib's attributes and methods around a `LocalRule`."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from flcore.clients.localrule import Data, LocalRule, Phase, build_forward, safe_default
from flcore.clients.support import pfllib_host, privacy
from flcore.clients.support.batches import Batches
from flcore.clients.support.metrics import Metrics, metrics
from flcore.trainmodel.draws import drawing
from flcore.trainmodel.forward import PASS_BATCH, Forward, Tensors, tensors_of
from flcore.trainmodel.weights import Kept, Weights
from flcore.utils.seeds import torch_generator


class Client(pfllib_host.PFLlibMethods, LocalRule):
    """One participant. Subclasses override the rule's hooks; PFLlib's, with a `train` of their own, are hosted as well.

    Args:
        args: the run's arguments; ``args.model`` is the common initial network.
        id: index of the participant, the ``<id>.npz`` of its data.
        train_samples, test_samples: numbers of samples.
        train_data, test_data: tensors (x, y) if the caller has them already.
        source: gives them otherwise, by (id, is_train), see `Maker.data`; None: the data set as it is.
        forward: the network shared by the clients of one rule (see `LocalRule.setup_rule`).
        store: where the client's own tensors may lie (see `StateStore`); None: in memory.
    """

    # attributes that a later round reads, beside the message ``shared``, for checkpoints; a subclass adds its own ones
    remembers: tuple[str, ...] = (
        "params",
        "state",
        "round",
        "train_loss",
        "train_time_cost",
        "send_time_cost",
    )

    own_training = False  # True: brings its own `train`, as PFLlib's clients do
    optimizer: Any = None  # of such a client
    learning_rate_scheduler: Any = None
    parallel = True  # may train beside others in threads
    scored_by_rule = True  # test metrics come from `local_predict` alone, so that many clients can be scored at once

    def __init_subclass__(cls, **options: Any) -> None:
        """Raises TypeError for a rule that would go round `class_means`, where --proto_noise and its like act."""
        super().__init_subclass__(**options)
        if own := {"message", "end_training", "class_means"} & vars(cls).keys():
            raise TypeError(
                f"{cls.__name__} overrides {', '.join(sorted(own))}; `local_end` and `announce` are for rules"
            )
        pfllib_host.adopt(cls)
        safe_default(cls, "scored_by_rule", False, {"test_metrics", "scores", "scores_of", "_predict"})

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
        self.source = kwargs.get("source")
        self._tensors: dict[bool, Data] = {}
        for is_train, name in ((True, "train_data"), (False, "test_data")):
            if kwargs.get(name) is not None:
                self._tensors[is_train] = self._place(kwargs[name])
        self.round = 0
        self.shared: Tensors = {}
        self._kept: Kept = {}
        self.state = {}
        self.set_up(args, kwargs.get("forward"), kwargs.get("store"))

    @classmethod
    def network(cls, args: Any, x: Tensor) -> Any:
        """The network of this class for inputs like x (n, ...), which all its clients may share."""
        return build_forward(cls, copy.deepcopy(args.model), x.to(args.device), cls.hyperparameters(args))

    def set_up(self, args: Any, forward: Forward | None = None, store: Any = None) -> None:
        """Prepares the rule with the common initial weights."""
        if store:
            self._kept = store.shelf(self.id, self._common_tensors)
            self.state = {}
        forward = forward or self.network(args, self.data[0])
        self._network = forward.net
        self.weights = Weights(forward.net, self._kept)
        self.setup_rule(args, forward)

    def class_means(self, z: Tensor) -> tuple[Tensor, Tensor]:
        key = self.args.repeat, self.round, self.id
        return privacy.class_means(z, self.data[1], self.num_classes, self.args, *key)

    # ---- weights and data --------------------------------------------------------------------------------------------

    @property
    def has_BatchNorm(self) -> bool:  # noqa: N802  (PFLlib's name)
        return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self.weights.net.modules())

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

    def release(self) -> None:
        """Between rounds: drops what the next download replaces, and the upload, so that they hold no memory."""
        received = {name: value for name, value in self.shared.items() if name.startswith(self.replaced)}
        self.params = {name: received.get(name, value) for name, value in self.params.items()}
        self.upload = {}

    def rest(self) -> bool:
        """Until it is needed again: drops the data, which are then read anew, the last message, and the weights that
        the next one replaces. Returns whether there is anything left that a new client would not have.
        """
        initial, personal = tensors_of(self._network), set(self.params)
        if self.shared:
            personal -= {name for name in self.shared if name.startswith(self.replaced)}
            self.params = {n: value if n in personal else initial[n] for n, value in self.params.items()}
        self.without_data().shared = {}
        return bool(self.train_time_cost["num_rounds"]) and bool(self.state or personal - set(self.frozen))

    def without_data(self) -> Client:
        """Lets go of its data, which are read anew when they are needed."""
        self._tensors = {}
        return self

    @property
    def idle(self) -> bool:
        """Whether it has too few samples for a training step."""
        size = self.train_samples if self.batch_size < 0 else min(self.batch_size, self.train_samples)
        return size < (2 if self.has_BatchNorm else 1)

    def tensors(self, is_train: bool) -> Data:
        """All samples of one split: x (n, ...), y (n), read once and kept on the device."""
        if is_train not in self._tensors:
            read = self.source.data(self.id, is_train) if self.source else None
            self._tensors[is_train] = self._place(read or self.dataset.tensors(self.id, is_train, self.few_shot))
        return self._tensors[is_train]

    def _place(self, data: Data) -> Data:
        """On the device."""
        x, y = (part.to(self.device) for part in data)
        return laid_out(x, self.args.model), y

    @property
    def data(self) -> Data:
        return self.tensors(is_train=True)

    def load_train_data(self, batch_size: int | None = None) -> Batches:
        """Shuffled mini-batches; the order depends on (seed, repeat, round, client) alone."""
        return self._batches(batch_size, 0)

    def _batches(self, batch_size: int | None, number: int) -> Batches:
        """Shuffled mini-batches; the ``number`` keys their order too."""
        generator = torch_generator(self.args.seed, self.args.repeat, self.round, self.id, "train", number)
        return Batches(self.data, batch_size or self.batch_size, generator, smallest=2 if self.has_BatchNorm else 1)

    def peek(self, number: int) -> list[Data]:
        """The first ``number`` mini-batches of the next pass, which it will give all the same."""
        return list(islice(self.load_train_data(), number))

    def draws(self) -> torch.Generator:
        return torch_generator(self.args.seed, self.args.repeat, self.round, self.id, "draw")

    def load_test_data(self, batch_size: int | None = None) -> Batches:
        return Batches(self.tensors(is_train=False), batch_size or PASS_BATCH)

    def run_phase(
        self, phase: Phase, params: Tensors, batches: Any, draws: torch.Generator | None, hp: Any
    ) -> tuple[float, int]:
        with drawing(self.forward, [draws or self.draws()]):
            return super().run_phase(phase, params, batches, draws, hp)

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

    def scored_like(self, other: Client) -> bool:
        """Whether both give the same scores to the same sample: all that `local_predict` sees is the same."""
        return (
            self.scored_by_rule
            and type(self) is type(other)
            and self.forward is other.forward
            and self.shared is other.shared
            and same_objects(self.params, other.params)
            and same_objects(self.state, other.state)
        )

    def _predict(self, x: Tensor) -> Tensor:
        self.forward.set_training(())
        return self.local_predict(self.forward, self.params, x, self.shared, self.state, self.hp)

    def test_metrics(self) -> Metrics:
        """Correct predictions, number of samples, AUC; see `metrics`."""
        return metrics(*self.scores(is_train=False))


def laid_out(x: Tensor, net: nn.Module) -> Tensor:
    """Samples, on a CPU in the memory layout that the network is fastest with: convolutions follow it."""
    layout = getattr(getattr(net, "base", None), "layout", None)
    if isinstance(layout, torch.memory_format) and x.device.type == "cpu" and x.dim() == 4:
        x = torch.empty(x.shape, dtype=x.dtype, memory_format=layout).copy_(x)
    return x


def same_objects(some: Tensors, others: Tensors) -> bool:
    """Whether two dicts hold the very same tensors."""
    return some.keys() == others.keys() and all(others[name] is value for name, value in some.items())

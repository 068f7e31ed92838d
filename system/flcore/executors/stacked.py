"""All clients of a round at once: their weights stacked along a new first axis, a rule's loss run over it by vmap.

Made for a GPU, where a step of one client is a queue of kernels too small to fill it; on a CPU `threads` is faster.
Equal to the loop up to rounding: same mini-batches, same random draws, same functions, in a step that is the loop's
(`train_step`), whose loss has one value a client.

Clients with the same batch size form a group, longest first, so that those with steps left are a prefix of the stack
and no work is masked away. Weights and buffers (BatchNorm's statistics move in place, also under vmap) are stacked,
the server's message and the hyper-parameters are common, the samples of a stack are one tensor on the device, out of
which precomputed indices take each step's mini-batches. Evaluation and the features of a fixed extractor take few
passes too: clients with few samples share one. What a rule does after its steps (prototypes) goes client by client
through its own functions, in large batches.

A convolution with weights of its own for each client becomes one grouped convolution, PyTorch's own rule under vmap.
Nothing here was measured on a GPU: neither that form against others, nor CUDA graphs and compilation, which are left
out.

What vmap refuses (branches on values) runs in the loop and says so once.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from flcore.clients.localrule import Phase, train_step
from flcore.clients.support.batches import Batches
from flcore.clients.support.metrics import Metrics, metrics
from flcore.executors.loop import LoopExecutor, named, train_one
from flcore.executors.stack import each, schedule, stack, unstack
from flcore.trainmodel.draws import drawing
from flcore.trainmodel.forward import Tensors
from flcore.trainmodel.optimizers import LocalOptimizer

log = logging.getLogger(__name__)

Member = tuple[Any, Batches]  # a client and its mini-batches of this round

CPU_BUDGET = 2**30  # bytes: larger stacks gain nothing on a CPU
SHARE = 0.8  # of a GPU's free memory: libraries take workspaces, and the allocator has gaps


class StackedExecutor(LoopExecutor):
    """
    Args:
        stack_size: so many clients at once; "auto": as many as a memory budget holds (see `budget`, `bytes_needed`).
    """

    name = "stacked"

    def __init__(self, stack_size: int | str = "auto") -> None:
        self.stack_size = 0 if stack_size == "auto" else int(stack_size)
        self._needs: dict[Any, int] = {}  # bytes a client of a kind; 0: cannot be stacked
        self._said: set[str] = set()

    def train(self, clients: Sequence[Any], done: Callable[[], object]) -> None:
        groups: dict[Any, list[Member]] = {}
        for client in clients:
            batches = self._batches(client)
            if batches is None:
                train_one(client)
                done()
            else:
                kind = type(client), id(client.forward), id(client.shared), batches.batch_size
                groups.setdefault(kind, []).append((client, batches))
        for group in groups.values():
            group.sort(key=lambda member: -len(member[1]))
            size = self._size(group)
            for start in range(0, len(group), size or len(group)):
                chunk = group[start : start + (size or len(group))]
                if not (size and self._train_together(chunk)):
                    for client, _ in chunk:
                        train_one(client)
                for _ in chunk:
                    done()

    def test(self, clients: Sequence[Any]) -> list[Metrics]:
        """Test metrics of every client; those with few samples are scored together, see `each`."""
        groups: dict[Any, list[int]] = {}
        for i, client in enumerate(clients):
            if client.scored_by_rule and client.stackable and client.test_samples:
                groups.setdefault((type(client), id(client.forward), id(client.shared)), []).append(i)
        found: dict[int, Metrics] = {}
        for group in groups.values():
            found |= dict(zip(group, self._test_together([clients[i] for i in group]), strict=False))
        return [found[i] if i in found else client.test_metrics() for i, client in enumerate(clients)]

    def score(self, units: Sequence[Sequence[Any]]) -> list[Metrics]:
        return self.test([client for unit in units for client in unit])

    def _test_together(self, clients: list[Any]) -> list[Metrics]:
        """Nothing if it did not work."""
        rule = clients[0]
        rule.forward.set_training(())

        def predict(params: Tensors, state: Tensors, x: Tensor) -> Tensor:
            scores: Tensor = rule.local_predict(rule.forward, params, x, rule.shared, state, rule.hp)
            return scores

        params, states = [client.params for client in clients], [client.state for client in clients]
        data = [client.tensors(is_train=False) for client in clients]
        try:
            with torch.no_grad():
                scores = each(predict, params, states, [x for x, _ in data], most_models(clients[0]))
        except Exception as error:
            self._refused(f"the evaluation of {rule.algorithm}", error)
            return []
        return [metrics(own, y) for own, (_, y) in zip(scores, data, strict=True)]

    def _batches(self, client: Any) -> Batches | None:
        """This round's mini-batches; None for a client that must run alone."""
        if not client.stackable:
            self._say(f"the rule of {client.algorithm} cannot be stacked", "its clients run in the loop")
        else:
            with named(client):
                batches = client.load_train_data()
            return batches if isinstance(batches, Batches) else None
        return None

    def _size(self, group: list[Member]) -> int:
        """Clients at once; 0: this group cannot be stacked."""
        client, batches = group[0]
        if not len(batches):
            return self.stack_size or len(group)
        kind = type(client), batches.batch_size, *client.shared, None, *client.state  # what a rule may branch on
        if kind not in self._needs:
            try:
                self._needs[kind] = bytes_needed(client, batches)
            except Exception as error:
                self._needs[kind] = 0
                self._refused(client.algorithm, error)
        needed = self._needs[kind]
        return needed and (self.stack_size or max(1, budget(client.device) // (needed + data_bytes(client))))

    def _train_together(self, chunk: list[Member]) -> bool:
        """False: it did not work, and nothing has changed."""
        clients = [client for client, _ in chunk]
        first, started = clients[0], time.time()
        hp = first.round_hp()
        losses = [(0.0, 0)] * len(clients)
        try:
            run = Stack(chunk)
            for phase in first.phases(hp):
                losses = run.train(phase, hp)
        except Exception as error:
            self._refused(f"clients {[client.id for client in clients]} of {first.algorithm}", error)
            return False
        seconds = time.time() - started
        samples = sum(client.train_samples for client in clients)
        for i, client in enumerate(clients):
            before = time.time()
            client.train_loss = losses[i]
            with named(client):
                client.end_training(run.weights_of(i), hp)
            own = seconds * client.train_samples / max(samples, 1)
            client.train_time_cost["total_cost"] += own + time.time() - before
        return True

    def _refused(self, who: str, error: Exception) -> None:
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        self._say(f"{who} cannot be stacked ({reason[:200]})", "run in the loop")

    def _say(self, what: str, then: str) -> None:
        if what not in self._said:
            self._said.add(what)
            log.warning(f"stacked: {what}; {then}.")


class Stack:
    """Some clients' weights, states and samples together, while they train. Longest first."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.clients = [client for client, _ in members]
        self.batches = [batches for _, batches in members]
        self.rule = self.clients[0]
        first = self.rule.params
        self.names = list(first)
        self.common = {name: first[name] for name in self.rule.frozen}  # the same for all, and never stacked
        own = [name for name in self.names if name not in self.common]
        self.params = stack([{name: client.params[name] for name in own} for client in self.clients])
        self.state = stack([client.state for client in self.clients])
        data = [batches.dataset.tensors for batches in self.batches]
        self.x, self.y = (torch.cat(parts) for parts in zip(*data, strict=True))
        self.draws = [client.draws() for client in self.clients]

    def train(self, phase: Phase, hp: Any) -> list[tuple[float, int]]:
        """Runs ``phase``; of every client the sum of the loss over the samples, and their number."""
        rule, forward, shared = self.rule, self.rule.forward, self.rule.shared
        loss_of = phase.loss or rule.local_loss
        rows, starts = [], 0
        for batches in self.batches:
            rows.append(batches.steps(phase) + starts)
            starts += len(batches.dataset)
        lengths = [len(order) for order in rows]
        index = torch.nn.utils.rnn.pad_sequence(rows).to(self.y.device)  # (steps, clients, batch size)
        x = self._features() if phase.on_features else self.x
        forward.set_training(phase.moves)

        # What a network draws comes from each client's own generator, which vmap itself cannot do.
        randomness = "same" if forward.draws else "error"

        def loss_of_one(number: Tensor, params: Tensors, x: Tensor, y: Tensor, state: Tensors) -> Tensor:
            with drawing(forward, self.draws[:live], number):
                return loss_of(forward, self.common | params, x, y, shared, state, hp)

        def correct_one(params: Tensors, state: Tensors, grads: Tensors) -> Tensors:
            corrected: Tensors = rule.local_grad(grads, self.common | params, shared, state, hp)
            return corrected

        size, step, optimizer = self.batches[0].batch_size, 0, LocalOptimizer(hp)
        totals = torch.zeros(len(rows), device=self.y.device)
        for steps, live in schedule(lengths):
            params = {name: value[:live].detach() for name, value in self.params.items()}  # the stack's own memory
            state = {name: value[:live] for name, value in self.state.items()}
            moving = {name: params[name].requires_grad_() for name in rule.moving(phase)}
            correct = partial(vmap(correct_one), params, state) if rule.corrects else dict
            numbers = torch.arange(live, device=self.y.device)
            for chosen in index[step : step + steps, :live]:
                drawn = state | self._draw(live, size, hp)
                one_step = vmap(loss_of_one, randomness=randomness)
                loss = partial(one_step, numbers, params, x[chosen], self.y[chosen], drawn)
                totals[:live] += train_step(loss, correct, moving, optimizer) * size
            step += steps
        return [(total, size * length) for total, length in zip(totals.tolist(), lengths, strict=True)]

    def weights_of(self, index: int) -> Tensors:
        """One client's weights, its own ones copied out of the stack."""
        found = self.common | unstack(self.params, index)
        return {name: found[name] for name in self.names}

    def _features(self) -> Tensor:
        """z of all samples, by each client's present extractor."""
        forward = self.rule.forward
        forward.set_training(())
        stacks = self.params.items()
        own = [self.common | {name: value[i] for name, value in stacks} for i in range(len(self.batches))]
        data = [batches.dataset.tensors[0] for batches in self.batches]
        with torch.no_grad():
            features = each(
                lambda params, _, x: forward.features(params, x)[0], own, [{}] * len(own), data, most_models(self.rule)
            )
        return torch.cat(features)

    def _draw(self, live: int, size: int, hp: Any) -> Tensors:
        drawn = stack([self.rule.local_draw(generator, self.rule.forward, size, hp) for generator in self.draws[:live]])
        return {name: value.to(self.y.device) for name, value in drawn.items()}


def bytes_needed(client: Any, batches: Batches) -> int:
    """Memory for one more client in a stack, without its samples.

    The stack of its weights and their copy at the end, its state, two sets of gradients (found, corrected), the
    optimiser's memory, and twice what autograd keeps for the backward pass: the tensors themselves and about as much
    for their gradients. The last is measured, with one step of each phase on the client's first samples that is thrown
    away. Not counted: workspaces of the convolutions, and what operations need for a moment.

    Raises:
        Exception: whatever vmap or the rule says where the rule does not run stacked.
    """
    size, hp = batches.batch_size, client.round_hp()
    x, y = (part[:size] for part in batches.dataset.tensors)
    run = Stack([(client, Batches((x, y), size, torch.Generator()))])
    weights = {value.untyped_storage().data_ptr() for value in (*run.params.values(), *run.common.values())}
    most = 0
    for phase in client.phases(hp):
        kept: dict[int, int] = {}

        def keep(tensor: Tensor, kept: dict[int, int] = kept) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            run.train(phase._replace(epochs=1, steps=None), hp)
        moving = sum(run.params[name].nbytes for name in client.moving(phase))
        most = max(most, (2 + LocalOptimizer(hp).kept_per_parameter) * moving + 2 * sum(kept.values()))
    own = sum(value.nbytes for value in run.params.values())
    return 2 * own + sum(value.nbytes for value in run.state.values()) + most


def most_models(client: Any) -> int:
    """Clients whose weights may be stacked for a pass without gradients, beside their own copies."""
    return max(1, int(budget(client.device) // (2 * sum(value.nbytes for value in client.params.values()))))


def data_bytes(client: Any) -> int:
    return sum(part.nbytes for part in client.data)


def budget(device: Any) -> int:
    """Bytes for a stack: most of the free memory of a GPU; elsewhere half of the free memory, at most `CPU_BUDGET`."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(SHARE * (free + idle))
    try:
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not every system says
        return CPU_BUDGET
    return min(CPU_BUDGET, available // 2)

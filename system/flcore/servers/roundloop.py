"""The server's half: one round loop for every algorithm.

Messages (see `messages`) go down with the shared weights and whatever else the method broadcasts, and come up with the
client's version of those weights and what its rule adds (`LocalRule.local_end`).

This file is portable: it is also copied into PFLlib checkouts, where a method's server names `RoundLoop`, or a class
made of it, before their `Server`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from flcore.servers.messages import message_bytes, weighted_mean
from flcore.trainmodel.forward import Tensors, load_tensors, shared_part, tensors_of


class RoundLoop:
    """Select, send, score, train, receive, aggregate."""

    shares: tuple[str, ...] = ("",)  # prefixes of the parameter names that travel; () for nothing, ("",) for all
    executor: Any = None  # runs many clients; None: one after another

    # what the loop uses of PFLlib's Server
    clients: Sequence[Any]
    selected_clients: list[Any]
    global_model: nn.Module
    global_rounds: int
    eval_gap: int
    auto_break: bool
    top_cnt: int
    client_drop_rate: float
    num_new_clients: int
    rs_test_acc: list[float]
    select_clients: Callable[[], list[Any]]
    evaluate: Callable[..., None]
    check_done: Callable[..., bool]
    save_results: Callable[[], None]
    set_new_clients: Callable[[Any], None]

    def train(self) -> None:
        """Trains for ``global_rounds`` rounds; the model after the last one is sent out and scored too."""
        for _ in self.each_round():
            pass

    def each_round(self) -> Iterator[int]:
        """`train` in steps: a round runs when it is asked for, and its number comes when it has trained."""
        self.Budget: list[float] = []
        enough = False
        for current_round in self.rounds():
            self.current_round = current_round
            started = time.time()
            last = enough or current_round == self.global_rounds
            self.selected_clients = self.select_clients()
            self.send_models()
            if last or current_round % self.eval_gap == 0:
                self.score_download()
            if last or (self.auto_break and self.check_done(acc_lss=[self.rs_test_acc], top_cnt=self.top_cnt)):
                break
            self.train_clients()
            self.receive_models()
            if self.uploaded_models:
                self.aggregate_parameters()
            self.Budget.append(time.time() - started)
            enough = bool(self.end_round())
            yield current_round
        self.finish()

    # ---- steps that a host may replace -------------------------------------------------------------------------------

    def rounds(self) -> Iterable[int]:
        """Round numbers; the last one only sends and scores."""
        return range(self.global_rounds + 1)

    def score_download(self) -> None:
        """Evaluation point A: every client after the download, before training (PFLlib's convention)."""
        print(f"\n-------------Round number: {self.current_round}-------------")
        self.evaluate()

    def train_clients(self) -> None:
        for client in self.selected_clients:
            client.train()

    def end_round(self) -> bool:
        """After the aggregation; True ends the training: the model is only sent out and scored once more."""
        print("-" * 25, "time cost", "-" * 25, f"{self.Budget[-1]:.2f} s")
        return False

    def finish(self) -> None:
        """Results in PFLlib's shape, then the new clients, if any."""
        print(f"\nBest accuracy.\n{max(self.rs_test_acc)}")
        if self.Budget:
            print(f"\nAverage time cost per round.\n{sum(self.Budget) / len(self.Budget)}")
        self.save_results()
        if self.num_new_clients > 0:
            self.eval_new_clients = True
            self.set_new_clients(type(self.clients[0]))
            self.evaluate()

    # ---- what a method overrides -------------------------------------------------------------------------------------

    def send_models(self) -> None:
        self.broadcast(self.shared_weights())

    def receive_models(self) -> None:
        self.collect()

    def aggregate_parameters(self) -> None:
        self.average_shared()

    # ---- messages ----------------------------------------------------------------------------------------------------

    @property
    def global_params(self) -> Tensors:
        """The server's parameters and buffers: views, to be replaced but never changed in place."""
        return tensors_of(self.global_model)

    @global_params.setter
    def global_params(self, tensors: Tensors) -> None:
        load_tensors(self.global_model, tensors)

    def shared_weights(self) -> Tensors:
        """The part of the global weights that travels."""
        return shared_part(self.global_params, self.shares, self.clients[0].frozen)

    def broadcast(self, message: Tensors) -> None:
        """Gives every client the message, participant or not, so that all can be scored; only participants count."""
        self.deliver(message)
        self.last_message = message
        self.bytes_down = message_bytes(message) * len(self.selected_clients)

    def deliver(self, message: Tensors) -> None:
        for client in self.clients:
            client.receive(message, self.current_round)

    def collect(self) -> None:
        """Takes the uploads of the participants that were not dropped."""
        active = self.active_clients()
        uploads = [client.message(self.shares) for client in active]
        self.take(active, uploads)
        self.bytes_up = sum(map(message_bytes, uploads))

    def take(self, clients: list[Any], uploads: list[Tensors]) -> None:
        """Keeps the clients' uploads for the aggregation, with weights n_i / sum of n_j over them."""
        samples = [samples_trained(client) for client in clients]
        self.uploaded_ids = [client.id for client in clients]
        self.uploaded_weights = [number / max(sum(samples), 1) for number in samples]
        self.uploaded_models: list[Any] = uploads

    def active_clients(self) -> list[Any]:
        """The participants of this round whose upload arrives; at least one."""
        return random.sample(self.selected_clients, share_of(len(self.selected_clients), 1 - self.client_drop_rate))

    def average_shared(self) -> None:
        """Replaces the shared weights by the weighted average of the uploads (McMahan et al. 2017, Algorithm 1)."""
        if sum(self.uploaded_weights) > 0:
            names = [
                name for name in self.shared_weights() if name not in self.clients[0].frozen
            ]  # not to the last bit
            average = self.combine(names, self.uploaded_models, self.uploaded_weights)
            self.global_params = {**self.global_params, **average}

    def combine(self, names: list[str], messages: list[Tensors], weights: list[float]) -> Tensors:
        """One value for each named tensor, from all messages; here the weighted mean."""
        return weighted_mean(names, messages, weights)

    def filter_prototypes(self, prototypes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Prototypes (N, C, ...) and counts (N, C) as they are to be aggregated; here as they came."""
        return prototypes, counts


def share_of(number: int, share: float) -> int:
    """``share`` of ``number``, rounded down, at least 1; 0.2 of 10 is 2 although 1 - 0.8 is a little less than 0.2."""
    return max(1, int(number * share + 1e-9))


def samples_trained(client: Any) -> int:
    """n_i: a client that made no step, for want of samples, sends back what it got and weighs nothing."""
    return client.train_samples if client.train_loss[1] else 0

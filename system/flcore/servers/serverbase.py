"""Everything a server does that is not an algorithm: select, send, receive, aggregate, evaluate, record.

PFLlib's attributes and methods around a `RoundLoop`. A subclass sets ``shares`` and overrides `send_models`,
`receive_models` or `aggregate_parameters`; a PFLlib-style server may as well bring its own `train`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from flcore.clients.clientbase import load_item, save_item
from flcore.clients.localrule import Tensors, build_forward
from flcore.clients.support import privacy
from flcore.servers.messages import is_finite
from flcore.servers.roundloop import RoundLoop, share_of
from flcore.servers.support import dlg, faults
from flcore.servers.support.robust import robust_mean, robust_prototypes
from flcore.servers.support.uploads import RoundUploads
from flcore.trainmodel.state_store import StateStore
from flcore.trainmodel.weights import Weights
from flcore.utils import interrupt
from flcore.utils.errors import DivergedError, UsageError
from flcore.utils.runs.files import write_h5
from flcore.utils.seeds import numpy_generator


class Server(RoundLoop):
    """
    Args:
        args: the run's arguments; ``args.model`` is the common initial network, ``args.method`` the registry's card.
        times: index of the repeat (``-t``).
    """

    rule: Any = None  # the client's half; None for a PFLlib-style server, which calls `set_clients` itself
    # attributes that a later round reads, for checkpoints; a subclass names its own ones only
    remembers: tuple[str, ...] = (
        "global_params",
        "last_after",
        "records",
        "rs_test_acc",
        "rs_test_auc",
        "rs_train_loss",
        "Budget",
    )
    checkpoints: Any = None  # writes them between rounds, and resumes

    def __init__(self, args: Any, times: int) -> None:
        self.args, self.times, self.method = args, times, args.method
        self.algorithm, self.dataset, self.goal, self.device = args.algorithm, args.dataset, args.goal, args.device
        self.num_classes, self.batch_size, self.local_epochs = args.num_classes, args.batch_size, args.local_epochs
        self.global_rounds, self.eval_gap = args.global_rounds, args.eval_gap
        self.learning_rate = args.local_learning_rate
        self.num_clients, self.join_ratio = args.num_clients, args.join_ratio
        self.random_join_ratio = args.random_join_ratio
        self.num_join_clients = share_of(self.num_clients, self.join_ratio)
        self.current_num_join_clients = self.num_join_clients
        self.few_shot, self.top_cnt, self.auto_break = args.few_shot, args.top_cnt, args.auto_break
        self.save_folder_name = args.save_folder_name
        self.client_drop_rate = args.client_drop_rate
        self.train_slow_rate, self.send_slow_rate = args.train_slow_rate, args.send_slow_rate
        self.time_select = args.time_select or "time_threthold" in args.given
        self.time_threthold = args.time_threthold
        self.dlg_eval, self.dlg_gap, self.batch_num_per_client = args.dlg_eval, args.dlg_gap, args.batch_num_per_client
        self.num_new_clients, self.fine_tuning_epoch_new = args.num_new_clients, args.fine_tuning_epoch_new
        self.eval_new_clients = False
        self.weights = Weights(args.model)
        self.store = StateStore(args.state_dir, args.state_cache) if args.state_dir else None
        self.clients: list[Any] = []
        self.new_clients: list[Any] = []
        self.selected_clients: list[Any] = []
        self.set_slow_clients()
        self.attackers = [False] * self.num_clients
        if args.attack != "none":
            draw = numpy_generator(args.seed, times, "attackers")
            self.attackers = faults.chosen(self.num_clients, args.attack_rate, draw)
        self.uploaded_ids: list[int] = []
        self.uploaded_weights: list[float] = []
        self.uploaded_models: list[Any] = []
        self.current_round = -1 if self.has_own_loop() else 0
        self.rs_test_acc: list[float] = []
        self.rs_test_auc: list[float] = []
        self.rs_train_loss: list[float] = []
        self.records: dict[str, list[Any]] = {}
        self.privacy = privacy.guarantee(args, self)  # of --proto_noise
        self.last_after: dict[int, float] = {}  # round -> accuracy at B
        self.bytes_down = self.bytes_up = 0
        self._round_uploads: RoundUploads | None = None
        self.Budget: list[float] = []
        if self.rule is not None:
            self.hp = self.rule.hyperparameters(args)
            self.set_clients(self.rule)

    @classmethod
    def has_own_loop(cls) -> bool:
        """True for a PFLlib-style server that brings its own `train`."""
        return cls.train is not RoundLoop.train

    # ---- weights -----------------------------------------------------------------------------------------------------

    @property
    def global_model(self) -> nn.Module:
        """PFLlib's module; asking for it gives the server a private copy (see `Weights`)."""
        return self.weights.module

    @global_model.setter
    def global_model(self, module: nn.Module) -> None:
        self.weights.module = module

    @property
    def global_params(self) -> Tensors:
        return self.weights.tensors

    @global_params.setter
    def global_params(self, tensors: Tensors) -> None:
        self.weights.tensors = tensors

    # ---- participants ------------------------------------------------------------------------------------------------

    def set_clients(self, clientObj: Any) -> None:
        """Creates the participants 0 .. num_clients - 1."""
        self.clients = self._make_clients(clientObj, range(self.num_clients))
        self._describe_faults()
        for part in ("train", "test"):
            if not any(getattr(client, f"{part}_samples") for client in self.clients):
                raise UsageError(f"no client of {self.dataset} has {part} samples; make the data set again")
        if self.batch_size == 1 and self.clients[0].has_BatchNorm:
            raise UsageError("-lbs 1: this model has BatchNorm, which cannot train on one sample; use -lbs 2 or more")
        idle = [client.id for client in self.clients if len(client.load_train_data()) == 0]
        if idle:
            print(f"warning: clients {idle} have too few samples for a training step and only take part in evaluation.")

    def set_new_clients(self, clientObj: Any) -> None:
        """Creates the participants that join after training (``-nnc``): the next ids of the data set."""
        self.new_clients = self._make_clients(
            clientObj, range(self.num_clients, self.num_clients + self.num_new_clients)
        )

    def _make_clients(self, clientObj: Any, ids: Iterable[int]) -> list[Any]:
        clients: list[Any] = []
        forward = None
        for i in ids:
            (x, y), test = (self.dataset.tensors(i, is_train, self.few_shot) for is_train in (True, False))
            train = x, self._labels(y, i)
            if forward is None and clientObj.has_rule():
                forward = self._shared_forward(clientObj, train[0])
            clients.append(
                clientObj(
                    self.args,
                    id=i,
                    train_samples=len(train[1]),
                    test_samples=len(test[1]),
                    train_slow=i < self.num_clients and self.train_slow_clients[i],
                    send_slow=i < self.num_clients and self.send_slow_clients[i],
                    train_data=train,
                    test_data=test,
                    forward=forward,
                    store=self.store,
                )
            )
        return clients

    def _labels(self, y: torch.Tensor, i: int) -> torch.Tensor:
        """Client i's training labels, wrong where --label_noise or --attack labelflip ask for it."""
        if self.args.label_noise:
            draw = numpy_generator(self.args.seed, self.times, i, "label noise")
            y = faults.noisy_labels(y, self.args.label_noise, self.num_classes, draw)
        if self.args.attack == "labelflip" and i < self.num_clients and self.attackers[i]:
            y = faults.flipped_labels(y, self.num_classes)
        return y

    def _describe_faults(self) -> None:
        """One line for each kind of fault that is simulated, and for what has no effect on this method."""
        for kind, who in (
            ("slow in training", self.train_slow_clients),
            ("slow in sending", self.send_slow_clients),
            (f"attackers ({self.args.attack})", self.attackers),
        ):
            if any(who):
                print(f"{kind}: clients {np.flatnonzero(who).tolist()}, {sum(who)} of {self.num_clients}")
        if self.args.attack != "none" and not any(self.attackers):
            print(
                f"note: --attack_rate {self.args.attack_rate:g} of {self.num_clients} clients is nobody; all are honest"
            )
        if any(self.attackers):
            self._record(rs_attackers=np.array(self.attackers, dtype=int))
        own = self.has_own_loop() or not self.clients[0].has_rule()
        if self.args.aggregate != "mean" and (own or not self.method.averages):
            print(f"note: --aggregate has no effect on {self.algorithm}, whose server takes no mean of messages")
        if self.args.attack in ("signflip", "noise") and own:
            print(f"note: --attack {self.args.attack} has no effect on {self.algorithm}, which sends no messages")

    def _shared_forward(self, clientObj: Any, x: torch.Tensor) -> Any:
        """One network for all clients of a rule: it only lends its structure."""
        if self.clients:
            return self.clients[0].forward
        net = copy.deepcopy(self.args.model)
        forward = build_forward(clientObj, net, x.to(self.device), clientObj.hyperparameters(self.args))
        self.weights = Weights(forward.net)  # knows the rule's extra modules, should they be shared
        return forward

    def select_slow_clients(self, slow_rate: float, kind: str = "slow") -> list[bool]:
        """Exactly the share ``slow_rate`` of the clients, rounded down; ``kind`` keys the draw."""
        return faults.chosen(self.num_clients, slow_rate, numpy_generator(self.args.seed, self.times, kind))

    def set_slow_clients(self) -> None:
        self.train_slow_clients = self.select_slow_clients(self.train_slow_rate, "slow training")
        self.send_slow_clients = self.select_slow_clients(self.send_slow_rate, "slow sending")

    def select_clients(self) -> list[Any]:
        """This round's participants, drawn without replacement from (seed, repeat, round) alone."""
        self._check_interrupt()
        if self.has_own_loop():
            self.current_round += 1  # PFLlib-style: a selection begins a round
        draw = numpy_generator(self.args.seed, self.times, self.current_round, "select")
        self.current_num_join_clients = self.num_join_clients
        if self.random_join_ratio:
            self.current_num_join_clients = int(draw.integers(self.num_join_clients, self.num_clients + 1))
        if self.current_num_join_clients == self.num_clients:
            return list(self.clients)
        chosen = draw.choice(self.num_clients, self.current_num_join_clients, replace=False)
        return [self.clients[i] for i in sorted(chosen)]

    def active_clients(self) -> list[Any]:
        draw = numpy_generator(self.args.seed, self.times, self.current_round, "drop")
        arriving = share_of(len(self.selected_clients), 1 - self.client_drop_rate)
        kept = draw.choice(len(self.selected_clients), arriving, replace=False)
        return [self.selected_clients[i] for i in sorted(kept)]

    # ---- what an algorithm overrides ---------------------------------------------------------------------------------

    def send_models(self) -> None:
        if self.clients[0].has_rule():
            self.broadcast(self.shared_weights())
        else:
            for client in self.clients:
                client.set_parameters(self.global_model)

    def receive_models(self) -> None:
        self.collect() if self.clients[0].has_rule() else self._collect_modules()

    def aggregate_parameters(self) -> None:
        if self.clients[0].has_rule():
            self.average_shared()
            return
        self.global_model = copy.deepcopy(self.uploaded_models[0])
        for param in self.global_model.parameters():
            param.data.zero_()
        for w, client_model in zip(self.uploaded_weights, self.uploaded_models, strict=True):
            self.add_parameters(w, client_model)

    def add_parameters(self, w: float, client_model: nn.Module) -> None:
        """Adds ``w`` times a client's parameters to the global model (PFLlib-style servers)."""
        for total, param in zip(self.global_model.parameters(), client_model.parameters(), strict=True):
            total.data.add_(param.data, alpha=w)

    def _collect_modules(self) -> None:
        active = self.active_clients()
        sound = [client for client in active if is_finite(client.model.state_dict().values())]
        self.round_uploads.leave_out(
            [client for client in active if client not in sound], "their weights are not finite"
        )
        if not sound:
            raise self.diverged("no upload is finite")
        total = sum(client.train_samples for client in sound)
        self.uploaded_ids = [client.id for client in sound]
        self.uploaded_weights = [client.train_samples / total for client in sound]
        self.uploaded_models = [client.model for client in sound]

    # ---- uploads ----------------------------------------------------------------------------------------------------

    @property
    def round_uploads(self) -> RoundUploads:
        """What this round's participants have sent."""
        if self._round_uploads is None or self._round_uploads.round != self.current_round:
            self._round_uploads = RoundUploads(self)
        return self._round_uploads

    def collect(self) -> None:
        """Takes the uploads that arrive in time and are finite; see `RoundUploads`."""
        waiting = [client for client in self.selected_clients if client.id not in self.round_uploads.seen]
        self.round_uploads.accept(waiting)
        if not self.round_uploads.clients and not self.round_uploads.late:
            raise self.diverged("no upload is finite")
        self.take(self.round_uploads.clients, self.round_uploads.messages)
        self.bytes_up = self.round_uploads.bytes

    def diverged(self, reason: str) -> DivergedError:
        """The error that ends a run whose numbers went wrong."""
        out = sorted(self.round_uploads.left_out)
        left_out = f"Left out in this round: clients {out}. " if out else ""
        return DivergedError(
            f"training diverged in round {self.current_round}: {reason}. {left_out}{self.last_checkpoint()}"
            f"Try a smaller -lr than {self.learning_rate:g}. What was recorded before is in the result file"
        )

    def last_checkpoint(self) -> str:
        """A sentence that names the last good checkpoint; empty without one."""
        latest = self.checkpoints.latest if self.checkpoints else None
        return "" if latest is None else f"The last checkpoint holds {latest} rounds (--resume). "

    def combine(self, names: list[str], messages: list[Tensors], weights: list[float]) -> Tensors:
        if self.args.aggregate == "mean" or not names:
            added = self.round_uploads.means(names)
            return added | super().combine([name for name in names if name not in added], messages, weights)
        trained = [message for message, weight in zip(messages, weights, strict=True) if weight]
        stacks = {name: torch.stack([message[name] for message in trained]) for name in names}
        return robust_mean(stacks, self.args.aggregate, self.args.trim)

    def filter_prototypes(self, prototypes: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.args.aggregate == "mean":
            return prototypes, counts
        return robust_prototypes(prototypes, counts, self.args.aggregate, self.args.trim)

    # ---- rounds with progress ----------------------------------------------------------------------------------------

    def rounds(self) -> Iterable[int]:
        """Shows one live line (on a terminal). Between rounds memory is freed and checkpoints are written."""
        self.started = time.time()
        first = self.checkpoints.begin(self) if self.checkpoints else 0
        self.progress = tqdm(
            total=self.global_rounds, initial=first, desc=self.algorithm, unit="round", disable=None, leave=False
        )
        for current_round in range(first, self.global_rounds + 1):
            if current_round > first:
                self._between_rounds(current_round)
            yield current_round

    def _between_rounds(self, done: int) -> None:
        if done < self.global_rounds:  # the last uploads stay for whoever looks at the end
            self.uploaded_models, self._round_uploads = [], None
        for client in self.selected_clients:
            if client.has_rule():
                client.release()
        if self.checkpoints:
            self.checkpoints.round_done(self, done)

    def _check_interrupt(self) -> None:
        if not (self.checkpoints and self.checkpoints.every):  # with checkpoints the end is between rounds
            interrupt.check()

    def train_clients(self) -> None:
        count = iter(range(1, len(self.selected_clients) + 1))

        def done() -> None:
            self._check_interrupt()
            self.progress.set_postfix_str(f"client {next(count)}/{len(self.selected_clients)}")

        scored = self.current_round % self.eval_gap == 0
        after: list[float] = []  # accuracies at B
        parts = self.round_uploads.parts(self.selected_clients)
        for number, part in enumerate(parts, 1):
            self.round_uploads.train(part, done)
            if scored:
                _, samples, correct, _ = self._test(part)
                after.extend(per_client(correct, samples))
            if number < len(parts):
                self.round_uploads.accept(part)
                for client in part:
                    client.release()
        if self.round_uploads.left_out.issuperset(client.id for client in self.selected_clients):
            raise self.diverged("no participant is left")
        joined = np.isin(np.arange(self.num_clients), [client.id for client in self.selected_clients])
        self._record(rs_bytes_down=self.bytes_down, rs_joined=joined.astype(np.int8))
        if scored:
            self.score_training(after)

    def end_round(self) -> None:
        if broken := faults.not_finite(self):
            raise self.diverged(f"the server's {', '.join(broken)} not finite after the aggregation")
        self.examine_uploads()
        self._record(
            rs_bytes_up=self.bytes_up,
            rs_seconds=self.Budget[-1],
            rs_simulated_seconds=self.round_uploads.seconds,
            rs_left_out=len(self.round_uploads.left_out),
            rs_late=len(self.round_uploads.late),
        )
        for i in sorted(self.round_uploads.left_out):
            self._record(rs_left_out_clients=(self.current_round, i))
        self.progress.update()
        if self.current_round % self.eval_gap == 0:
            last = {name: values[-1] for name, values in self.records.items() if len(values)}
            tqdm.write(
                f"round {self.current_round:>4}/{self.global_rounds}"
                f" | A {self.rs_test_acc[-1]:.4f} ± {last['rs_test_std']:.4f}"
                f" | B {last['rs_test_acc_after']:.4f} | train loss {shown(self.rs_train_loss[-1])}"
                f" | {(self.bytes_down + self.bytes_up) / 1e6:.2f} MB | {self.Budget[-1]:.1f} s"
                + (
                    f" | simulated {self.round_uploads.seconds:.1f} s, {len(self.round_uploads.late)} late"
                    if self.shows_time()
                    else ""
                )
            )
        self.save_results()

    def shows_time(self) -> bool:
        """Whether simulated time is of interest in this run."""
        return self.time_select or any(self.train_slow_clients) or any(self.send_slow_clients)

    def finish(self) -> None:
        self.progress.close()
        best = int(np.nanargmax(self.rs_test_acc))
        print(f"\nAfter round {self.current_round}: A {self.rs_test_acc[-1]:.4f}")
        print(f"\nBest accuracy.\n{self.rs_test_acc[best]}")
        print(f"(at round {self.records['rs_round'][best]}; selected on the test set)")
        if self.Budget:
            print(f"\nAverage time cost per round.\n{sum(self.Budget) / len(self.Budget)}")
        if self.shows_time():
            print(f"\nSimulated time of all rounds: {sum(self.records.get('rs_simulated_seconds', ())):.1f} s")
        if number := sum(self.records.get("rs_left_out", ())):
            print(f"\n{number} uploads were left out because their values are not finite")
        if self.num_new_clients > 0:
            self.welcome_new_clients()
        self.save_results()
        if getattr(self.args, "result_path", None):
            self.save_global_model()

    def _record(self, **values: Any) -> None:
        for name, value in values.items():
            self.records.setdefault(name, []).append(value)

    # ---- evaluation --------------------------------------------------------------------------------------------------

    def score_download(self) -> None:
        """Point A: all clients after the download, before training. The headline, PFLlib's convention."""
        _, samples, correct, aucs = self.test_metrics()
        accuracy = per_client(correct, samples)
        micro = ratio(sum(correct), sum(samples))
        self.rs_test_acc.append(micro)
        self.rs_test_auc.append(mean_auc(aucs, samples))
        worst, best = deciles(accuracy)
        if any(self.attackers) and not self.eval_new_clients:
            benign = ~np.array(self.attackers)
            self._record(rs_benign_acc=ratio(np.sum(correct, where=benign), np.sum(samples, where=benign)))
        self._record(
            rs_round=self.current_round,
            rs_client_acc=accuracy,
            rs_test_mean=float(np.nanmean(accuracy)),
            rs_test_std=float(np.nanstd(accuracy)),
            rs_worst_decile=worst,
            rs_best_decile=best,
            rs_forgetting=self.last_after.get(self.current_round - 1, float("nan")) - micro,
        )
        self.save_results()

    def score_training(self, after: list[float]) -> None:
        """Point B: participants with their accuracies after local training, the others as they were at A."""
        accuracy = self.records["rs_client_acc"][-1].copy()
        accuracy[[client.id for client in self.selected_clients]] = after
        sizes = np.array([client.test_samples for client in self.clients])
        micro = ratio(float(np.nansum(accuracy * sizes)), sizes.sum())
        self._record(rs_client_acc_after=accuracy, rs_test_acc_after=micro)
        self.last_after = {self.current_round: micro}
        losses = [client.train_loss for client in self.selected_clients]
        self.rs_train_loss.append(ratio(sum(total for total, _ in losses), sum(count for _, count in losses)))

    def test_metrics(self) -> tuple[list[int], list[int], list[int], list[float]]:
        """Per client: id, test samples, correct predictions, AUC times samples (PFLlib's four lists)."""
        if self.eval_new_clients:
            self.fine_tuning_new_clients()
            return self.test_metrics_new_clients()
        return self._test(self.clients)

    def _test(self, clients: list[Any]) -> tuple[list[int], list[int], list[int], list[float]]:
        metrics = self.executor.test(clients) if self.executor else [client.test_metrics() for client in clients]
        correct, samples, aucs = zip(*metrics, strict=True)
        weighted = [auc * n for auc, n in zip(aucs, samples, strict=True)]
        return [client.id for client in clients], list(samples), list(correct), weighted

    def train_metrics(self) -> tuple[list[int], list[int], list[float]]:
        """Per client: id, training samples, sum of losses (PFLlib's three lists)."""
        losses, samples = zip(*(client.train_metrics() for client in self.clients), strict=True)
        return [client.id for client in self.clients], list(samples), list(losses)

    def evaluate(self, acc: list[float] | None = None, loss: list[float] | None = None) -> None:
        """PFLlib's evaluation, for servers with their own loop: tests all clients, appends to the lists, prints."""
        _, samples, correct, aucs = self.test_metrics()
        _, train_samples, losses = self.train_metrics()
        test_acc, test_auc = ratio(sum(correct), sum(samples)), mean_auc(aucs, samples)
        train_loss = ratio(sum(losses), sum(train_samples))
        (self.rs_test_acc if acc is None else acc).append(test_acc)
        (self.rs_train_loss if loss is None else loss).append(train_loss)
        self.rs_test_auc.append(test_auc)
        accuracy = per_client(correct, samples)
        if not self.eval_new_clients:
            self._record(rs_round=self.current_round, rs_client_acc=accuracy)
        self.print_(test_acc, test_auc, train_loss)
        print(f"Std Test Accuracy: {np.nanstd(accuracy):.4f}")
        print(f"Std Test AUC: {np.nanstd(np.array(aucs) / np.maximum(samples, 1)):.4f}")

    def print_(self, test_acc: float, test_auc: float, train_loss: float) -> None:
        print(f"Averaged Train Loss: {shown(train_loss)}")
        print(f"Averaged Test Accuracy: {shown(test_acc)}")
        print(f"Averaged Test AUC: {shown(test_auc)}")

    def check_done(
        self, acc_lss: list[list[float]], top_cnt: int | None = None, div_value: float | None = None
    ) -> bool:
        """True once every list had no new best for ``top_cnt`` evaluations, or varies by less than ``div_value``."""
        for values in acc_lss:
            stale = top_cnt is not None and len(values) - 1 - int(np.argmax(values)) >= top_cnt
            window = values[-(top_cnt or len(values)) :]
            still = div_value is not None and len(window) > 1 and float(np.std(window)) < div_value
            if not (stale or still):
                return False
        return True

    def call_dlg(self, R: int) -> None:
        """PFLlib's gradient-leakage evaluation (``-dlg``), see `flcore.servers.support.dlg`."""
        self._record(**dlg.rate(self, R))

    def examine_uploads(self) -> None:
        """What this round's uploads gave away: ``-dlg``'s rating, and the privacy spent so far."""
        if self.dlg_eval and self.current_round % self.dlg_gap == 0:
            self.call_dlg(self.current_round)
        if self.privacy:
            releases = self.records.get("rs_dp_releases", [np.zeros(self.num_clients, dtype=np.int64)])[-1].copy()
            releases[[client.id for client in self.selected_clients]] += 1  # also if the upload was lost on the way
            spent = privacy.epsilon(self.args.proto_noise, releases.max(), self.args.dp_delta)
            self._record(rs_dp_releases=releases, rs_dp_epsilon=spent)

    # ---- participants that join after training -----------------------------------------------------------------------

    def welcome_new_clients(self) -> None:
        """New clients (``-nnc``): scored with the final download, and again after ``-ften`` local trainings."""
        self.set_new_clients(type(self.clients[0]))
        trained, self.clients = self.clients, self.new_clients
        self.send_models()
        self.clients = trained
        for moment in ("after the download", f"after {self.fine_tuning_epoch_new} rounds of fine-tuning"):
            _, samples, correct, _ = self._test(self.new_clients)
            self._record(rs_new_acc=ratio(sum(correct), sum(samples)), rs_new_client_acc=per_client(correct, samples))
            print(f"\n{self.num_new_clients} new clients {moment}: {shown(self.records['rs_new_acc'][-1])}")
            if self.fine_tuning_epoch_new == 0:
                break
            if len(self.records["rs_new_acc"]) == 1:
                self.fine_tuning_new_clients()

    def fine_tuning_new_clients(self) -> None:
        for client in self.new_clients:
            if not client.has_rule():
                client.set_parameters(self.global_model)
            for _ in range(self.fine_tuning_epoch_new):
                client.train()
                client.round += 1

    def test_metrics_new_clients(self) -> tuple[list[int], list[int], list[int], list[float]]:
        return self._test(self.new_clients)

    # ---- files -------------------------------------------------------------------------------------------------------

    def save_results(self) -> None:
        """Writes everything recorded so far to the run's .h5 file, complete or not at all."""
        path = getattr(self.args, "result_path", None)
        if path is not None:
            lists = {name: getattr(self, name) for name in ("rs_test_acc", "rs_test_auc", "rs_train_loss")}
            write_h5(path, {**lists, **self.records})

    def _model_path(self) -> Path:
        """Beside the result file, so that no other run's model is overwritten; PFLlib's place without one."""
        path = getattr(self.args, "result_path", None)
        return Path(path).with_suffix(".pt") if path else Path("models") / self.dataset / f"{self.algorithm}_server.pt"

    def save_global_model(self) -> None:
        """Saves what the clients got last (shared weights, prototypes); what stays at the clients is not in it.

        From the CPU, so that a machine without this run's device reads it.
        """
        message = self.global_params if self.has_own_loop() else self.last_message
        if message:
            save_item({name: value.cpu() for name, value in message.items()}, self._model_path())

    def load_model(self) -> None:
        loaded = load_item(self._model_path(), self.device)
        own = self.global_params
        self.global_params = own | {name: value for name, value in loaded.items() if name in own}

    def model_exists(self) -> bool:
        return self._model_path().is_file()

    def save_item(self, item: Any, item_name: str) -> None:
        save_item(item, Path(self.save_folder_name) / f"server_{item_name}.pt")

    def load_item(self, item_name: str) -> Any:
        return load_item(Path(self.save_folder_name) / f"server_{item_name}.pt", self.device)


def ratio(part: float, whole: float) -> float:
    """part / whole, nan where there is nothing to divide by."""
    return float(part) / float(whole) if whole else float("nan")


def shown(value: float) -> str:
    """A number for people; nan, as of a mean over nothing, is undefined."""
    return "undefined" if np.isnan(value) else f"{value:.4f}"


def per_client(correct: list[int], samples: list[int]) -> np.ndarray:
    """Accuracy of every client (nan without test samples)."""
    return np.array([ratio(c, n) for c, n in zip(correct, samples, strict=True)])


def mean_auc(weighted: list[float], samples: list[int]) -> float:
    """Mean AUC by samples, over the clients for which it is defined."""
    defined = [(auc, n) for auc, n in zip(weighted, samples, strict=True) if not np.isnan(auc)]
    return ratio(sum(auc for auc, _ in defined), sum(n for _, n in defined))


def deciles(accuracy: np.ndarray) -> tuple[float, float]:
    """Mean accuracy of the worst and of the best tenth of the clients (at least one client each)."""
    ranked = np.sort(accuracy[~np.isnan(accuracy)])
    if len(ranked) == 0:
        return float("nan"), float("nan")
    tenth = -(-len(ranked) // 10)
    return float(ranked[:tenth].mean()), float(ranked[-tenth:].mean())

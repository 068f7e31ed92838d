"""PFLlib-style pairs, hosted: a server with a round loop of its own, whose clients train modules of their own.

Such a server's class is recognised by its `train`, and gets `OwnLoop` as its first base (`adopt`); its clients get
`flcore.clients.support.pfllib_host.OwnTraining`. Nothing else in servers/ knows of them.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from flcore.clients.support.items import load_item, save_item
from flcore.servers.messages import is_finite
from flcore.servers.roundloop import RoundLoop
from flcore.servers.support import dlg, newcomers
from flcore.servers.support.evaluation import Lists, mean_auc, per_client, ratio
from flcore.servers.support.recorder import CURVES
from flcore.trainmodel.weights import Weights
from flcore.utils.errors import UsageError
from flcore.utils.records import shown

if TYPE_CHECKING:
    from flcore.servers.serverbase import Server
    from flcore.trainmodel.forward import Tensors
else:
    Server = object


class PFLlibMethods:
    """Names of PFLlib's `Server` that only code of PFLlib's kind uses."""

    rs_test_auc: list[float]
    rs_train_loss: list[float]

    device: Any
    save_folder_name: str
    clients: Sequence[Any]
    new_clients: list[Any]
    weights: Weights

    own_model: Any = None

    @property
    def global_model(self) -> Any:
        """The global weights as a module; asking for it gives the server a private copy (see `Weights`).

        A pair may keep something else under this name (FedKD a dict of arrays): then it is that.
        """
        return self.weights.module if self.own_model is None else self.own_model

    @global_model.setter
    def global_model(self, model: Any) -> None:
        if isinstance(model, nn.Module):
            self.weights.module, self.own_model = model, None
        else:
            self.own_model = model

    def select_slow_clients(self, slow_rate: float) -> list[bool]:
        server: Any = self
        chosen: list[bool] = server.participation.slow(slow_rate, "slow")
        return chosen

    def evaluate(self, acc: list[float] | None = None, loss: list[float] | None = None) -> None:
        """Tests all clients, or the new ones; appends to the lists, prints."""
        server: Any = self
        _, samples, correct, aucs = server.test_metrics()
        _, train_samples, losses = server.train_metrics()
        test_acc, test_auc = ratio(sum(correct), sum(samples)), mean_auc(aucs, samples)
        train_loss = ratio(sum(losses), sum(train_samples))
        accuracy = per_client(correct, samples)
        if server.eval_new_clients:
            server.record(rs_new_acc=test_acc, rs_new_client_acc=accuracy)
        else:
            (server.rs_test_acc if acc is None else acc).append(test_acc)
            (server.rs_train_loss if loss is None else loss).append(train_loss)
            server.rs_test_auc.append(test_auc)
            server.record(rs_round=server.current_round, rs_client_acc=accuracy)
            server.recorder.save()
        server.print_(test_acc, test_auc, train_loss)
        print(f"Std Test Accuracy: {np.nanstd(accuracy):.4f}")
        print(f"Std Test AUC: {np.nanstd(np.array(aucs) / np.maximum(samples, 1)):.4f}")

    def print_(self, test_acc: float, test_auc: float, train_loss: float) -> None:
        print(f"Averaged Train Loss: {shown(train_loss)}")
        print(f"Averaged Test Accuracy: {shown(test_acc)}")
        print(f"Averaged Test AUC: {shown(test_auc)}")

    def train_metrics(self) -> tuple[list[int], list[int], list[float]]:
        """Per client: id, training samples, sum of losses (PFLlib's three lists)."""
        losses, samples = zip(*(client.train_metrics() for client in self.clients), strict=True)
        return [client.id for client in self.clients], list(samples), list(losses)

    def add_parameters(self, w: float, client_model: nn.Module) -> None:
        """Adds ``w`` times a client's parameters to the global model."""
        for total, param in zip(self.global_model.parameters(), client_model.parameters(), strict=True):
            total.data.add_(param.data, alpha=w)

    def call_dlg(self, R: int) -> None:
        """The gradient-leakage evaluation (``-dlg``)."""
        server: Any = self
        server.record(**dlg.rate(server, R))

    def save_global_model(self) -> None:
        server: Any = self
        server.recorder.save_model()

    def load_model(self) -> None:
        server: Any = self
        server.recorder.load_model()

    def model_exists(self) -> bool:
        server: Any = self
        found: bool = server.recorder.model_path.is_file()
        return found

    def save_item(self, item: Any, item_name: str) -> None:
        save_item(item, self._item(item_name))

    def load_item(self, item_name: str) -> Any:
        return load_item(self._item(item_name), self.device)

    def _item(self, name: str) -> Path:
        return Path(self.save_folder_name) / f"server_{name}.pt"

    def fine_tuning_new_clients(self) -> None:
        newcomers.fine_tune(self)

    def test_metrics_new_clients(self) -> Lists:
        server: Any = self
        tested: Lists = server.evaluation.test(self.new_clients)
        return tested


class OwnLoop(Server):
    """A server with its own `train`. A selection of clients begins a round; what travels are modules.

    Its clients may have a rule all the same: they then get and send messages as ever.
    """

    own_loop = True

    def __init__(self, args: Any, times: int) -> None:
        super().__init__(args, times)
        self.current_round = -1
        # a pair's own `save_results` would write into the working folder, in place of this run's files
        self.save_results = partial(OwnLoop.save_results, self)  # type: ignore[method-assign]

    def select_clients(self) -> list[Any]:
        self.current_round += 1
        return super().select_clients()

    def send_models(self) -> None:
        if not self.clients[0].own_training:
            return super().send_models()
        for client in self.clients:
            started = time.time()
            client.set_parameters(self.global_model)
            client.send_time_cost["num_rounds"] += 1
            client.send_time_cost["total_cost"] += 2 * (time.time() - started)  # there and back, as PFLlib counts

    def receive_models(self) -> None:
        if not self.clients[0].own_training:
            return super().receive_models()
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

    def aggregate_parameters(self) -> None:
        if not self.clients[0].own_training:
            return super().aggregate_parameters()
        self.global_model = copy.deepcopy(self.uploaded_models[0])
        for param in self.global_model.parameters():
            param.data.zero_()
        for w, client_model in zip(self.uploaded_weights, self.uploaded_models, strict=True):
            self.add_parameters(w, client_model)

    def knowledge(self, upload: Any) -> dlg.Knowledge:
        if not isinstance(upload, nn.Module):
            return super().knowledge(upload)
        net = copy.deepcopy(self.global_model).eval()
        sent = dict(net.state_dict())
        change = {name: sent[name] - value.detach() for name, value in upload.named_parameters()}
        return lambda params, x: functional_call(net, params, (x,)), sent, change

    def test_metrics(self) -> Lists:
        if not self.eval_new_clients:
            return super().test_metrics()
        self.fine_tuning_new_clients()
        return self.test_metrics_new_clients()

    def fine_tuning_new_clients(self) -> None:
        """As PFLlib does it, whatever a client's own training is: cross-entropy and plain gradient descent."""
        if not self.clients[0].own_training:
            return super().fine_tuning_new_clients()
        for client in self.new_clients:
            client.set_parameters(self.global_model)
            optimizer = torch.optim.SGD(client.model.parameters(), lr=self.learning_rate)
            client.model.train()
            for _ in range(self.fine_tuning_epoch_new):
                for x, y in client.load_train_data():
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(client.model(x), y).backward()
                    optimizer.step()

    def save_results(self) -> None:
        """Also what a pair keeps of its personal models alone (pFedMe's ``rs_test_acc_per``)."""
        for name in CURVES:
            if not getattr(self, name):
                setattr(self, name, list(getattr(self, f"{name}_per", ())))
        super().save_results()

    def final_message(self) -> Tensors:
        return self.global_params if self.own_model is None else {}


def adopt(server_class: Any) -> None:
    """Makes a class with a `train` that is not `RoundLoop`'s a server with its own loop."""
    if server_class.train is not RoundLoop.train and not issubclass(server_class, OwnLoop):
        server_class.__bases__ = (OwnLoop, *server_class.__bases__)


def check_pair(server: Any, client_class: Any) -> None:
    """Refuses clients that bring their own training where the server brings no loop for it.

    Raises:
        UsageError: it is so.
    """
    if client_class.own_training and not server.own_loop:
        raise UsageError(
            f"{client_class.__name__} brings its own training, but {type(server).__name__} has no `train` of its own "
            "that would run it; a pair of PFLlib's kind has both"
        )

"""Ditto, client half. Li, Hu, Beirami, Smith, ICML 2021, "Ditto: Fair and Robust Federated Learning Through
Personalization".

Algorithm 1: two models a client. The global copy w_i trains as in FedAvg; the personal v_i minimises
CE(v) + mu/2 * ||v - w^t||^2 (the paper's lambda), where w^t are the weights received this round. v_i never travels.

Order: ``-pls`` personal epochs first, then ``-ls`` of the global copy, as in PFLlib; the authors step both models on
each batch. All three orders agree, since w^t stands still, up to which batches each model sees.
The score is v_i's alone, once an evaluation (PFLlib appends the global copy's to the same list), and the reported
training loss is the global copy's cross-entropy (the last phase's). A client that does not join keeps its v_i.
mu: 1, the authors' scripts'; PFLlib's default of 0 makes v_i a local model.
"""

import copy
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from flcore.clients.clientbase import Client
from flcore.clients.localrule import Phase
from flcore.hyperparams import Settings, setting
from flcore.trainmodel.forward import Forward, Tensors


@dataclass(frozen=True)
class DittoSettings(Settings):
    mu: float = setting(
        1.0, "weight of the pull of the personal model to the received one", least=0, source="the authors' scripts"
    )
    plocal_epochs: int = setting(1, "epochs of the personal model", least=0, source="PFLlib")


class clientDitto(Client):
    settings = DittoSettings
    corrects = True

    @staticmethod
    def local_modules(forward: Forward, hp: DittoSettings) -> dict[str, nn.Module]:
        return {"personal": copy.deepcopy(forward.net)}  # v_i starts from the common initial weights

    @staticmethod
    def local_plan(hp: DittoSettings) -> list[Phase]:
        return [
            Phase(hp.plocal_epochs, ("personal.",), loss=personal_loss),
            Phase(hp.local_epochs, ("base.", "head.")),
        ]

    @staticmethod
    def local_grad(grads: Tensors, params: Tensors, shared: Tensors, state: Tensors, hp: DittoSettings) -> Tensors:
        return {
            name: grad + hp.mu * (params[name] - shared[name.removeprefix("personal.")])
            if name.startswith("personal.")
            else grad
            for name, grad in grads.items()
        }

    @staticmethod
    def local_predict(
        forward: Forward, params: Tensors, x: Tensor, shared: Tensors, state: Tensors, hp: DittoSettings
    ) -> Tensor:
        return forward.call("personal", params, x)


def personal_loss(
    forward: Forward, params: Tensors, x: Tensor, y: Tensor, shared: Tensors, state: Tensors, hp: DittoSettings
) -> Tensor:
    return F.cross_entropy(forward.call("personal", params, x), y)

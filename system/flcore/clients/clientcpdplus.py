"""FedCPD+, client half: what we found to work better than the parts of FedCPD's paper (docs/fedcpd.md).

It is FedCPD with one addition and other weights. A client does not predict by the head that trains, but by one that is
solved in closed form from its own training data and the extractor it has (`ridge_classifier`): after every download,
and again after training. The head of SGD lags behind an extractor that changes in every round; it still trains, since
the extractor learns through it. With such a head an alignment ten times as strong pays, and the feature distillation
still does not, so it is off.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from flcore.clients.clientcpd import CPDSettings, clientCPD
from flcore.clients.localrule import Data
from flcore.hyperparams import setting
from flcore.trainmodel.closed_form import ridge_classifier
from flcore.trainmodel.forward import Forward, Tensors

FOUND = "best on validation data: docs/results.md"


@dataclass(frozen=True)
class CPDPlusSettings(CPDSettings):
    cpd_fd: float = setting(0.0, "weight of the feature distillation; 0: off", least=0, source=FOUND)
    cpd_align: float = setting(10.0, "weight alpha of the prototype alignment; 0: off", least=0, source=FOUND)
    cpd_ridge: float = setting(
        1.0, "strength of the ridge regression, in mean squares of the embedding", above=0, source=FOUND
    )


class clientCPDPlus(clientCPD):
    settings = CPDPlusSettings

    @staticmethod
    def local_modules(forward: Forward, hp: CPDPlusSettings) -> dict[str, nn.Module]:  # type: ignore[override]
        return {**clientCPD.local_modules(forward, hp), "solved": nn.Linear(forward.size, hp.num_classes)}

    @staticmethod
    def local_solve(forward: Forward, params: Tensors, data: Data, hp: CPDPlusSettings) -> Tensors:
        x, y = data
        weight, bias = ridge_classifier(forward.in_batches(params, x), y, hp.num_classes, hp.cpd_ridge)
        return {"solved.weight": weight, "solved.bias": bias}

    @staticmethod
    def local_predict(
        forward: Forward, params: Tensors, x: Tensor, shared: Tensors, state: Tensors, hp: CPDPlusSettings
    ) -> Tensor:
        z, _ = forward.features(params, x)
        scores: Tensor = forward.call("solved", params, z)
        return scores

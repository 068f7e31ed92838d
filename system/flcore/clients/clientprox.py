"""FedProx, client half. Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020, "Federated Optimization in
Heterogeneous Networks".

Algorithm 2 with equation (2): the local objective is CE(w) + mu/2 * ||w - w^t||^2, where w^t are the weights received
this round; each step therefore adds mu * (w - w^t) to the gradient.

The term acts on parameters only, not on BatchNorm's statistics. The reported training loss is the cross-entropy alone,
comparable with FedAvg's (PFLlib adds mu/2 times the norm without its square). Every client does the same number of
epochs (no gamma-inexactness). mu: 0.1, from the paper's grid 0.001, 0.01, 0.1, 1; PFLlib's default of 0 is FedAvg.
"""

from dataclasses import dataclass

from flcore.clients.clientbase import Client
from flcore.hyperparams import Settings, setting
from flcore.trainmodel.forward import Tensors


@dataclass(frozen=True)
class ProxSettings(Settings):
    mu: float = setting(0.1, "weight of the proximal term", least=0, source="the paper's grid")


class clientProx(Client):
    settings = ProxSettings
    corrects = True

    @staticmethod
    def local_grad(grads: Tensors, params: Tensors, shared: Tensors, state: Tensors, hp: ProxSettings) -> Tensors:
        return {name: grad + hp.mu * (params[name] - shared[name]) for name, grad in grads.items()}

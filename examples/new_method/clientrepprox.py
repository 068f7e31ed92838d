"""FedRep whose extractor is held near the received one: CE + mu/2 * ||w - w_received||^2."""

from dataclasses import dataclass

from flcore.clients.clientrep import RepSettings, clientRep
from flcore.hyperparams import setting
from flcore.trainmodel.forward import Tensors


@dataclass(frozen=True)
class RepProxSettings(RepSettings):  # FedRep's settings, and the flag -mu/--mu
    mu: float = setting(0.1, "weight of the proximal term", least=0)


class clientRepProx(clientRep):
    settings = RepProxSettings

    @staticmethod
    def local_grad(grads: Tensors, params: Tensors, shared: Tensors, state: Tensors, hp: RepProxSettings) -> Tensors:
        # `shared` is the server's message; the head is not in it and feels no pull
        return {k: g + hp.mu * (params[k] - shared[k]) if k in shared else g for k, g in grads.items()}

"""FedKTL, client half. Zhang, Liu, Hua, Cao: "An Upload-Efficient Scheme for Transferring Knowledge From a Server-Side
Pre-trained Generator to Clients in Heterogeneous Federated Learning", CVPR 2024.

No weights travel. The head's outputs (B, C) are points in a space with fixed class directions v (a simplex equiangular
tight frame), not logits. With their cosines to v, and image-latent pairs (I, w) of the server's generator,

    L = ArcFace(cosines, y; scale 64, margin 0.5) + mu * MSE(J(f(I)), w);   prediction: the direction of largest cosine

The second term, from the first download of pairs on, moves the extractor f and the projector J, not the head. J starts
from the same weights in every round and is thrown away. Up go, for each class held, the mean of the points at length 1.

Read from the authors' code. As there: gradients are clipped to length 100, the network's and J's each by itself; angles
beyond pi have no exception. Cosines are limited to 1 - 1e-7 before the arccosine, whose slope is infinite at 1.
Different here: each step takes as many pairs as its batch has samples, drawn anew without repetition, where the code
cycles through them; pairs are seen in evaluation mode, so that generated images leave BatchNorm's statistics alone and
a single pair will do. The directions and J's initial weights stem from the common seed, so that nobody sends them.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flcore.clients.clientbase import Client
from flcore.clients.localrule import Data
from flcore.hyperparams import Settings, setting
from flcore.trainmodel.forward import Forward, Tensors
from flcore.trainmodel.ktl import Transfer, arcface_loss
from flcore.trainmodel.prototypes import unit

CLIP = 100.0
STYLEGAN = "the authors' for StyleGAN-XL"
PROJECTOR = "transfer.projector."


@dataclass(frozen=True)
class KTLSettings(Settings):
    lamda: float = setting(1.0, "server: weight of the distance to the class centroids", least=0, source=STYLEGAN)
    mu: float = setting(50.0, "weight of the pull to the latent vectors of generated images", least=0, source=STYLEGAN)
    server_epochs: int = setting(100, "passes of the server over the uploaded prototypes", least=0, source=STYLEGAN)
    server_learning_rate: float = setting(0.01, "learning rate of the server's training", above=0, source=STYLEGAN)
    noise_dim: int = setting(512, "size of the generator's latent vectors", least=1, source="StyleGAN-XL's")
    generator: Path | None = setting(
        None, "file of the pre-trained image generator: TorchScript, a program that is run; needed", type=Path
    )
    trust_generator: bool = setting(
        False, "load it unchecked: TorchScript that uses files, torch.export (.pt2) that can run any code"
    )
    ktl_server_batch: int = setting(
        100, "uploads in a batch of the server; BatchNorm cannot train on one", least=2, source="the authors'"
    )


class clientKTL(Client):
    settings = KTLSettings
    replaced = ()  # no weights travel
    corrects = True

    @staticmethod
    def local_modules(forward: Forward, hp: KTLSettings) -> dict[str, nn.Module]:
        size = forward.size
        return {"transfer": Transfer(size, hp.noise_dim, hp.num_classes)}

    @staticmethod
    def local_init(params: Tensors, hp: KTLSettings) -> Tensors:
        return {name: value for name, value in params.items() if name.startswith(PROJECTOR)}

    @staticmethod
    def local_begin(
        forward: Forward,
        params: Tensors,
        received: Tensors,
        data: Data,
        shared: Tensors,
        state: Tensors,
        hp: KTLSettings,
    ) -> Tensors:
        return {**params, **state}

    @staticmethod
    def local_draw(generator: torch.Generator, forward: Forward, size: int, hp: KTLSettings) -> Tensors:
        return {"rank": torch.rand(hp.num_classes, generator=generator)}

    @staticmethod
    def local_loss(
        forward: Forward, params: Tensors, x: Tensor, y: Tensor, shared: Tensors, state: Tensors, hp: KTLSettings
    ) -> Tensor:
        points = unit(forward(params, x)[0])
        loss = arcface_loss(points @ params["transfer.etf"], y)
        if hp.mu and "images" in shared:
            images, latents = shared["images"], shared["latents"]
            taken = state["rank"][: len(images)].argsort()[: len(x)]
            z, _ = forward.features(params, images[taken], frozen=True)
            loss = loss + hp.mu * F.mse_loss(forward.call("transfer", params, z), latents[taken])
        return loss

    @staticmethod
    def local_grad(grads: Tensors, params: Tensors, shared: Tensors, state: Tensors, hp: KTLSettings) -> Tensors:
        clipped: Tensors = {}
        for ours in (True, False):
            part = {name: grad for name, grad in grads.items() if name.startswith(PROJECTOR) is ours}
            length = torch.stack([grad.square().sum() for grad in part.values()]).sum().sqrt()
            clipped |= {name: grad * (CLIP / (length + 1e-6)).clamp(max=1) for name, grad in part.items()}
        return clipped

    @staticmethod
    def local_end(
        forward: Forward, params: Tensors, data: Data, shared: Tensors, state: Tensors, hp: KTLSettings
    ) -> tuple[Tensors, Tensors]:
        with torch.no_grad():
            return state, {"embeddings": unit(forward.call("head", params, forward.in_batches(params, data[0])))}

    def announce(self, prototypes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        return unit(prototypes), counts.clamp(max=1).to(torch.uint8)

    @staticmethod
    def local_predict(
        forward: Forward, params: Tensors, x: Tensor, shared: Tensors, state: Tensors, hp: KTLSettings
    ) -> Tensor:
        return unit(forward(params, x)[0]) @ params["transfer.etf"]

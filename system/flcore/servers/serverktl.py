"""FedKTL, server half (see clients/clientktl.py): turns class prototypes into images of a pre-trained generator.

Each round, with the uploaded prototypes P of classes c: F(P) are latent vectors, F a small network (linear, BatchNorm,
ReLU, linear) that lasts the whole run, and w_c the centroid of a class. First w_c is the mean of F(P) in evaluation
mode; then ``-se`` passes of Adam (rate ``-slr``, batch ``--ktl_server_batch``) over F and the centroids minimise

    MMD^2(F(P), typical latents of the generator) + lam * MSE(F(P), w_c)

so that F(P) becomes what the generator knows; then w_c is computed anew, the generator makes an image I_c of it, and
the pairs (I_c, w_c) go down. Kernel: sum over a in 10, 15, 20, 50 of exp(-distance^2 / (2 a)); gradients are clipped to
length 100. Defaults are the authors' for StyleGAN-XL; they give others for other generators (docs/fedktl.md).

Different from the authors' code: a last batch of one upload, with which BatchNorm cannot train, joins the one before,
and a round with one upload in all trains nothing; a class that nobody ever uploaded has no pair, where the code sends
the image of a random vector.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flcore.clients.clientktl import CLIP, clientKTL
from flcore.servers.serverbase import Server
from flcore.trainmodel.ktl import ImageGenerator
from flcore.trainmodel.mmd import squared_mmd
from flcore.trainmodel.prototypes import as_samples, class_prototypes, stack_uploads
from flcore.utils.errors import UsageError
from flcore.utils.seeds import numpy_generator, torch_generator


class FedKTL(Server):
    rule = clientKTL
    shares = ()
    remembers = ("seen", "pairs", "transformer", "centroids")

    def __init__(self, args: Any, times: int) -> None:
        if not args.generator:
            raise UsageError(
                "FedKTL needs a pre-trained image generator: --generator FILE. docs/fedktl.md says what may be in it; "
                "`python scripts/train_generator.py` makes a small one of the digits."
            )
        if len(args.shape) != 3:
            raise UsageError(f"FedKTL works on images, but a sample of {args.dataset} has shape {tuple(args.shape)}.")
        super().__init__(args, times)
        hp = self.hp
        self.generator = ImageGenerator(hp.generator, hp.noise_dim, args.shape, self.device, hp.trust_generator)
        self.seen = torch.zeros(self.num_classes, dtype=torch.bool, device=self.device)  # has ever been uploaded
        self.pairs: dict[str, Tensor] = {}  # of the classes seen, in their order
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(numpy_generator(args.seed, times, "feature transformer").integers(2**31)))
            self.transformer = nn.Sequential(
                nn.Linear(self.num_classes, self.num_classes),
                nn.BatchNorm1d(self.num_classes),
                nn.ReLU(),
                nn.Linear(self.num_classes, hp.noise_dim),
            ).to(self.device)
        self.centroids = nn.Parameter(torch.zeros(self.num_classes, hp.noise_dim, device=self.device))

    def send_models(self) -> None:
        self.broadcast(self.pairs)

    def aggregate_parameters(self) -> None:
        points, y = as_samples(*stack_uploads(self.uploaded_models))
        if len(y) == 0:
            return
        self.seen = self.seen | class_prototypes(points, y, self.num_classes)[1].bool()
        self.update_centroids(points, y)
        self.fit(points, y)
        self.update_centroids(points, y)
        latents = self.centroids.detach()[self.seen]
        self.pairs = {"images": self.generator.images(latents), "latents": latents}

    def update_centroids(self, points: Tensor, y: Tensor) -> None:
        """The means of F(P) in evaluation mode; a class without upload keeps its centroid."""
        self.transformer.eval()
        with torch.no_grad():
            means, counts = class_prototypes(self.transformer(points), y, self.num_classes)
            self.centroids.copy_(torch.where(counts[:, None] > 0, means, self.centroids))

    def fit(self, points: Tensor, y: Tensor) -> None:
        """Trains F and the centroids on the uploads ``points`` (n, C) of classes y (n,)."""
        draw = torch_generator(self.args.seed, self.times, self.current_round, "feature transformer")
        trained = [*self.transformer.parameters(), self.centroids]
        optimizer = torch.optim.Adam(trained, lr=self.hp.server_learning_rate)
        self.transformer.train()
        for _ in range(self.hp.server_epochs):
            order = torch.randperm(len(y), generator=draw).to(self.device)
            for part in batches_of_two_or_more(order, self.hp.ktl_server_batch):
                features = self.transformer(points[part])
                typical = self.generator.latents(len(part), draw)
                loss = squared_mmd(features, typical)
                loss = loss + self.hp.lamda * F.mse_loss(features, self.centroids[y[part]])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(trained, CLIP)
                optimizer.step()


def batches_of_two_or_more(order: Tensor, size: int) -> list[Tensor]:
    """``order`` cut into pieces of ``size``; a last piece of one joins the one before. None if there is only one."""
    pieces = list(order.split(size))
    if len(pieces[-1]) == 1:
        last = pieces.pop()
        pieces[-1:] = [torch.cat([piece, last]) for piece in pieces[-1:]]
    return pieces

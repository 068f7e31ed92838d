"""How well an attacker who sees the uploaded weights rebuilds training images (``-dlg``).

Deep leakage from gradients (Zhu, Liu, Han, NeurIPS 2019): the change of the weights in a round, received minus
uploaded, is about the sum of the gradients of the client's steps. Images and soft labels are sought whose gradient has
its direction, by Adam on the cosine distance (Geiping et al., NeurIPS 2020), which needs no learning rate and no number
of steps. Labels begin with what the change of the head's bias says of them (Zhao, Mopuri, Bilen, 2020). The attacker
knows the weights that were sent and the range of the pixels. Where the head stays at home (FedRep, FedCPD) it takes the
initial head, which all began with, and matches the gradient of the extractor alone.

The loss it assumes is the cross-entropy of head(extractor(x)), for every method: an attacker who also models a method's
other losses and modules will see more.
"""

import logging
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from flcore.trainmodel.forward import Tensors
from flcore.utils import interrupt
from flcore.utils.seeds import torch_generator

log = logging.getLogger(__name__)

Logits = Callable[[Tensors, Tensor], Tensor]  # (params, x) -> (B, num_classes)
Knowledge = tuple[Logits, Tensors, Tensors]

ITERATIONS, STEP = 100, 0.05  # of Adam on pixels in [0, 1]: fixed, so that the same run gives the same rating
LABEL, TINY = 3.0, 1e-30  # largest logit that a soft label begins with
MOST_CLIENTS, MOST_IMAGES = 5, 8  # the first uploads of a round, and images rebuilt of each: bounds the time
SMALLEST_ERROR = 1e-10  # a mean squared error of 0 has no finite PSNR


def rate(server: Any, current_round: int) -> dict[str, float]:
    """Attacks the uploads of the round; the records ``rs_dlg_round``, ``rs_dlg_psnr``, ``rs_dlg_psnr_start``.

    PSNR in dB, mean over rebuilt images and clients; ``start`` is that of the random images which the attack begins
    with, to compare with. Empty, and a line, if the method uploads no weights. Training is not touched.
    """
    found = []
    uploads = zip(server.uploaded_ids, server.uploaded_models, strict=True)
    for id, upload in islice(uploads, MOST_CLIENTS):
        interrupt.check()
        logits, sent, change = server.knowledge(upload)
        if not change:
            log.warning(f"-dlg: {server.algorithm} uploads no weights; there is nothing to attack.")
            server.dlg_eval = False
            return {}
        client = server.clients[id]
        batches = [x.to(server.device) for x, _ in client.peek(server.batch_num_per_client)]
        moved = sum(float(value.square().sum()) for value in change.values())
        if not batches or not 0 < moved < float("inf"):
            continue  # no step was made, or the client diverged
        real = torch.cat(batches)
        low, high = pixel_range(real)
        shape = (min(len(batches[0]), MOST_IMAGES), *real.shape[1:])
        draw = torch_generator(server.args.seed, server.times, current_round, id, "dlg")
        start = torch.rand(shape, generator=draw).to(real)
        rebuilt = reconstruct(logits, sent, change, start, server.num_classes, (low, high))
        real = (real - low) / (high - low)
        found.append((psnr(rebuilt, real), psnr(start, real)))
    end, begin = torch.tensor(found).mean(0).tolist() if found else (float("nan"),) * 2
    log.info(f"-dlg, round {current_round}: PSNR {end:.2f} dB over {len(found)} clients; random images {begin:.2f} dB")
    return {"rs_dlg_round": current_round, "rs_dlg_psnr": end, "rs_dlg_psnr_start": begin}


def knowledge(server: Any, upload: Tensors) -> Knowledge:
    """What the attacker has: logits(params, x), all weights before training, and the change of the uploaded ones."""
    forward, trainable = server.clients[0].forward, server.clients[0].trainable
    forward.set_training(())
    sent = server.global_params  # of what does not travel, these are the initial weights
    sent = sent | {name: value for name, value in server.last_message.items() if name in sent}
    change = {name: sent[name] - upload[name] for name in trainable if name in server.last_message and name in upload}
    return lambda params, x: forward(params, x)[0], sent, change


def reconstruct(
    logits: Logits, sent: Tensors, change: Tensors, start: Tensor, num_classes: int, pixels: tuple[float, float]
) -> Tensor:
    """Images in [0, 1] like ``start`` (n, ...) whose gradient at the weights ``sent`` points where ``change`` does.

    pixels: what 0 and 1 are for the network.
    """
    low, high = pixels
    x = start.clone().requires_grad_()
    bias = change.get("head.bias", start.new_zeros(num_classes))  # negative where a class is in the batch (iDLG)
    labels = (-LABEL * bias / bias.abs().max().clamp_min(TINY)).repeat(len(start), 1).requires_grad_()
    params = {name: value.detach().clone().requires_grad_(name in change) for name, value in sent.items()}
    moving = [params[name] for name in change]
    optimizer = torch.optim.Adam([{"params": [x], "lr": STEP}, {"params": [labels], "lr": 2 * STEP}])
    for _ in range(ITERATIONS):
        loss = F.cross_entropy(logits(params, low + (high - low) * x), labels.softmax(1))
        grads = torch.autograd.grad(loss, moving, create_graph=True, allow_unused=True)
        used = [(g.flatten(), c.flatten()) for g, c in zip(grads, change.values(), strict=True) if g is not None]
        ours, theirs = (torch.cat(part) for part in zip(*used, strict=True))
        distance = 1 - F.cosine_similarity(ours / ours.detach().norm(), theirs / theirs.norm(), dim=0)
        for variable, grad in zip((x, labels), torch.autograd.grad(distance, (x, labels)), strict=True):
            variable.grad = grad.nan_to_num()
        optimizer.step()
        with torch.no_grad():
            x.clamp_(0, 1)
    return x.detach()


def pixel_range(x: Tensor) -> tuple[float, float]:
    """What 0 and 1 of an image became: -1 and 1 as the generators write them, or the extremes where x exceeds these."""
    low, high = min(float(x.min()), -1.0), max(float(x.max()), 1.0)
    return low, high


def psnr(rebuilt: Tensor, real: Tensor) -> float:
    """Peak signal-to-noise ratio in dB, mean over ``rebuilt`` (n, ...), each against the nearest of ``real`` (m, ...).

    Both in [0, 1]. Which rebuilt image stands for which real one is nobody's knowledge, hence the nearest.
    """
    errors = (rebuilt[:, None] - real).square().flatten(2).mean(2).amin(1)
    return float(-10 * errors.clamp_min(SMALLEST_ERROR).log10().mean())

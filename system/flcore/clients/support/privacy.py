"""What --proto_min_count and --proto_noise do to uploaded class prototypes, and the differential privacy it gives.

The guarantee, argued in docs/privacy.md: neighbours are two data sets of a client that differ in one sample, replaced
by another of the same class. So labels and the counts n_c of the classes are public, and the extractor is taken as
given: what weights give away is not covered. Embeddings are clipped to length C, so that a replacement moves the mean
of its class by 2C / n_c at most and no other mean: all prototypes of one upload together are one Gaussian mechanism
with standard deviation SIGMA * 2C / n_c, and a client's uploads add up over the rounds.
"""

import logging
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flcore.trainmodel.prototypes import class_prototypes, clip_lengths
from flcore.utils.cli import ours
from flcore.utils.errors import UsageError
from flcore.utils.seeds import torch_generator

FLAGS = tuple(flag.name for flag in ours.PROTOTYPES)
log = logging.getLogger(__name__)

ORDERS = 1 + np.geomspace(1e-3, 1e4, 500)  # of Renyi divergences; the best one is taken


def guarantee(args: Any, server: Any) -> dict[str, Any]:
    """What run.json says of --proto_noise, also logged; empty where it is off or the method uploads no prototypes.

    Raises:
        UsageError: the method's uploads cannot take noise, or opacus is not installed.
    """
    if server.rule is None and (typed := sorted(getattr(args, "given", frozenset()).intersection(FLAGS))):
        log.warning(f"note: --{', --'.join(typed)} has no effect on {args.algorithm}, which brings its own messages")
    if not args.proto_noise or not server.method.prototypes:
        return {}
    if server.method.noise_refusal:
        raise UsageError(f"--proto_noise {args.proto_noise:g} with {args.algorithm}: {server.method.noise_refusal}")
    if server.method.extras:
        sent = ", ".join(server.method.extras)
        raise UsageError(f"--proto_noise with {args.algorithm}: its clients also send {sent}, which gets no noise")
    one, all_rounds = (epsilon(args.proto_noise, rounds, args.dp_delta) for rounds in (1, args.global_rounds))
    log.info(
        f"prototype noise {args.proto_noise:g}, clip {args.proto_clip:g}: the prototypes of a round are "
        f"({one:.3g}, {args.dp_delta:g})-DP, those of {args.global_rounds} rounds ({all_rounds:.3g}, "
        f"{args.dp_delta:g})-DP; weights, labels and counts are not covered (docs/privacy.md)."
    )
    return {
        "privacy": {
            "covers": "uploaded class prototypes, given the extractor",
            "neighbours": "one sample replaced by another of its class; labels and counts are public",
            "noise_multiplier": args.proto_noise,
            "clip": args.proto_clip,
            "delta": args.dp_delta,
            "epsilon_round": one,
            "epsilon_all_rounds": all_rounds,
            "rounds": args.global_rounds,
        }
    }


def epsilon(noise: float, releases: int, delta: float) -> float:
    """Epsilon at `delta` of `releases` Gaussian mechanisms with the noise multiplier `noise`: an upper bound (Renyi).

    noise: standard deviation / L2 sensitivity. Raises UsageError without opacus.
    """
    try:
        from opacus.accountants import RDPAccountant  # here: optional, and slow to import
    except ImportError:
        raise UsageError("--proto_noise needs opacus for its accounting: pip install 'opacus>=1.5'") from None
    accountant = RDPAccountant()
    if releases:
        accountant.history = [(noise, 1.0, int(releases))]  # every sample is in every upload: nothing is subsampled
    return float(accountant.get_epsilon(delta, alphas=list(ORDERS)))


def sensitivity(sizes: Tensor, clip: float) -> Tensor:
    """How far one replaced sample moves the mean of its class at most, for classes of `sizes` (C,) samples -> (C,)."""
    return 2 * clip / sizes


def class_means(z: Tensor, y: Tensor, num_classes: int, args: Any, *key: int) -> tuple[Tensor, Tensor]:
    """`class_prototypes` as the flags want it: of embeddings z (n, D) with labels y (n,) -> (C, D), counts (C,).

    With --proto_noise embeddings are clipped, averaged and blurred; a class of fewer than --proto_min_count samples
    looks like one that the client does not hold. Whatever is done to the result later is covered by the guarantee.

    Args:
        key: repeat, round and client, for the noise.
    """
    prototypes, counts = class_prototypes(clip_lengths(z, args.proto_clip) if args.proto_noise else z, y, num_classes)
    if args.proto_min_count <= 1 and not args.proto_noise:
        return prototypes, counts
    if args.proto_noise:
        noise = torch.randn(prototypes.shape, generator=torch_generator(args.seed, *key, "prototype noise"))
        scale = args.proto_noise * sensitivity(counts.clamp_min(1), args.proto_clip)
        prototypes = prototypes + scale[:, None] * noise.to(prototypes)
    kept = counts >= max(args.proto_min_count, 1)
    return torch.where(kept[:, None], prototypes, 0), torch.where(kept, counts, 0)

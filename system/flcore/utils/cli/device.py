"""The device that a run computes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flcore.utils.errors import UsageError


def resolve_device(args: Any, say: Callable[[str], None] = print) -> torch.device:
    """The device that -dev and -did name, said in one line.

    Card numbers count what the caller's CUDA_VISIBLE_DEVICES leaves visible; that variable is never written.

    Raises:
        UsageError: the device was named and is not there.
    """
    kind, _, number = args.device.partition(":")
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    idle = "-did has no effect" if "device_id" in args.given else ""
    if kind == "auto" and not cards:
        say(f"device: cpu ({'; '.join(filter(None, ('no CUDA device found', idle)))})")
        return torch.device("cpu")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UsageError("-dev mps: this machine or this build of torch has no MPS device; use -dev cpu or -dev auto")
    if kind in ("cpu", "mps"):
        say(f"device: {kind}" + (f" ({idle})" if idle else ""))
        return torch.device(kind)

    if not args.device_id.isdecimal():
        raise UsageError(f"-did {args.device_id}: takes the number of one card, such as 0")
    if number and "device_id" in args.given and int(number) != int(args.device_id):
        raise UsageError(f"-dev {args.device} and -did {args.device_id} name different cards; give one of them")
    card = int(number or args.device_id)
    if not cards:
        raise UsageError(f"-dev {args.device}: torch sees no CUDA device; use -dev cpu or -dev auto")
    if card >= cards:
        raise UsageError(
            f"-dev {args.device} -did {args.device_id}: there is no card {card}, torch sees {cards} (from 0)"
        )
    say(f"device: cuda:{card} ({torch.cuda.get_device_name(card)})")
    return torch.device("cuda", card)

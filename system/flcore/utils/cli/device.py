"""The device that a run computes on."""

from collections.abc import Callable

import torch

from flcore.utils.errors import UsageError


def resolve_device(device: str, device_id: str | None = None, say: Callable[[str], None] = print) -> torch.device:
    """The device that ``-dev device`` and ``-did device_id`` (None: not given) name, said in one line.

    Card numbers count what the caller's CUDA_VISIBLE_DEVICES leaves visible; that variable is never written.

    Raises:
        UsageError: the device was named and is not there.
    """
    kind, _, number = device.partition(":")
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    idle = "" if device_id is None else "-did has no effect"
    chosen = device_id or "0"
    if kind == "auto" and not cards:
        say(f"device: cpu ({'; '.join(filter(None, ('no CUDA device found', idle)))})")
        return torch.device("cpu")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UsageError("-dev mps: this machine or this build of torch has no MPS device; use -dev cpu or -dev auto")
    if kind in ("cpu", "mps"):
        say(f"device: {kind}" + (f" ({idle})" if idle else ""))
        return torch.device(kind)

    if number and device_id is not None and int(number) != int(chosen):
        raise UsageError(f"-dev {device} and -did {chosen} name different cards; give one of them")
    card = int(number or chosen)
    if not cards:
        raise UsageError(f"-dev {device}: torch sees no CUDA device; use -dev cpu or -dev auto")
    if card >= cards:
        raise UsageError(f"-dev {device} -did {chosen}: there is no card {card}, torch sees {cards} (from 0)")
    say(f"device: cuda:{card} ({torch.cuda.get_device_name(card)})")
    return torch.device("cuda", card)

"""How much memory a run needed."""

import sys

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def peak_memory() -> dict[str, int]:
    """The most memory that this process has held at one time since it started, in bytes.

    `resident`: in main memory, where the system tells. `cuda`: in tensors on the fullest CUDA card, where one is used.
    Both only grow, so of several repeats in one process the later ones include the earlier.
    """
    peak = {}
    if resource:
        unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss: bytes on macOS, KiB elsewhere
        peak["resident"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        peak["cuda"] = max(torch.cuda.max_memory_allocated(card) for card in range(torch.cuda.device_count()))
    return peak

"""How much memory a run needed."""

import sys
from pathlib import Path

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

STATUS = Path("/proc/self/status")


def peak_memory() -> dict[str, int]:
    """The most memory that this process has held at one time since it started, in bytes.

    `resident`: in main memory, where the system tells. `cuda`: in tensors on the fullest CUDA card, where one is used.
    Both only grow, so of several repeats in one process the later ones include the earlier.
    """
    peak = {}
    if STATUS.exists():  # Linux, where the other number includes what the program that started this one held
        peak["resident"] = 1024 * next(
            int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:")
        )
    elif resource:
        unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss: bytes on macOS, KiB elsewhere
        peak["resident"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    if torch.cuda.is_initialized():
        peak["cuda"] = max(torch.cuda.max_memory_allocated(card) for card in range(torch.cuda.device_count()))
    return peak

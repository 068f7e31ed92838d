"""What this process may use of the machine."""

import os


def usable_cores() -> int:
    """Processor cores, without those that the system has ruled out for this process; at least 1."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return usable or 1

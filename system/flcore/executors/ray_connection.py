"""Joining a Ray cluster, which the executor and sweeps do alike."""

from __future__ import annotations

import logging
import os
import signal
from typing import Any

from flcore.utils import interrupt
from flcore.utils.errors import UsageError
from flcore.utils.machine import usable_cores


def connect(address: str | None, flag: str) -> tuple[Any, bool]:
    """Ray's module, connected, and whether it was connected here: who did that ends it with ``shutdown``.

    address: of a cluster, such as "auto" or "host:6379"; None: one of this machine alone is started.
    flag: what asked for it, for messages.

    Raises:
        UsageError: Ray is not installed, or there is no such cluster.
    """
    try:
        import ray as module  # here: optional, and slow to import
    except ImportError:
        raise UsageError(f"{flag} needs Ray: pip install 'ray>=2.40'") from None
    ray: Any = module
    if ray.is_initialized():
        return ray, False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray tells its makers otherwise
    handlers = {number: signal.getsignal(number) for number in interrupt.SIGNALS}
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    here = {"num_cpus": usable_cores(), "include_dashboard": False} if address is None else {}
    try:
        ray.init(address=address or "local", **quiet, **here)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise UsageError(f"--ray_address {address or 'of this machine'}: {first_line(error)}") from None
    finally:
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)  # Ray takes SIGTERM for itself
    return ray, True


def first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__

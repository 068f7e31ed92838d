"""A method as a real federation: each client a process of its own, with Flower between them and the server."""

import importlib
from typing import Any

from flcore.utils.errors import UsageError


def flower(module: str) -> Any:
    """A module of Flower, which is optional.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return importlib.import_module(f"flwr.{module}")
    except ImportError as error:
        raise UsageError(f"a federation needs Flower ({error}): pip install 'flwr>=1.42'") from None

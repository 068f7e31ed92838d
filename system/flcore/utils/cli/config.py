"""A file of settings: TOML, flags by their long names, such as ``num_clients = 20``."""

import tomllib
from pathlib import Path
from typing import Any

from flcore.utils.errors import UsageError


def read_config(path: Path) -> dict[str, Any]:
    """The values in a file by their names, not checked further.

    Raises:
        UsageError: there is no such file, it is not TOML, or it holds more than names with one value each.
    """
    content = read_toml(path, "--config ")
    for name, value in content.items():
        if isinstance(value, dict | list) and not (name == "model_args" and isinstance(value, dict)):
            raise UsageError(f"--config {path}: {name} has several values, and a run takes one")
    if "config" in content:
        raise UsageError(f"--config {path}: it cannot name another file")
    return content


def read_toml(path: Path, where: str = "") -> dict[str, Any]:
    """The content of a TOML file; ``where`` stands before its name in messages.

    Raises:
        UsageError: there is no such file, or it is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{where}{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML
        raise UsageError(f"{where}{path}: {error}") from None

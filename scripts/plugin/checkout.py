"""A PFLlib checkout: where its system/ is, what is copied there, and what was."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
from pathlib import Path

OURS = Path(__file__).resolve().parents[2] / "system"
FILES = (
    "flcore/hyperparams.py",
    "flcore/clients/clientcpd.py",
    "flcore/clients/localrule.py",
    "flcore/trainmodel/forward.py",
    "flcore/servers/messages.py",
    "flcore/servers/prototypes.py",
    "flcore/servers/roundloop.py",
    "flcore/servers/servercpd.py",
    "flcore/trainmodel/cpd.py",
    "flcore/trainmodel/optimizers.py",
    "flcore/trainmodel/prototypes.py",
)
# What a checkout must have, and the class each file must define for the copied files to work.
NEEDED = {
    "main.py": None,
    "flcore/clients/clientbase.py": "Client",
    "flcore/servers/serverbase.py": "Server",
    "flcore/trainmodel/models.py": "BaseHeadSplit",
}
MANIFEST = (
    ".fedcpd-plugin.json"  # in system/: digests of the files as copied, to tell ours from edited and foreign ones
)


class NotACheckoutError(Exception):
    """The folder is no PFLlib checkout."""


class RefusedError(Exception):
    """Nothing was changed; the text says why, and what to do."""


def find_system(path: Path) -> Path:
    """The `system` folder of the PFLlib checkout at `path` (or of `path` itself).

    Raises:
        NotACheckoutError: it is not a PFLlib checkout; the message lists what is missing.
    """
    if not path.is_dir():
        raise NotACheckoutError(f"{path}: no such folder; give the folder of a PFLlib checkout")
    system = path if (path / "main.py").is_file() and (path / "flcore").is_dir() else path / "system"
    missing = []
    for name, needed in NEEDED.items():
        file = system / name
        if not file.is_file():
            missing.append(f"  no file {file}")
        elif needed and not re.search(rf"^class {needed}\b".encode(), file.read_bytes(), re.MULTILINE):
            missing.append(f"  no class {needed} in {file} (too old a PFLlib?)")
    if missing:
        raise NotACheckoutError("\n".join([f"{path} is not a PFLlib checkout:", *missing]))
    if system.resolve() == OURS:
        raise NotACheckoutError(
            f"{path} is this framework itself, which has FedCPD; give the folder of a PFLlib checkout"
        )
    return system


def check_age(system: Path) -> None:
    """
    Raises:
        RefusedError: PFLlib's `Server` is from before May 2023, when `set_clients` took ``args`` as well: FedCPD would
            be copied and then not run.
    """
    path = system / "flcore" / "servers" / "serverbase.py"
    try:
        methods = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError):
        return  # the checkout's own programs say so
    if any(method.name == "set_clients" and len(method.args.args) > 2 for method in methods):
        raise RefusedError(
            f"{path}: `Server.set_clients` takes more than the client's class, as before May 2023 (commit 6e82233); "
            "FedCPD would not run there. Update the checkout. Nothing was changed."
        )


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_manifest(system: Path) -> dict[str, str]:
    """{file: sha256 as it was copied}, empty where nothing is installed."""
    path = system / MANIFEST
    try:
        files = json.loads(path.read_bytes())["files"]
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name in files):
            raise ValueError("a file outside the checkout")
        return {str(name): str(value) for name, value in files.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise RefusedError(f"{path} is damaged; remove it and the files copied earlier, then run again") from None


def read(path: Path) -> bytes | None:
    """The content of a file, None where there is none."""
    if not os.path.lexists(path):
        return None
    if not path.is_file():
        raise RefusedError(f"{path} is in the way: it is not a file")
    return path.read_bytes()

"""What an installation or its removal changes: planned with all checks first, then carried out whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plugin import checkout
from plugin.checkout import MANIFEST, RefusedError, digest, read, read_manifest
from plugin.edit import main_text, own_registration, with_blocks, without_blocks


@dataclass(frozen=True)
class Change:
    """A file to write (`new`) or to remove (`new` is None); `old` is its present content, None where there is none."""

    path: Path
    old: bytes | None
    new: bytes | None


def plan_install(system: Path) -> tuple[list[Change], list[str]]:
    """(changes, remarks) of an installation or update of the checkout.

    Raises:
        RefusedError: PFLlib is too old, a foreign or edited file is in the way, or main.py is not recognised.
    """
    checkout.check_age(system)
    known = read_manifest(system)
    changes = []
    digests = {}
    blocked = []
    for name in sorted({*checkout.FILES, *known}):
        new = None  # of a file that an earlier version had and this one has not
        if name in checkout.FILES:
            new = read(checkout.OURS / name)
            if new is None:
                raise RefusedError(f"{checkout.OURS / name} is missing: this copy of the framework is incomplete")
            digests[name] = digest(new)
        old = read(system / name)
        if old == new:
            continue
        if old is not None and digest(old) != known.get(name):
            why = "was edited after it was copied" if name in known else "is not from this installer"
            blocked.append(f"  {system / name} {why}")
        changes.append(Change(system / name, old, new))
    if blocked:
        head = "Nothing was changed: these files are in the way. Move or rename them, then run again."
        raise RefusedError("\n".join([head, *blocked]))

    manifest = json.dumps({"files": digests}, indent=1).encode() + b"\n"
    if read(system / MANIFEST) != manifest:
        changes.append(Change(system / MANIFEST, read(system / MANIFEST), manifest))

    main = (system / "main.py").resolve()
    raw, text, encoding = main_text(main)
    bare = without_blocks(text)
    remark = f"{main} registers FedCPD."
    try:
        by_user = own_registration(bare)
        new_text = bare if by_user else with_blocks(bare)
    except RefusedError:  # all blocks may still be there, put in by hand or before main.py got a form unknown here
        if bare == text or not own_registration(text):
            raise
        by_user, new_text = True, text
    if by_user:
        remark = f"{main} registers FedCPD by hand: left as it is."
    new_main = new_text.encode(encoding)
    if new_main != raw:
        changes.append(Change(main, raw, new_main))  # last, so that main.py never names files that are not there
    return changes, [remark]


def plan_uninstall(system: Path) -> tuple[list[Change], list[str]]:
    """(changes, files kept because the user edited them) of taking FedCPD out.

    Raises:
        RefusedError: main.py still registers FedCPD by hand.
    """
    known = read_manifest(system)
    main = (system / "main.py").resolve()
    raw, text, encoding = main_text(main)
    bare = without_blocks(text)
    installed = bool(known) or bare != text
    if installed and own_registration(bare):
        raise RefusedError(f"{main} registers FedCPD by hand: take those lines out first. Nothing was changed.")
    changes = []
    kept = []
    if bare != text:
        changes.append(Change(main, raw, bare.encode(encoding)))  # first, for the same reason
    for name in sorted({*checkout.FILES, *known}) if installed else ():
        old = read(system / name)
        same = old is not None and (checkout.OURS / name).is_file() and old == (checkout.OURS / name).read_bytes()
        if same or (old is not None and digest(old) == known.get(name)):
            changes.append(Change(system / name, old, None))
        elif old is not None and name in known:
            kept.append(str(system / name))
    if known:
        changes.append(Change(system / MANIFEST, read(system / MANIFEST), None))
    return changes, kept


def apply(system: Path, changes: Sequence[Change]) -> None:
    """Carry out all changes or none: everything is written under temporary names first, then put in place.

    Raises:
        RefusedError: a write failed; the files are as they were.
    """

    def temporary(path: Path) -> Path:
        return path.with_name(f".{path.name}.fedcpd-new")

    def put(path: Path, content: bytes | None) -> None:
        if content is None:
            path.unlink(missing_ok=True)
            for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
                compiled.unlink()
        else:
            os.replace(temporary(path), path)

    def stage(path: Path, content: bytes | None) -> None:
        if content is not None:
            temporary(path).write_bytes(content)
            if path.exists():
                shutil.copymode(path, temporary(path))

    done: list[Change] = []
    try:
        for change in changes:
            stage(change.path, change.new)
        for change in changes:
            done.append(change)
            put(change.path, change.new)
    except BaseException as error:  # also an interruption from the keyboard
        lost = []
        for change in reversed(done):
            try:
                stage(change.path, change.old)
                put(change.path, change.old)
            except OSError:
                lost.append(str(change.path))
        if not isinstance(error, OSError) and not lost:
            raise
        outcome = f"These could not be put back: {', '.join(lost)}" if lost else "Everything is as it was."
        raise RefusedError(f"cannot write {system}: {error}. {outcome}") from error
    finally:
        for change in changes:
            temporary(change.path).unlink(missing_ok=True)

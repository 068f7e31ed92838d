"""Install FedCPD into an existing PFLlib checkout, update it there, or take it out again.

    python scripts/install_plugin.py PATH_TO_PFLLIB [--dry-run] [--uninstall]

Copies the five portable files into the same places of the checkout and registers FedCPD in its system/main.py: the
import, the flags and a branch of the if-chain over args.algorithm, each between marker comments. main.py is analysed
with `ast` and edited as lines, so every other byte of it stays. All checks come before the first write, and a write
that fails is rolled back. See docs/plugin.md.

Exit status: 0 done (or nothing to do), 1 refused or failed, 2 not a PFLlib checkout.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

OURS = Path(__file__).resolve().parent.parent / "system"

from flcore.utils.errors import RunError, UsageError  # noqa: E402

FILES = (
    "flcore/clients/clientcpd.py",
    "flcore/clients/localrule.py",
    "flcore/servers/roundloop.py",
    "flcore/servers/servercpd.py",
    "flcore/trainmodel/cpd.py",
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
BEGIN = "# >>> FedCPD plug-in, added by install_plugin.py >>>"
END = "# <<< FedCPD plug-in <<<"
IMPORT = "from flcore.servers.servercpd import FedCPD"
MEND = "mend or remove that block by hand, then run again"


class UnrecognisedError(Exception):
    """main.py lacks a place this installer knows; the text says which and why."""


@dataclass(frozen=True)
class Block:
    """Lines of code to put before line `line` (counted from 1) of main.py."""

    line: int
    code: list[str]


@dataclass(frozen=True)
class Change:
    """A file to write (`new`) or to remove (`new` is None); `old` is its present content, None where there is none."""

    path: Path
    old: bytes | None
    new: bytes | None


# --- main.py: where the three blocks go -------------------------------------------------------------------------------


def lines_of(text: str) -> list[str]:
    """The lines with their ends, split where Python counts lines (str.splitlines also splits at form feeds)."""
    return list(io.StringIO(text, newline=""))


def indent_of(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def server_imports(tree: ast.Module) -> list[ast.ImportFrom]:
    return [n for n in tree.body if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("flcore.servers.")]


def import_block(tree: ast.Module, lines: list[str]) -> Block:
    found = server_imports(tree)
    if not found:
        raise UnrecognisedError("no `from flcore.servers... import ...` at the top level")
    return Block((found[-1].end_lineno or 0) + 1, [IMPORT])


def flags_block(tree: ast.Module, lines: list[str]) -> Block:
    found = []
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr | ast.Return):
            for node in ast.walk(statement):
                match node:
                    case ast.Call(func=ast.Attribute(ast.Name(id=parser), "parse_args" | "parse_known_args")):
                        found.append((statement, parser))
    if len(found) != 1:
        raise UnrecognisedError(
            f"{len(found)} statements of the form `args = parser.parse_args()`, where one is expected"
        )
    statement, parser = found[0]
    line = lines[statement.lineno - 1]
    if len(indent_of(line).encode()) != statement.col_offset:
        raise UnrecognisedError(f"line {statement.lineno} has another statement before `{parser}.parse_args()`")
    return Block(statement.lineno, [f"{indent_of(line)}FedCPD.add_args({parser})"])


def branch_block(tree: ast.Module, lines: list[str]) -> Block:
    servers = {alias.asname or alias.name for node in server_imports(tree) for alias in node.names}

    def is_elif(node: ast.stmt) -> bool:
        return lines[node.lineno - 1].encode()[node.col_offset :].startswith(b"elif")

    def branches(node: ast.If) -> Iterator[ast.If]:
        yield node
        while len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If) and is_elif(node.orelse[0]):
            node = node.orelse[0]
            yield node

    def tested(branch: ast.If) -> list[str]:  # what stands before .algorithm in the condition: usually args
        attributes = [node for node in ast.walk(branch.test) if isinstance(node, ast.Attribute)]
        return [ast.unparse(node.value) for node in attributes if node.attr == "algorithm"]

    def built(branch: ast.If) -> list[tuple[str, str]]:  # of `server = FedAvg(args, i)`: "server" and "args, i"
        calls = []
        for node in (inner for statement in branch.body for inner in ast.walk(statement)):
            match node:
                case ast.Assign(
                    targets=[ast.Name(id=server)],
                    value=ast.Call(func=ast.Name(id=name), args=[first, second], keywords=[]),
                ) if name in servers:
                    calls.append((server, f"{ast.unparse(first)}, {ast.unparse(second)}"))
        return calls

    def chooses(chain: ast.If) -> list[ast.If]:  # the branches that choose a server by args.algorithm
        return [branch for branch in branches(chain) if tested(branch) and built(branch)]

    chains: dict[int, ast.If] = {}  # by the block they stand in; of several ifs in a row, the last
    for parent in ast.walk(tree):
        for body in (value for _, value in ast.iter_fields(parent) if isinstance(value, list)):
            for node in body:
                if isinstance(node, ast.If) and not is_elif(node) and chooses(node):
                    chains[id(body)] = node
    if len(chains) != 1:
        form = "`if args.algorithm == ...: server = X(args, i)`"
        raise UnrecognisedError(f"{len(chains)} if-chains of the form {form}, where one is expected")

    (chain,) = chains.values()
    *_, last = branches(chain)
    example = chooses(chain)[-1]
    args = tested(example)[0]
    server, arguments = built(example)[-1]
    indent = indent_of(lines[last.lineno - 1])
    body_line = last.body[0].lineno
    body_indent = indent_of(lines[body_line - 1])
    if len(body_indent) <= len(indent):  # `elif ...: server = X(args, i)` on one line
        body_indent = indent + ("\t" if "\t" in indent else "    ")
    end = last.body[-1].end_lineno or 0
    line = end + 1
    if last.orelse:  # between the last branch and the else there are only comments and empty lines
        line = next(n for n in range(end + 1, last.orelse[0].lineno + 1) if re.match(r"\s*else\b", lines[n - 1]))
    return Block(
        line,
        [
            f'{indent}elif {args}.algorithm == "FedCPD":',
            f"{body_indent}{args}.model = FedCPD.split_head({args}.model)",
            f"{body_indent}{server} = FedCPD({arguments})",
        ],
    )


BY_HAND = (  # what, where it goes, the code in PFLlib's usual names
    (import_block, "after the last `from flcore.servers... import ...`", [IMPORT]),
    (flags_block, "on the line before `args = parser.parse_args()`", ["FedCPD.add_args(parser)"]),
    (
        branch_block,
        "in the if-chain over args.algorithm, before its final else",
        [
            'elif args.algorithm == "FedCPD":',
            "    args.model = FedCPD.split_head(args.model)",
            "    server = FedCPD(args, i)",
        ],
    ),
)


def by_hand() -> str:
    parts = ["Add these lines by hand, then run this command again: it copies the files and leaves main.py as it is."]
    for _, where, code in BY_HAND:
        parts += [f"  {where}:", *(f"      {line}" for line in code)]
    return "\n".join(parts)


# --- main.py: taking blocks out and putting them in -------------------------------------------------------------------


def without_blocks(text: str) -> str:
    """`text` without what this installer put in; the inverse of `with_blocks`.

    Raises:
        RunError: a marker without its partner.
    """
    kept: list[str] = []
    inside = at_end = False
    for number, line in enumerate(lines_of(text), 1):
        word = line.strip()
        if word in (BEGIN, END):
            if (word == END) != inside:
                raise RunError(f"main.py, line {number}: marker `{word}` has no partner; {MEND}")
            inside = not inside
            at_end = not inside and not line.endswith(("\n", "\r"))
        elif not inside:
            kept.append(line)
    if inside:
        raise RunError(f"main.py: the last marker `{BEGIN}` has no partner; {MEND}")
    if at_end and kept:  # such a block took over the missing line end of the line before it
        kept[-1] = kept[-1].rstrip("\r\n")
    return "".join(kept)


def with_blocks(text: str) -> str:
    """`text` (without our blocks) with the three blocks put in.

    Raises:
        RunError: a place was not recognised; the message holds the lines to add by hand.
    """
    reasons = []
    blocks = []
    lines = lines_of(text)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise RunError(f"main.py is not valid Python here ({error}): left untouched.\n{by_hand()}") from None
    for find, where, _ in BY_HAND:
        try:
            blocks.append(find(tree, lines))
        except UnrecognisedError as reason:
            reasons.append(f"  {where}: {reason}")
    if reasons:
        raise RunError(
            "\n".join(["main.py is not in the form this installer knows: left untouched.", *reasons, by_hand()])
        )

    ends = re.search(r"\r\n|\n|\r", text)
    default_end = ends.group() if ends else "\n"
    for block in sorted(blocks, key=lambda b: -b.line):
        neighbour = lines[block.line - 2]
        line_end = neighbour[len(neighbour.rstrip("\r\n")) :] or default_end
        indent = indent_of(block.code[0])
        added = [f"{line}{line_end}" for line in (indent + BEGIN, *block.code, indent + END)]
        if not neighbour.endswith(("\n", "\r")):  # a file without a final line end stays one
            lines[block.line - 2] += line_end
            added[-1] = indent + END
        lines[block.line - 1 : block.line - 1] = added
    new = "".join(lines)
    try:
        ast.parse(new)
    except SyntaxError as error:
        raise RunError(f"main.py would become invalid Python ({error}): left untouched.\n{by_hand()}") from None
    return new


def own_registration(text: str) -> bool:
    """True where the user registered FedCPD outside our markers, in full; False where main.py does not know FedCPD.

    Raises:
        RunError: some of it is there, or FedCPD is another implementation.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return False  # with_blocks says what is wrong
    imported: list[int] = []
    other: list[int] = []
    flags, branch = [], []
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(names=[*names]) if any("FedCPD" in (a.name, a.asname) for a in names):
                (imported if node.module == "flcore.servers.servercpd" else other).append(node.lineno)
            case ast.Attribute(value=ast.Name(id="FedCPD"), attr="add_args"):
                flags.append(node.lineno)
            case ast.Constant(value="FedCPD"):
                branch.append(node.lineno)
    if imported and flags and branch and not other:
        return True
    if imported or flags or branch or other:
        where = ", ".join(map(str, sorted({*imported, *flags, *branch, *other})))
        reason = (
            f"main.py mentions FedCPD outside this installer's markers (line {where}), but not in full or not this one"
        )
        raise RunError(f"{reason}: left untouched. Take those lines out and run again, or complete them.\n{by_hand()}")
    return False


# --- the plan: what changes -------------------------------------------------------------------------------------------


def find_system(path: Path) -> Path:
    """The `system` folder of the PFLlib checkout at `path` (or of `path` itself).

    Raises:
        UsageError: it is not a PFLlib checkout; the message lists what is missing.
    """
    if not path.is_dir():
        raise UsageError(f"{path}: no such folder; give the folder of a PFLlib checkout")
    system = path if (path / "main.py").is_file() and (path / "flcore").is_dir() else path / "system"
    missing = []
    for name, needed in NEEDED.items():
        file = system / name
        if not file.is_file():
            missing.append(f"  no file {file}")
        elif needed and not re.search(rf"^class {needed}\b".encode(), file.read_bytes(), re.MULTILINE):
            missing.append(f"  no class {needed} in {file} (too old a PFLlib?)")
    if missing:
        raise UsageError("\n".join([f"{path} is not a PFLlib checkout:", *missing]))
    if system.resolve() == OURS:
        raise UsageError(f"{path} is this framework itself, which has FedCPD; give the folder of a PFLlib checkout")
    return system


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
        raise RunError(f"{path} is damaged; remove it and the files copied earlier, then run again") from None


def read(path: Path) -> bytes | None:
    """The content of a file, None where there is none."""
    if not os.path.lexists(path):
        return None
    if not path.is_file():
        raise RunError(f"{path} is in the way: it is not a file")
    return path.read_bytes()


def main_text(path: Path) -> tuple[bytes, str, str]:
    """(bytes, text, encoding) of main.py; the text is without a byte order mark, the encoding puts it back."""
    raw = path.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
        if text.encode(encoding) != raw:
            raise ValueError("it does not survive decoding")
    except (SyntaxError, ValueError) as error:
        raise RunError(f"{path}: cannot read it as Python source ({error}): left untouched.\n{by_hand()}") from None
    return raw, text, encoding


def plan_install(system: Path) -> tuple[list[Change], list[str]]:
    """(changes, remarks) of an installation or update of the checkout.

    Raises:
        RunError: a foreign or edited file is in the way, or main.py is not recognised.
    """
    known = read_manifest(system)
    changes = []
    digests = {}
    blocked = []
    for name in sorted({*FILES, *known}):
        new = None  # of a file that an earlier version had and this one has not
        if name in FILES:
            new = read(OURS / name)
            if new is None:
                raise RunError(f"{OURS / name} is missing: this copy of the framework is incomplete")
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
        raise RunError("\n".join([head, *blocked]))

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
    except RunError:  # all blocks may still be there, put in by hand or before main.py got a form unknown here
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
        RunError: main.py still registers FedCPD by hand.
    """
    known = read_manifest(system)
    main = (system / "main.py").resolve()
    raw, text, encoding = main_text(main)
    bare = without_blocks(text)
    installed = bool(known) or bare != text
    if installed and own_registration(bare):
        raise RunError(f"{main} registers FedCPD by hand: take those lines out first. Nothing was changed.")
    changes = []
    kept = []
    if bare != text:
        changes.append(Change(main, raw, bare.encode(encoding)))  # first, for the same reason
    for name in sorted({*FILES, *known}) if installed else ():
        old = read(system / name)
        same = old is not None and (OURS / name).is_file() and old == (OURS / name).read_bytes()
        if same or (old is not None and digest(old) == known.get(name)):
            changes.append(Change(system / name, old, None))
        elif old is not None and name in known:
            kept.append(str(system / name))
    if known:
        changes.append(Change(system / MANIFEST, read(system / MANIFEST), None))
    return changes, kept


# --- doing it ---------------------------------------------------------------------------------------------------------


def apply(system: Path, changes: Sequence[Change]) -> None:
    """Carry out all changes or none: everything is written under temporary names first, then put in place.

    Raises:
        RunError: a write failed; the files are as they were.
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
        raise RunError(f"cannot write {system}: {error}. {outcome}") from error
    finally:
        for change in changes:
            temporary(change.path).unlink(missing_ok=True)


def describe(change: Change, dry_run: bool) -> str:
    """One line for a file; for main.py in a dry run, the unified diff."""
    if change.path.name == "main.py" and dry_run:
        old, new = ((c or b"").decode("utf-8", "replace").splitlines() for c in (change.old, change.new))
        return "\n".join(difflib.unified_diff(old, new, str(change.path), str(change.path), lineterm=""))
    verb = "remove" if change.new is None else "copy to" if change.old is None else "update"
    return f"{'would ' if dry_run else ''}{verb} {change.path}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(description="Install FedCPD into a PFLlib checkout (docs/plugin.md).")
    parser.add_argument("path", type=Path, metavar="PATH_TO_PFLLIB", help="folder of the checkout, or its system/")
    parser.add_argument("--dry-run", action="store_true", help="print what would change; write nothing")
    parser.add_argument("--uninstall", action="store_true", help="take FedCPD out again; the tree is as it was before")
    options = parser.parse_args(argv)
    for stream in (sys.stdout, sys.stderr):  # what the terminal cannot show must not stop the work
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        system = find_system(options.path)
        changes, remarks = (plan_uninstall if options.uninstall else plan_install)(system)
        if not options.dry_run:
            apply(system, changes)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    except (RunError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for change in changes:
        print(describe(change, options.dry_run))
    if not changes:
        print(f"FedCPD is {'not installed' if options.uninstall else 'installed and up to date'}: nothing to do.")
    if options.uninstall:
        for path in remarks:
            print(f"{path} was edited after it was copied, so it is kept; FedCPD is otherwise out.", file=sys.stderr)
        return 1 if remarks else 0
    if changes and not options.dry_run:
        print(*remarks, sep="\n")
        print(f"Try it: cd {system}; python main.py -algo FedCPD -data Cifar100 -ncl 100 -nc 20")
    return 0


if __name__ == "__main__":
    sys.exit(main())

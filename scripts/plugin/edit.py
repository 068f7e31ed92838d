"""The text of main.py: blocks put in and taken out, each between two marker comments; every other byte stays."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

from plugin.checkout import RefusedError
from plugin.places import BY_HAND, UnrecognisedError, by_hand, indent_of, lines_of

BEGIN = "# >>> FedCPD plug-in, added by install_plugin.py >>>"
END = "# <<< FedCPD plug-in <<<"
MEND = "mend or remove that block by hand, then run again"


def main_text(path: Path) -> tuple[bytes, str, str]:
    """(bytes, text, encoding) of main.py; the text is without a byte order mark, the encoding puts it back."""
    raw = path.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
        if text.encode(encoding) != raw:
            raise ValueError("it does not survive decoding")
    except (SyntaxError, ValueError) as error:
        raise RefusedError(f"{path}: cannot read it as Python source ({error}): left untouched.\n{by_hand()}") from None
    return raw, text, encoding


def without_blocks(text: str) -> str:
    """`text` without what this installer put in; the inverse of `with_blocks`.

    Raises:
        RefusedError: a marker without its partner.
    """
    kept: list[str] = []
    inside = at_end = False
    for number, line in enumerate(lines_of(text), 1):
        word = line.strip()
        if word in (BEGIN, END):
            if (word == END) != inside:
                raise RefusedError(f"main.py, line {number}: marker `{word}` has no partner; {MEND}")
            inside = not inside
            at_end = not inside and not line.endswith(("\n", "\r"))
        elif not inside:
            kept.append(line)
    if inside:
        raise RefusedError(f"main.py: the last marker `{BEGIN}` has no partner; {MEND}")
    if at_end and kept:  # such a block took over the missing line end of the line before it
        kept[-1] = kept[-1].rstrip("\r\n")
    return "".join(kept)


def with_blocks(text: str) -> str:
    """`text` (without our blocks) with the three blocks put in.

    Raises:
        RefusedError: a place was not recognised; the message holds the lines to add by hand.
    """
    reasons = []
    blocks = []
    lines = lines_of(text)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise RefusedError(f"main.py is not valid Python here ({error}): left untouched.\n{by_hand()}") from None
    for find, where, _ in BY_HAND:
        try:
            blocks.append(find(tree, lines))
        except UnrecognisedError as reason:
            reasons.append(f"  {where}: {reason}")
    if reasons:
        raise RefusedError(
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
        raise RefusedError(f"main.py would become invalid Python ({error}): left untouched.\n{by_hand()}") from None
    return new


def own_registration(text: str) -> bool:
    """True where the user registered FedCPD outside our markers, in full; False where main.py does not know FedCPD.

    Raises:
        RefusedError: some of it is there, or FedCPD is another implementation.
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
        raise RefusedError(
            f"{reason}: left untouched. Take those lines out and run again, or complete them.\n{by_hand()}"
        )
    return False

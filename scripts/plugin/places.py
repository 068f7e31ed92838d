"""The three places of a PFLlib main.py, found in its syntax tree, and the code that belongs there."""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass

IMPORT = "from flcore.servers.servercpd import FedCPD"


class UnrecognisedError(Exception):
    """main.py lacks a place this installer knows; the text says which and why."""


@dataclass(frozen=True)
class Block:
    """Lines of code to put before line `line` (counted from 1) of main.py."""

    line: int
    code: list[str]


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

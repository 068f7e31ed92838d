"""Draws docs/round.svg, one round, and docs/folders.svg, where everything is; both from the code itself.

    python scripts/draw_architecture.py

The steps of the round are the calls in `RoundLoop.each_round`, in their order; a folder's line is the beginning of
its docstring. A test compares the drawings with the code.
"""

import ast
import re
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flcore.utils.paths import REPO
from flcore.utils.runs.files import whole_file

FLCORE = REPO / "system" / "flcore"
STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "fedcpd", "font.family": "sans-serif", "font.size": 10}
INK, SERVER, CLIENT = "#222222", "#dbe9f6", "#fde8d0"

# The steps in which clients take part, and what passes between them and the server.
AT_CLIENTS = {
    "send_models": "down: shared weights, prototypes ...",
    "score_download": "evaluation point A",
    "train_clients": "the rule, run by the executor; then point B",
    "receive_models": "up: shared weights, prototypes ...",
}


def round_steps() -> list[str]:
    """The methods that one round calls on the server, in their order."""
    tree = ast.parse((FLCORE / "servers" / "roundloop.py").read_text(encoding="utf-8"))
    loop = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "each_round")
    body = next(node for node in ast.walk(loop) if isinstance(node, ast.For))
    calls = [
        node.func
        for statement in body.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_self(node.func.value)
    ]
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    return [call.attr for call in calls if call.attr != "check_done"]


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def folders() -> list[tuple[str, str]]:
    """Every package of `flcore`, outermost first, with the beginning of its docstring."""
    found = []
    for file in sorted(FLCORE.rglob("__init__.py"), key=lambda path: path.parent.parts):
        name = "/".join(file.parent.relative_to(FLCORE.parent).parts)
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        found.append((name, re.split(r"\n\n|[:;(]", text)[0].replace("\n", " ").strip()))
    return found


def draw_round(path: Path) -> None:
    steps = round_steps()
    figure = Figure(figsize=(9, 0.72 * len(steps) + 0.8))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 9), ylim=(-0.72 * len(steps), 0.8))
    axes.axis("off")
    axes.text(2.0, 0.35, "server", ha="center", fontweight="bold", color=INK)
    axes.text(6.4, 0.35, "clients", ha="center", fontweight="bold", color=INK)
    for number, step in enumerate(steps):
        y = -0.72 * number
        _box(axes, 2.0, y, f"{number + 1}. {step}", SERVER)
        if step in AT_CLIENTS:
            _box(axes, 6.4, y, AT_CLIENTS[step], CLIENT)
            start, end = ((4.3, y), (3.2, y)) if step == "receive_models" else ((3.2, y), (4.3, y))
            axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": INK})
        if number + 1 < len(steps):
            axes.annotate("", (2.0, y - 0.5), (2.0, y - 0.22), arrowprops={"arrowstyle": "->", "color": INK})
    _save(figure, path)


def draw_folders(path: Path) -> None:
    lines = folders()
    figure = Figure(figsize=(10, 0.32 * len(lines) + 0.3))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 10), ylim=(-0.32 * len(lines), 0.3))
    axes.axis("off")
    for number, (name, text) in enumerate(lines):
        depth, y = name.count("/"), -0.32 * number
        axes.text(0.2 + 0.35 * depth, y, f"{name.rpartition('/')[2]}/", va="center", family="monospace", color=INK)
        axes.text(3.0, y, text, va="center", color=INK)
    _save(figure, path)


def _box(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    box = {"boxstyle": "round,pad=0.25", "facecolor": colour, "edgecolor": "#888888", "linewidth": 0.8}
    axes.text(x, y, text, ha="center", va="center", bbox=box, color=INK)


def _save(figure: Figure, path: Path) -> None:
    with rc_context(STYLE), whole_file(path) as temporary:
        figure.savefig(temporary, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    draw_round(REPO / "docs" / "round.svg")
    draw_folders(REPO / "docs" / "folders.svg")

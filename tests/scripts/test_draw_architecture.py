"""The drawings in docs/ show the code as it is."""

import re

import pytest

import draw_architecture
from support import REPO


def test_the_round_is_read_from_the_loop():
    steps = draw_architecture.round_steps()
    assert steps[:3] == ["select_clients", "send_models", "score_download"] and steps[-1] == "end_round"
    assert draw_architecture.AT_CLIENTS.keys() <= set(steps)


@pytest.mark.parametrize("name", ["round", "folders"])
def test_the_drawings_are_up_to_date(name, tmp_path):
    getattr(draw_architecture, f"draw_{name}")(tmp_path / "new.svg")
    texts = [
        re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())
        for path in (tmp_path / "new.svg", REPO / "docs" / f"{name}.svg")
    ]
    assert texts[0] and texts[0] == texts[1], "run: python scripts/draw_architecture.py"

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from flcore.utils import mem_utils
from support import REPO

GROW = """
from flcore.utils.mem_utils import peak_memory
before = peak_memory()["resident"]
block = bytearray(b"x") * {size}
del block
print(before, peak_memory()["resident"])
"""


@pytest.mark.skipif(mem_utils.resource is None, reason="this system does not tell")
def test_the_peak_stays_after_the_memory_is_given_back():
    """In a process of its own: in this one an earlier test may have held more."""
    size = 400 * 2**20
    code = GROW.format(size=size)
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO / "system", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split())
    assert 20 * 2**20 < before < 4 * 2**30  # torch alone takes more than 20 MiB: the unit is bytes
    assert 0.9 * size < after - before < 1.2 * size


@pytest.mark.parametrize(("platform", "expected"), [("linux", 3 * 1024), ("darwin", 3)])
def test_units(monkeypatch, tmp_path, platform, expected):
    monkeypatch.setattr(mem_utils, "STATUS", tmp_path / "none")
    usage = SimpleNamespace(RUSAGE_SELF=0, getrusage=lambda who: SimpleNamespace(ru_maxrss=3))
    monkeypatch.setattr(mem_utils, "resource", usage)
    monkeypatch.setattr(mem_utils, "sys", SimpleNamespace(platform=platform))
    assert mem_utils.peak_memory()["resident"] == expected


def test_cards_count_where_they_are_used(monkeypatch, tmp_path):
    monkeypatch.setattr(mem_utils, "STATUS", tmp_path / "none")
    monkeypatch.setattr(mem_utils, "resource", None)
    assert torch.cuda.is_initialized() or mem_utils.peak_memory() == {}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda card: (5, 7)[card])
    assert mem_utils.peak_memory() == {"cuda": 7}

"""scripts/scale.py."""

import numpy as np
import pytest

import scale
from flcore.data.reading import DataSet


def test_its_data_are_pfllibs_files(tmp_path, monkeypatch):
    monkeypatch.setattr(scale, "DIFFERENT", 2)
    data = DataSet(scale.make_data(tmp_path, 3), tmp_path)
    assert data.config()["num_clients"] == 3 and not data.problem()
    first, _, third = (data.read(i)["x"] for i in range(3))
    assert first.shape == (20, 1, 8, 8) and np.array_equal(first, third)


@pytest.mark.slow
def test_a_table_has_a_line_a_run(tmp_path, capsys):
    words = f"--clients 300 --executors loop threads --participants 3 --rounds 3 --data_dir {tmp_path}"
    assert scale.main(words.split()) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[2].startswith("| 300 | loop | ") and " 1.00 | 1.00 | " in printed[2]
    assert printed[3].startswith("| 300 | threads | ") and 100 <= int(printed[3].split("|")[8]) <= 110

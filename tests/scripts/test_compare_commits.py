"""scripts/compare_commits.py: two commits compared bit for bit."""

import subprocess

import numpy as np
import pytest

import compare_commits
from support import REPO

CHANGE = """
    @staticmethod
    def local_grad(grads, params, shared, state, hp):
        return {name: 1.001 * grad for name, grad in grads.items()}
"""  # for the end of the file, which ends with the class


def test_differences_are_named():
    one = {
        "rs_seconds": np.array([1.0]),
        "rs_test_acc": np.array([0.5, 0.25]),
        "rs_train_loss": np.array([1.0]),
        "rs_round": np.array([0, 1]),
    }
    assert compare_commits.differences(one, one | {"rs_seconds": np.array([2.0])}) == []
    other = {"rs_test_acc": np.array([0.5, 0.375]), "rs_train_loss": np.array([1.0, 2.0]), "rs_test_auc": np.ones(1)}
    assert compare_commits.differences(one, other) == [
        "rs_round in OLD alone",
        "rs_test_acc by up to 1.2e-01",
        "rs_test_auc in NEW alone",
        "rs_train_loss float64(1,) -> float64(2,)",
    ]
    assert compare_commits.differences(None, one) == ["no result in OLD"]


def test_numbers_that_are_not_finite_are_compared_by_their_bits():
    nan = {"rs_test_auc": np.array([np.nan, -0.0])}
    assert compare_commits.differences(nan, {"rs_test_auc": np.array([np.nan, -0.0])}) == []
    assert compare_commits.differences(nan, {"rs_test_auc": np.array([np.nan, 0.0])}) == [
        "rs_test_auc by up to 0.0e+00"
    ]


def test_an_unknown_commit_is_refused(capsys):
    assert compare_commits.main(["no-such-commit", "HEAD"]) == 2
    assert "no-such-commit" in capsys.readouterr().err


@pytest.mark.slow
def test_a_changed_method_is_found_in_every_executor(tmp_path, monkeypatch, capsys):
    """A commit that multiplies FedRep's gradients by 1.001 and leaves FedAvg as it is."""
    clone = tmp_path / "clone"
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", "-C", str(clone)]
    if subprocess.run(["git", "clone", "-q", str(REPO), str(clone)], capture_output=True).returncode:
        pytest.skip("these files are not a git repository")
    rule = clone / "system" / "flcore" / "clients" / "clientrep.py"
    rule.write_text(rule.read_text() + CHANGE)
    subprocess.run([*git, "commit", "-q", "-a", "-m", "FedRep, changed"], check=True)
    monkeypatch.setattr(compare_commits, "REPO", clone)
    monkeypatch.setattr(compare_commits, "TIMED_ALGORITHMS", ("FedAvg",))
    flags = ["--algorithms", "FedAvg", "FedRep", "--executors", "loop", "stacked", "--time", "1"]
    assert compare_commits.main(["HEAD~1", "HEAD", *flags, "--", "-ls", "2"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "| FedAvg | equal | equal |" in lines and "4 runs a commit, 2 different" in lines
    (changed,) = (line for line in lines if line.startswith("| FedRep |"))
    assert changed.count("rs_train_loss by up to") == 2
    assert lines[-2].startswith("|---") and lines[-1].startswith("| FedAvg | ")  # the times
    assert subprocess.run([*git, "worktree", "list"], capture_output=True, text=True).stdout.count("\n") == 1

import pytest

from flcore.utils.runs.claim import claim_run


@pytest.fixture
def claim(tmp_path):
    """`claim(lr=0.1)` claims for a run with these settings."""

    def make(goal="test", repeat=0, overwrite=False, reuse=False, resume=False, **settings):
        how = overwrite, reuse, resume
        return claim_run(tmp_path, "Digits", "FedCPD", goal, repeat, settings, *how, say=lambda line: None)

    return make

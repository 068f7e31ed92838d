"""Runs that stop in the middle, and all that they have computed."""

import numpy as np
import pytest
import torch
from torch import nn

from flcore.utils.runs.run_state import remembered

INFO = {"algorithm": "A", "dataset": "Tiny", "num_clients": 4, "repeat": 0, "settings_digest": "s", "code_digest": "c"}


# Set in every round before they are read, or another view of what is remembered.
SET_IN_A_ROUND = {
    *("selected_clients", "current_num_join_clients", "current_round", "last_message"),
    *("uploaded_ids", "uploaded_weights", "uploaded_models", "bytes_down", "bytes_up", "bytes_once", "weights"),
    *("_round_uploads", "participation", "evaluation", "recorder"),
    *("shared", "upload", "_kept"),
}


TIMES = {"rs_seconds", "total_cost", "Budget"}


class StoppedError(Exception):
    pass


def plain(value):
    """``value`` in parts that can be compared; times, which differ from run to run, are left out."""
    if isinstance(value, nn.Module | torch.optim.Optimizer):
        return plain(value.state_dict())
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().cpu().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items() if name not in TIMES}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int) or value is None else repr(value)


def everything(server):
    """All that a run has computed."""
    owners = [server, *server.clients]
    return [{name: plain(getattr(owner, name)) for name in remembered(owner) if name not in TIMES} for owner in owners]


def attributes(owner):
    return {name: plain(value) for name, value in vars(owner).items() if name not in SET_IN_A_ROUND}


def resumed_after(make, number):
    """What `make(resume=True)` makes, trained to its end, after another run has stopped in this round."""
    stopped = make(False)
    stop_in_round(stopped, number)
    with pytest.raises(StoppedError):
        stopped.train()
    resumed = make(True)
    resumed.train()
    return resumed


def stop_in_round(server, number):
    """The server's training ends in the middle of this round, when the clients have trained."""
    train_clients = server.train_clients

    def train():
        train_clients()
        if server.current_round == number:
            raise StoppedError

    server.train_clients = train

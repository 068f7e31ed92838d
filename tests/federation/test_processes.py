"""Flower's own processes on this machine, with TLS: the loop's curve, simulated by one process, and of three nodes
although one is killed and comes back, and another sends NaN.
"""

import shutil

import numpy as np
import pytest
import torch

from flcore.experiment import Experiment
from flcore.servers.support.uploads import RoundUploads
from flcore.utils.runs.read import read_run
from support import write_dataset
from support.federation import own_folder
from support.superlink import EXAMPLE, Flower

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'flwr[simulation]>=1.42'")

FLAGS = "-algo FedCPD -data Tiny -m CNN -nc 3 -dev cpu -gr"
CURVES = "rs_test_acc", "rs_test_acc_after", "rs_client_acc"
NAN = 3, 2  # the round and the client
SPOILT = '''"""The client's half, with one reply of NaN."""
from flcore.federation import client_app, flower

app = flower("clientapp").ClientApp()
app.query()(client_app.query)


@app.train()
def train(message, context):
    order, reply = message.content["numbers"], client_app.train(message, context)
    if (order["round"], context.node_config["partition-id"]) == (3, 2):
        arrays = reply.content["tensors"]
        name = next(iter(arrays))
        arrays[name] = flower("app").Array(arrays[name].numpy() * float("nan"))
    return reply
'''


@pytest.fixture
def flower(tmp_path):
    it = Flower(tmp_path)
    yield it
    it.close()


def nan_in_the_loop(monkeypatch):
    real = RoundUploads.upload_of

    def upload_of(self, client):
        upload = real(self, client)
        if (self.server.current_round, client.id) == NAN:
            name = next(iter(upload))
            upload = upload | {name: upload[name] * torch.nan}
        return upload

    monkeypatch.setattr(RoundUploads, "upload_of", upload_of)


@pytest.fixture
def loop(tmp_path):
    """``loop(rounds)`` -> the folder of a data set of three clients, and what -ex loop records there."""

    def run(rounds):
        root = tmp_path / "all"
        write_dataset(root, train=(23, 12, 31), test=(30, 30, 30))
        argv = f"{FLAGS} {rounds} -ex loop --data_dir {root}".split()
        return root, Experiment.from_argv(argv, writes=False).run().repeats[0].arrays

    return run


def recorded(results, expected):
    run = read_run(next(results.glob("*.h5")))
    for name in CURVES:
        np.testing.assert_allclose(run.arrays[name], expected[name], atol=1e-6, err_msg=name)
    return run.arrays


@pytest.mark.slow
def test_simulated_by_flower_it_is_the_curve_of_the_loop(flower, loop, tmp_path):
    pytest.importorskip("ray", reason="Flower simulates with Ray: pip install 'flwr[simulation]>=1.42'")
    (root, expected), results = loop(2), tmp_path / "results"
    flower.superlink("--simulation")
    size = "num-supernodes=3 client-resources-num-cpus=1 init-args-num-cpus=1"
    where = f"--data_dir {root} --results_dir {results}"
    flower.run(EXAMPLE, f"flags='{FLAGS} 2 {where}' state='{tmp_path}/state'", "--federation-config", size)
    flower.wait_for_the_end_of(results)
    recorded(results, expected)


@pytest.mark.slow
def test_a_killed_node_and_one_that_sends_nan_leave_the_curve_of_the_loop(flower, loop, tmp_path, monkeypatch):
    nan_in_the_loop(monkeypatch)
    root, expected = loop(5)

    app, results = tmp_path / "app", tmp_path / "results"
    app.mkdir()
    text = (EXAMPLE / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(text.replace("flcore.federation.client_app:app", "spoilt:app"))
    (app / "spoilt.py").write_text(SPOILT)

    def node(i):
        folder = tmp_path / f"data-{i}"
        shutil.rmtree(folder, ignore_errors=True)
        data = own_folder(root, "Tiny", i, folder)
        return flower.supernode(i, f"partition-id={i} state='{tmp_path}/state-{i}' flags='--data_dir {data}'")

    flower.superlink()
    nodes = [node(i) for i in range(3)]
    flower.run(app, f"flags='{FLAGS} 5 --results_dir {results} --log {tmp_path}/server.log' patience=200")

    def rounds():
        found = list(results.glob("*.h5"))
        return len(read_run(found[0]).arrays.get("rs_test_acc", ())) if found else 0

    flower.wait(lambda: rounds() >= 2, 200, "round 1")
    flower.kill(nodes[1])
    node(1)
    flower.wait_for_the_end_of(results)
    assert recorded(results, expected)["rs_left_out_clients"].tolist() == [list(NAN)]
    said = flower.log("server")
    assert "round 3: clients [2] left out, their upload holds base.conv1.0.weight with values" in said
    assert "client 1 has come again" in said and "has lost its personal state" not in said
    assert (tmp_path / "state-1").is_dir() and not list((tmp_path / "data-1" / "Tiny").glob("*/0.npz"))

"""The Ray executor on a cluster of two machines, one of which is lost: each is a node of its own on this machine."""

import pytest

from flcore.executors.ray_executor import RayExecutor
from support.checkpoints import everything

ray = pytest.importorskip("ray")


@pytest.fixture
def machines():
    """A cluster, and the node that may be lost."""
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 10**8, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=small)
    other = cluster.add_node(num_cpus=1, object_store_memory=10**8)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster, other
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.slow
def test_a_machine_that_is_lost_in_a_round_changes_nothing(make_server, machines, caplog):
    cluster, other = machines
    executor = RayExecutor(actors=2)
    hand_out, lost = executor._hand_out, []

    def lose_one(*asked):
        waiting = hand_out(*asked)
        if asked[0] == "train" and server.current_round == 1 and not lost:
            assert len(executor.slots) == 2
            lost.append(other)
            cluster.remove_node(other, allow_graceful=False)
        return waiting

    expected, server = make_server("FedCPD"), make_server("FedCPD")
    server.executor, executor._hand_out = executor, lose_one
    expected.train()
    server.train()
    executor.close()
    assert lost and "an actor was lost" in caplog.text
    assert everything(server) == everything(expected)

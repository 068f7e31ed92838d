"""Clients that join after training (``-nnc``)."""

from typing import Any

from flcore.servers.support.evaluation import per_client, ratio


def welcome(server: Any) -> None:
    """New clients: scored with the final download, and again after ``-ften`` local trainings."""
    server.set_new_clients(type(server.clients[0]))
    trained, server.clients = server.clients, server.new_clients
    server.send_models()
    server.clients = trained
    score(server)
    if server.fine_tuning_epoch_new:
        server.fine_tuning_new_clients()
        score(server)


def score(server: Any) -> None:
    """Records how good the new clients' models are."""
    _, samples, correct, _ = server.test_metrics_new_clients()
    server.record(rs_new_acc=ratio(sum(correct), sum(samples)), rs_new_client_acc=per_client(correct, samples))


def fine_tune(server: Any) -> None:
    """Local training of the new clients alone, ``-ften`` times."""
    for client in server.new_clients:
        for _ in range(server.fine_tuning_epoch_new):
            client.train()
            client.round += 1

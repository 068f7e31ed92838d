"""Clients that join after training (``-nnc``)."""

from __future__ import annotations

from typing import Any

from flcore.servers.support.evaluation import per_client, ratio
from flcore.servers.support.recorder import shown


def welcome(server: Any) -> None:
    """New clients: scored with the final download, and again after ``-ften`` local trainings."""
    server.set_new_clients(type(server.clients[0]))
    trained, server.clients = server.clients, server.new_clients
    server.send_models()
    server.clients = trained
    for moment in ("after the download", f"after {server.fine_tuning_epoch_new} rounds of fine-tuning"):
        _, samples, correct, _ = server.test_metrics_new_clients()
        accuracy = ratio(sum(correct), sum(samples))
        server.record(rs_new_acc=accuracy, rs_new_client_acc=per_client(correct, samples))
        print(f"\n{server.num_new_clients} new clients {moment}: {shown(accuracy)}")
        if server.fine_tuning_epoch_new == 0:
            break
        if len(server.records["rs_new_acc"]) == 1:
            server.fine_tuning_new_clients()


def fine_tune(server: Any) -> None:
    """Local training of the new clients alone, ``-ften`` times."""
    for client in server.new_clients:
        for _ in range(server.fine_tuning_epoch_new):
            client.train()
            client.round += 1

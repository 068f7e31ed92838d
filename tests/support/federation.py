"""A federation without processes: nodes that each have a folder with nothing but their own partition."""

import json
import shutil

from flcore.federation.node import Node


def own_folder(root, name, client, into):
    """Copies of client's two files of a data set and of what its config.json must have, in a folder of its own."""
    config = json.loads((root / name / "config.json").read_text())
    for part in ("train", "test"):
        (into / name / part).mkdir(parents=True)
        shutil.copy(root / name / part / f"{client}.npz", into / name / part)
    sizes = {key: config[key] for key in ("num_clients", "num_classes")}
    (into / name / "config.json").write_text(json.dumps(sizes))
    return into


class Inside:
    """A transport to nodes in this process, new ones for every letter, as with Flower.

    ``spoil[round, client]`` makes another reply of one, or a word why there is none.
    """

    def __init__(self, root, folder, argv, clients=4, name="Tiny", spoil=None):
        self.folder, self.argv, self.clients, self.spoil = folder, argv, clients, spoil or {}
        self.data = [own_folder(root, name, i, folder / f"data-{i}") for i in range(clients)]
        self.orders = []

    def node(self, client):
        argv = [*self.argv, "--data_dir", str(self.data[client])]
        return Node(argv, client, self.folder / f"state-{client}")

    def members(self, number):
        return {i: self.node(i).member() for i in range(self.clients)}

    def exchange(self, orders):
        self.orders.append(orders)
        return {client: self.answer(client, order) for client, order in orders.items()}

    def answer(self, client, order):
        reply = self.node(client).answer(order)
        change = self.spoil.get((order.round, client), lambda reply: reply)
        return change(reply)

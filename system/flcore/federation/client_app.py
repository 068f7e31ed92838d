"""The client's half for Flower: ``clientapp = "flcore.federation.client_app:app"``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from flcore.federation import flower
from flcore.federation.letters import Order, from_records, to_records
from flcore.federation.node import Node
from flcore.utils.errors import UsageError

app = flower("clientapp").ClientApp()


def node_of(context: Any) -> Node:
    """The node that a context of Flower means: the run's ``flags``, and what this node adds or has its own way.

    The node's settings are ``partition-id``, its client; ``state``, the folder for what its client keeps; and
    ``flags``, such as ``--data_dir /data -dev cpu``. The last two may stand in the run's settings as well.

    Raises:
        UsageError: a setting is missing, or wrong.
    """
    own, run = context.node_config, context.run_config
    state = own.get("state") or run.get("state")
    if not state:
        raise UsageError("name a folder for what the client keeps: --node-config \"partition-id=0 state='/path'\"")
    if not isinstance(client := own.get("partition-id"), int):
        raise UsageError("name the client of this node: --node-config \"partition-id=0 state='/path'\"")
    argv = shlex.split(f"{run.get('flags', '')} {own.get('flags', '')}")
    return Node(argv, client, Path(str(state)).expanduser() / f"run-{context.run_id}")


@app.query()  # type: ignore[untyped-decorator, unused-ignore]
def query(message: Any, context: Any) -> Any:
    """Who this is."""
    return flower("app").Message(to_records(node_of(context).member()), reply_to=message)


@app.train()  # type: ignore[untyped-decorator, unused-ignore]
def train(message: Any, context: Any) -> Any:
    """One round."""
    reply = node_of(context).answer(from_records(Order, message.content))
    return flower("app").Message(to_records(reply), reply_to=message)

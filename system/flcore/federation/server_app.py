"""The server's half for Flower: ``serverapp = "flcore.federation.server_app:app"``."""

from __future__ import annotations

import logging
import shlex
from typing import Any

from flcore.federation import flower
from flcore.federation.grid import GridTransport
from flcore.federation.server import FederatedExperiment
from flcore.observers import Terminal
from flcore.utils import console

app = flower("serverapp").ServerApp()


@app.main()  # type: ignore[untyped-decorator, unused-ignore]
def main(grid: Any, context: Any) -> None:
    """The run that the settings ``flags`` mean, with ``patience`` seconds for the clients."""
    settings = context.run_config
    transport = GridTransport(grid, float(settings.get("patience", 300)))
    with console.messages() as shown:
        experiment = FederatedExperiment.of(shlex.split(str(settings.get("flags", ""))), transport)
        quiet, verbose, log = (experiment.values[name] for name in ("quiet", "verbose", "log"))
        shown.choose(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO, log)
        experiment.run([Terminal(quiet)])

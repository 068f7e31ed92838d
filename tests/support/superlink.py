"""Flower's processes on this machine: a SuperLink with TLS, and SuperNodes. All that was started is ended."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from support import REPO

EXAMPLE = REPO / "examples" / "flower"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Flower:
    """The commands of Flower with a folder of their own; each writes a log there."""

    def __init__(self, folder: Path):
        self.folder, self.processes = folder, []
        self.bin = Path(sys.executable).parent
        self.port, self.certificates = free_port(), folder / "certificates"
        path = os.pathsep.join([str(self.bin), os.environ["PATH"]])
        self.env = os.environ | {"FLWR_HOME": str(folder / "home"), "PATH": path, "FLWR_DISABLE_UPDATE_CHECK": "1"}
        self.env |= {"FLWR_TELEMETRY_ENABLED": "0", "PYTHONPATH": str(REPO / "system"), "RAY_ADDRESS": "local"}
        (folder / "home").mkdir()
        subprocess.run(["bash", EXAMPLE / "certificates.sh", self.certificates], check=True, capture_output=True)
        address = f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{self.certificates}/ca.pem"\n'
        (folder / "home" / "config.toml").write_text(f'[superlink]\ndefault = "here"\n[superlink.here]\n{address}')

    def start(self, name, *words):
        with open(self.folder / f"{name}.log", "a") as log:
            command = [str(self.bin / words[0]), *map(str, words[1:])]
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.env, stdout=log, stderr=log, start_new_session=True
            )
        self.processes.append(process)
        return process

    def superlink(self, *words):
        files = [
            word
            for flag, name in (("cert", "server.pem"), ("key", "server.key"), ("ca-cert", "ca.pem"))
            for word in (f"--ssl-{flag}file", self.certificates / name)
        ]
        here = "--port", self.port, "--disable-runtime-dependency-installation"
        self.start("superlink", "flower-superlink", *files, *here, *words)
        self.wait(lambda: "Uvicorn running" in self.log("superlink"), 90, "SuperLink")

    def supernode(self, number, config):
        ca = "--root-certificates", self.certificates / "ca.pem"
        here = "--superlink", f"127.0.0.1:{self.port}", "--port", free_port()
        return self.start(f"supernode-{number}", "flower-supernode", *ca, *here, "--node-config", config)

    def run(self, app, config, *words):
        return self.start("run", "flwr", "run", app, "here", "--run-config", config, *words)

    def wait_for_the_end_of(self, results):
        """Of the one run whose files are in this folder."""
        found = lambda: [json.loads(path.read_text())["status"] for path in results.glob("*.run.json")]  # noqa: E731
        self.wait(lambda: found() not in ([], ["running"]), 300, "end of the run")
        assert found() == ["finished"]

    def log(self, name):
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait(self, done, seconds, what):
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                logs = "\n".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in self.folder.glob("*.log"))
                raise AssertionError(f"no {what} in {seconds} s\n{logs}")
            time.sleep(0.2)

    def kill(self, process):
        """SIGKILL for a process and what it has started."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        process.wait()
        self.processes.remove(process)

    def close(self):
        for process in reversed(self.processes.copy()):
            self.kill(process)

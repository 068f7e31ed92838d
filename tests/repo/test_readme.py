"""What the README shows, run as it stands there."""

import re
import shutil
import subprocess
import sys

from support import REPO

README = (REPO / "README.md").read_text()


def test_the_worked_example_trains(tmp_path, data_root):
    tree = tmp_path / "system"
    shutil.copytree(REPO / "system", tree, ignore=shutil.ignore_patterns("__pycache__"))
    files = re.findall(r"`system/(flcore/\w+/\S+\.py)`\n\n```python\n(.*?)```", README, re.DOTALL)
    assert [name for name, _ in files] == ["flcore/clients/clientrepprox.py", "flcore/servers/serverrepprox.py"]
    for name, code in files:
        (tree / name).write_text(code)
    line = re.search(r"registry\.py`\n\n```python\n(.*?)```", README, re.DOTALL)[1]
    registry = tree / "flcore" / "registry.py"
    registry.write_text(registry.read_text().replace("METHODS = [\n", "METHODS = [\n" + line))
    assert sum(code.count("\n") for _, code in files) + 1 < 40

    def loss(*flags):
        command = [sys.executable, "main.py", "-data", "Tiny", "-gr", "3", "--data_dir", str(data_root), "-dev", "cpu"]
        command += ["--results_dir", str(tmp_path / "results"), *flags]
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        return re.findall(r"train loss (\S+)", done.stdout)

    assert loss("-algo", "FedRepProx", "-mu", "0") == loss("-algo", "FedRep")
    assert loss("-algo", "FedRepProx", "-mu", "5") != loss("-algo", "FedRep")

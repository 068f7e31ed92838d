"""A run that lasts needs no more memory, files and threads at its end than at its beginning, and disturbs no other."""

import gc
import os
import re
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest

from flcore.executors.threads import ThreadsExecutor
from flcore.utils.runs.checkpoint import Checkpoints
from support import REPO

INFO = dict.fromkeys(("algorithm", "dataset", "num_clients", "repeat", "settings_digest", "code_digest"))
KEPT_A_ROUND = 3_000  # bytes of records: two rows of four accuracies, a dozen numbers


def resident():
    """Bytes of this process in memory."""
    return int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("algorithm", ["FedCPD", "FedRep"])
def test_memory_files_and_threads_stay_level_over_500_rounds(make_server, tmp_path, algorithm):
    flags = ("-gr", "500", "-jr", "0.5", "--state_dir", str(tmp_path / "state"), "--state_cache", "2")
    server = make_server(algorithm, *flags, model="MLR", executor=ThreadsExecutor(2), result_path=tmp_path / "run.h5")
    server.checkpoints = Checkpoints(tmp_path / "run.h5", INFO, 25, False, lambda line: None)
    seen = []
    end_round = server.end_round

    def measure():
        end_round()
        if server.current_round % 50 == 49:
            gc.collect()
            python = tracemalloc.get_traced_memory()[0]
            handles, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
            seen.append((resident(), python, len(gc.get_objects()), handles, threads))

    server.end_round = measure
    tracemalloc.start()
    server.train()
    tracemalloc.stop()
    memory, python, objects, handles, threads = np.array(seen[1:]).T  # the first 100 rounds warm up
    print(seen)
    assert np.ptp(handles) == 0 and np.ptp(threads) == 0
    assert python[-1] - python[0] < 400 * KEPT_A_ROUND
    assert objects[-1] - objects[0] < 400 * 10
    assert memory[-1] - memory[0] < 16e6  # a model a round would be 6 MB and more
    assert len(list((tmp_path / "run.ckpt").iterdir())) == 2


@pytest.mark.long
def test_two_runs_side_by_side_in_one_folder_do_not_disturb_each_other(data_root, tmp_path):
    """The same settings twice and other ones, all with checkpoints and states in the same folders."""
    words = [
        sys.executable,
        "main.py",
        "-data",
        "Tiny",
        "--data_dir",
        data_root,
        "-dev",
        "cpu",
        "-gr",
        "6",
        "-m",
        "MLR",
    ]

    def begin(*flags, folder):
        command = [*words, "--results_dir", tmp_path / folder, "--checkpoint_every", "1", *flags]
        command += ["--state_dir", tmp_path / folder / "state", "--state_cache", "1"]
        return subprocess.Popen([str(word) for word in command], cwd=REPO / "system", stdout=subprocess.DEVNULL)

    settings = [("-lr", "0.01"), ("-lr", "0.01"), ("-lr", "0.05")]
    for run in [begin(*flags, folder="together") for flags in settings]:
        assert run.wait(timeout=600) == 0
    for flags in settings[1:]:
        assert begin(*flags, folder="alone").wait(timeout=600) == 0

    def curves(folder):
        found = []
        for path in (tmp_path / folder).glob("*.h5"):
            with h5py.File(path) as file:
                found.append(file["rs_train_loss"][()].tobytes())
        return found

    together, alone = curves("together"), curves("alone")
    assert len(together) == 3 and set(together) == set(alone) and len(set(alone)) == 2
    assert list((tmp_path / "together" / "state").iterdir()) == [] and not list((tmp_path / "together").glob("*.ckpt"))

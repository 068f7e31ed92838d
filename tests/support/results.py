"""Result files made without a run."""

from flcore.utils.runs.claim import claim_run
from flcore.utils.runs.files import write_h5


def make_run(
    folder, algorithm="FedAvg", dataset="Digits", repeat=0, goal="test", status="finished", arrays=None, **settings
):
    """Writes a result and its run.json as a run with these settings does; returns the path."""
    settings = {"algorithm": algorithm, **settings}
    files = claim_run(folder, dataset, algorithm, goal, repeat, settings, say=lambda line: None)
    write_h5(files.h5, {"rs_test_acc": [0.1, 0.3, 0.2], "rs_round": [0, 5, 10]} | (arrays or {}))
    words = {"algorithm": algorithm, "dataset": dataset, "goal": goal, "data_dir": str(folder)} | settings
    files.update(seed=settings.get("seed", 0), arguments=words, given=sorted(words))
    files.finish(status)
    return files.h5


def make_seeds(folder, algorithm="FedAvg", accuracies=(0.2, 0.3, 0.4), first=0, **options):
    """One run a seed, each named for it, with A rising from 0 to its accuracy."""
    return [
        make_run(folder, algorithm, goal=f"s{seed}", seed=seed, arrays=curve(accuracy), **options)
        for seed, accuracy in enumerate(accuracies, first)
    ]


def curve(last):
    """Arrays of a run of two rounds with two clients that ends at A `last`."""
    return {
        "rs_test_acc": [0.0, last / 2, last],
        "rs_round": [0, 1, 2],
        "rs_test_acc_after": [last / 2, last],
        "rs_client_acc": [[0.0, 0.0], [last / 2, last / 2], [last - 0.1, last + 0.1]],
        "rs_test_std": [0.0, 0.0, 0.1],
        "rs_forgetting": [float("nan"), 0.0, 0.0],
        "rs_train_loss": [2.0, 1.0],
        "rs_bytes_down": [2e6, 2e6],
        "rs_bytes_up": [1e6, 1e6],
        "rs_seconds": [5.0, 3.0],
    }

"""Runs two methods from Python, looks at their results, and stops one of them early.

python examples/from_python.py
"""

from typing import Any

from flcore.experiment import Experiment
from flcore.observers import Observer

SETTINGS: dict[str, Any] = {"dataset": "Digits", "num_clients": 20, "global_rounds": 5, "results_dir": None}


class StopAbove(Observer):
    """An observer that ends the run when the accuracy after the download is above a goal."""

    def __init__(self, goal: float) -> None:
        self.goal = goal

    def on_round(self, record: Any) -> bool:
        return bool(record.get("test_acc", 0) > self.goal)


def main() -> None:
    for algorithm in ("FedRep", "FedCPD"):
        result = Experiment(algorithm=algorithm, **SETTINGS).run()
        print(f"{algorithm}: A {result.accuracy:.4f} after {SETTINGS['global_rounds']} rounds")
    early = Experiment(algorithm="FedCPD", cpd_align=0.1, **SETTINGS).run(observers=[StopAbove(0.3)])
    print(f"FedCPD with a weaker alignment stopped after round {early.rounds[-1]:.0f}: A {early.accuracy:.4f}")


if __name__ == "__main__":
    main()

"""From a folder of images to a table in a paper and predictions for new images, on pictures that it makes itself.

python examples/whole_way.py whole_way

Every step is a command, which is printed and then run; all that it makes lies in the folder whole_way.
"""

import runpy
import shlex
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from flcore import tuning

REPO = Path(__file__).resolve().parents[1]
CLASSES = ("bars", "rings", "squares")

NETWORK = """
from torch import nn


class Net(nn.Sequential):
    def __init__(self, in_channels, num_classes):
        super().__init__(
            nn.Sequential(nn.Conv2d(in_channels, 8, 5), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Flatten(),
            nn.LazyLinear(32),
            nn.ReLU(),
            nn.Linear(32, num_classes),
        )
"""

COMMON = """
dataset = "Shapes"
data_dir = "{folder}/data"
model = "{folder}/net.py:Net"
global_rounds = 4
local_epochs = 2
local_learning_rate = 0.05
"""

TUNE = """
algorithm = "FedCPD"
validation = 0.25

[tune]
cpd_align = {{ low = 0.1, high = 10.0, log = true }}
"""

SWEEP = """
results_dir = "{folder}/results"
seed = [0, 1, 2]

[[runs]]
algorithm = "FedCPD"
cpd_align = {cpd_align}

[[runs]]
algorithm = ["FedRep", "FedAvg"]
"""


def picture(kind: str, rng: np.random.Generator) -> Image.Image:
    """A grey picture of 20 x 20 pixels with noise: bars, a ring or a square, somewhere."""
    down, right = np.mgrid[:20, :20]
    top, left = rng.integers(5, 15, 2)
    shapes = {
        "bars": (down + top) % 6 < 3,
        "rings": np.abs(np.hypot(down - top, right - left) - 4.5) < 1,
        "squares": np.maximum(abs(down - top), abs(right - left)) < 4,
    }
    grey = np.where(shapes[kind], 190, 60) + rng.normal(0, 25, (20, 20))
    return Image.fromarray(grey.clip(0, 255).astype(np.uint8))


def command(line: str) -> None:
    """Prints a command and runs it, in this process: that is quicker than to start Python again."""
    print(f"\n$ {line}", flush=True)
    script, *words = shlex.split(line)[1:]
    before, sys.argv = sys.argv, [script, *words]
    try:
        runpy.run_path(str(REPO / script), run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.argv = before


def main(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for kind in CLASSES:
        for i in range(64):  # the last four are new to the models
            path = folder / ("new" if i >= 60 else "images") / kind / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture(kind, rng).save(path)
    (folder / "net.py").write_text(NETWORK)
    place = shlex.quote(str(folder))
    command(f"python dataset/generate.py --source {place}/images --out {place}/data/Shapes --num_clients 4 --alpha 0.5")

    plan = folder / "tune.toml"
    plan.write_text((COMMON + TUNE).format(folder=folder.as_posix()))
    command(f"python scripts/tune.py {place}/tune.toml --trials 4")
    best = tuning.study_of(tuning.read_plan(plan), plan.with_suffix(".db")).best_params

    (folder / "sweep.toml").write_text((COMMON + SWEEP).format(folder=folder.as_posix(), **best))
    command(f"python scripts/sweep.py {place}/sweep.toml")
    command(f"python scripts/report.py {place}/results --format latex --columns 'last A,worst,margin'")
    command(f"python scripts/report.py {place}/results --out {place}/curves.pdf --html {place}/report.html")

    first = sorted((folder / "results").glob("Shapes_FedCPD_*.h5"))[0]
    trained = shlex.quote(str(first))
    command(f"python scripts/predict.py {trained} {place}/new --client 0 --out {place}/predictions.csv")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "whole_way").resolve())

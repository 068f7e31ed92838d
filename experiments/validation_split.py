"""Makes a data set for choosing settings: every client's training part, split 80 to 20; its test part is not touched.

    python experiments/validation_split.py dataset/Cifar100 dataset/Cifar100val

Client i's images are permuted with the key (0, i); the first 80 % are its training part, the rest its "test" part.
"""

import argparse
import json
from pathlib import Path

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a data set in PFLlib's files")
    parser.add_argument("target", type=Path, help="the folder to write")
    args = parser.parse_args()
    config = json.loads((args.source / "config.json").read_text())
    statistic = []
    for part in ("train", "test"):
        (args.target / part).mkdir(parents=True, exist_ok=True)
    for i in range(config["num_clients"]):
        data = np.load(args.source / "train" / f"{i}.npz", allow_pickle=True)["data"].item()
        order = np.random.default_rng([0, i]).permutation(len(data["y"]))
        cut = int(0.8 * len(order))
        for part, chosen in (("train", order[:cut]), ("test", order[cut:])):
            own = np.array({"x": data["x"][chosen], "y": data["y"][chosen]}, dtype=object)
            np.savez_compressed(args.target / part / f"{i}.npz", data=own)
        statistic.append([[int(c), int(n)] for c, n in zip(*np.unique(data["y"], return_counts=True), strict=True)])
    config["Size of samples for labels in clients"] = statistic
    (args.target / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main()

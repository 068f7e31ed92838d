"""Predicts with a client's trained model, and says how good it is where the labels are known.

python scripts/predict.py results/Birds_FedCPD_test_0.h5 --client 3                     its own test images
python scripts/predict.py results/Birds_FedCPD_test_0.h5 --client 3 new/ a.jpg --out predictions.csv

A PATH is an image, a folder of images, whose folders may be named as the classes, a client's file of a data set, or
an .npz or .npy as a data set is made of. Images are resized and scaled as those that the model was trained on.
"""

import argparse
import signal
import sys
from collections.abc import Sequence

import numpy as np
import pandas as pd

from flcore.clients.support.items import load_item
from flcore.data.new_images import read_new
from flcore.data.reading import DataSet
from flcore.hyperparams import user_path
from flcore.predictor import confusion
from flcore.result import Repeat
from flcore.saved import data_of, load_result
from flcore.utils import console
from flcore.utils.cli import resolve_device
from flcore.utils.errors import report
from flcore.utils.runs.files import whole_file
from flcore.utils.runs.read import read_run

MOST = 20  # predictions that are printed, and classes of a confusion matrix


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    args = _parser().parse_intermixed_args(argv)
    try:
        with console.messages():
            _predict(args)
    except Exception as error:
        return report(error)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=user_path, metavar="RESULT.h5", help="a result with its .models beside it")
    parser.add_argument("paths", nargs="*", type=user_path, metavar="PATH", help="images; none: its own test images")
    parser.add_argument("--client", type=int, required=True, metavar="N", help="whose model")
    parser.add_argument("--out", type=user_path, metavar="FILE.csv", help="write every prediction here")
    parser.add_argument("--figure", type=user_path, metavar="FILE", help="draw the embeddings: .png, .pdf or .svg")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:N, mps or auto (default: cpu)")
    return parser


def _predict(args: argparse.Namespace) -> None:
    device = resolve_device(args.device, say=lambda line: None)
    [repeat] = load_result(args.result, str(device)).repeats
    model = repeat.client(args.client)
    names, found, labels, seen = list[str](), list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    for path in args.paths:
        own, x, y = read_new(path, model.network.shape, model.class_names, _data_set(repeat))
        names += own
        seen.append(x)
        found.append(model.predict_proba(x))
        labels.append(np.full(len(x), -1) if y is None else y)
    if not args.paths:
        assert repeat.path
        test = data_of(read_run(repeat.path)).read(args.client, is_train=False)
        names = [f"test/{args.client}.npz:{i}" for i in range(len(test["y"]))]
        found, labels, seen = [model.predict_proba(test["x"])], [test["y"]], [test["x"]]
    likely, true = np.concatenate(found), np.concatenate(labels)
    classes = np.array(model.class_names)
    label = likely.argmax(1) if len(likely) else np.zeros(0, np.int64)
    table = pd.DataFrame({"file": names, "class": classes[label], "label": label, "probability": likely.max(1)})
    known = true >= 0
    if known.any():
        table["true"] = np.where(known, classes[np.maximum(true, 0)], "")
    if args.out:
        with whole_file(args.out) as temporary:
            table.to_csv(temporary, index=False)
        print(f"{len(table)} predictions: {args.out}")
    elif not known.all():
        print(table.head(MOST).to_string(index=False, float_format="{:.3f}".format))
        if len(table) > MOST:
            print(f"... {len(table) - MOST} more: --out FILE.csv")
    if args.figure:
        from flcore.reporting import embeddings  # matplotlib takes its time

        z = model.embeddings(np.concatenate(seen))
        embeddings.write(args.figure, z, true, model.class_names, _prototypes(repeat, z.shape[1]))
        print(f"embeddings: {args.figure}")
    if known.any():
        print("\n".join(_quality(args.client, confusion(label[known], true[known], len(classes)), classes)))


def _data_set(repeat: Repeat) -> DataSet:
    """The data set of the run, which need not be there any more."""
    return DataSet(repeat.info["settings"]["dataset"], repeat.info["arguments"].get("data_dir"))


def _prototypes(repeat: Repeat, size: int) -> np.ndarray | None:
    """The global prototypes (C, size) that the clients got last, NaN for a class without; None where there are none."""
    if "model" not in repeat.paths:
        return None
    message = load_item(repeat.paths["model"], "cpu")
    found = message.get("prototypes")
    if found is None or found.ndim != 2 or found.shape[1] != size:
        return None
    known = message.get("seen", found.new_ones(len(found))).bool()
    return np.where(known.numpy()[:, None], found.numpy(), np.nan)


def _quality(client: int, counts: np.ndarray, classes: np.ndarray) -> list[str]:
    """Accuracy, that of every class, and which classes were taken for which."""
    correct, total = int(np.trace(counts)), int(counts.sum())
    seen = np.flatnonzero(counts.sum(1) + counts.sum(0))
    lines = [f"client {client}: {correct} of {total} correct, accuracy {correct / total:.4f}", ""]
    of_class = pd.DataFrame(
        {
            "class": classes[seen],
            "samples": counts.sum(1)[seen],
            "correct": counts.diagonal()[seen],
            "accuracy": [f"{counts[i, i] / n:.4f}" if (n := counts[i].sum()) else "-" for i in seen],
        }
    )
    lines += [of_class.to_string(index=False), ""]
    if len(seen) <= MOST:
        matrix = pd.DataFrame(counts[np.ix_(seen, seen)], index=classes[seen], columns=classes[seen])
        return [*lines, "true class in rows, predicted in columns", matrix.to_string()]
    wrong = counts - np.diag(counts.diagonal())
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST]
    pairs = [(wrong.ravel()[i], *divmod(int(i), len(classes))) for i in order if wrong.ravel()[i]]
    return [*lines, "most frequent mistakes", *(f"{n:5d}  {classes[a]} taken for {classes[b]}" for n, a, b in pairs)]


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # not on Windows
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    console.prepare()
    sys.exit(main())

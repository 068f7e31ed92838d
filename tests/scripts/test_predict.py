"""scripts/predict.py: predictions, their quality, and one line for what cannot be done."""

import json
import os
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import predict
from flcore.experiment import Experiment
from flcore.reporting import embeddings
from support import REPO, write_dataset


@pytest.fixture(scope="module")
def trained(data_root, tmp_path_factory):
    """A run of FedRep on "Tiny", with its result."""
    folder = tmp_path_factory.mktemp("results")
    settings = {"algorithm": "FedRep", "dataset": "Tiny", "data_dir": str(data_root), "device": "cpu"}
    return Experiment(**settings, global_rounds=2, results_dir=str(folder)).run().repeats[0]


@pytest.fixture
def copied(trained, tmp_path):
    for path in trained.paths.values():
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / path.name)
    return tmp_path / trained.path.name


def test_its_own_test_images_give_the_accuracy_in_the_table(trained, capsys):
    assert predict.main([str(trained.path), "--client", "0"]) == 0
    printed = capsys.readouterr().out
    correct, total, accuracy = re.search(r"client 0: (\d+) of (\d+) correct, accuracy (\S+)", printed).groups()
    assert int(total) == 9 and float(accuracy) == pytest.approx(trained.client_accuracies[0], abs=5e-5)
    matrix = [line.split()[1:] for line in printed.split("predicted in columns\n")[1].splitlines()[1:]]
    assert np.array(matrix, dtype=int).sum() == 9 and np.trace(np.array(matrix, dtype=int)) == int(correct)


def test_every_prediction_is_written(trained, data_root, tmp_path, capsys):
    file = data_root / "Tiny" / "test" / "2.npz"
    assert (
        predict.main([str(trained.path), str(file), str(file), "--client", "1", "--out", str(tmp_path / "p.csv")]) == 0
    )
    table = pd.read_csv(tmp_path / "p.csv")
    assert list(table.columns) == ["file", "class", "label", "probability", "true"] and len(table) == 12
    shown = f"client 1: {(table['class'] == table['true']).sum()} of 12 correct"
    assert shown in capsys.readouterr().out


def test_images_without_labels_are_listed(trained, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.zeros((2, 1, 20, 20), np.float32))
    assert predict.main([str(trained.path), str(tmp_path / "x.npy"), "--client", "1"]) == 0
    printed = capsys.readouterr().out
    assert "x.npy:1" in printed and "correct" not in printed


def broken(copied, how):
    models = copied.with_suffix(".models")
    if how == "missing":
        shutil.rmtree(models)
    elif how == "truncated":
        file = models / "tensors-0.safetensors"
        file.write_bytes(file.read_bytes()[:-10])
    elif how == "a file missing":
        (models / "tensors-0.safetensors").unlink()
    elif how == "no JSON":
        (models / "models.json").write_text("{")
    else:
        place = models / "models.json" if how == "another run" else copied.with_suffix(".run.json")
        content = json.loads(place.read_text())
        if how == "another run":
            content["run"]["start"] = "yesterday"
        else:
            content["settings"]["model"] = "FedAvgMLP"
        place.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", "has no trained models beside it"),
        ("truncated", "tensors-0.safetensors is damaged"),
        ("a file missing", "tensors-0.safetensors is missing"),
        ("no JSON", "models.json"),
        ("another run", "another run's"),
        ("another network", "do not fit this version's network"),
    ],
)
def test_models_that_cannot_be_used_are_told_in_one_line(copied, how, message, capsys):
    broken(copied, how)
    assert predict.main([str(copied), "--client", "0"]) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(f"error: .*{message}.*\n", error), error


def test_other_code_is_told_and_a_client_that_is_not_there(copied, capsys):
    info = json.loads(copied.with_suffix(".run.json").read_text())
    copied.with_suffix(".run.json").write_text(json.dumps(info | {"code_digest": "other", "commit": "abc"}))
    assert predict.main([str(copied), "--client", "9"]) == 2
    error = capsys.readouterr().err
    assert "made by other code (commit abc)" in error and "there are models of the clients 0 to 3" in error


def test_the_page_of_results_is_followed_word_for_word(data_root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    write_dataset(tmp_path, "Birds", shape=(3, 16, 16), classes=2)
    rng = np.random.default_rng(0)
    for path in (tmp_path / "new_birds" / "0" / "a.png", tmp_path / "photo.jpg"):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(path)
    settings = {"algorithm": "FedCPD", "dataset": "Birds", "data_dir": str(tmp_path), "device": "cpu"}
    Experiment(**settings, global_rounds=1, results_dir="results").run()
    text = (REPO / "docs" / "reporting.md").read_text()
    lines = re.findall(r"^python scripts/predict.py (.*)$", text, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        assert predict.main([os.path.expanduser(word) for word in line.split()]) == 0
    assert list(pd.read_csv("predictions.csv")["file"]) == ["0/a.png", "photo.jpg"]
    [code] = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "load_result" in code]
    capsys.readouterr()
    exec(code, {"images": np.zeros((2, 3, 16, 16), np.uint8)})
    assert re.fullmatch(r"\['[01]', '[01]'\]\n", capsys.readouterr().out)


def test_embeddings_are_drawn_with_the_prototypes(data_root, tmp_path, monkeypatch, capsys):
    """FedCPD sends a prototype of each of the four classes; the figure has them all beside the nine images."""
    drawn = []
    monkeypatch.setattr(embeddings, "plane", lambda points: drawn.append(len(points)) or points[:, :2].astype(float))
    settings = {"algorithm": "FedCPD", "dataset": "Tiny", "data_dir": str(data_root), "device": "cpu"}
    made = Experiment(**settings, global_rounds=1, results_dir=str(tmp_path)).run().repeats[0]
    figure = tmp_path / "z.svg"
    assert predict.main([str(made.path), "--client", "0", "--figure", str(figure)]) == 0
    assert drawn == [9 + 4] and figure.read_text().startswith("<?xml")
    assert predict.main([str(made.path), "--client", "0", "--figure", "z.txt"]) == 2
    assert ".png, .pdf, .svg" in capsys.readouterr().err

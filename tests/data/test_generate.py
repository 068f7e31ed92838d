"""The generators' commands, from the spelling to the files and the picture."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from flcore.data import plot
from flcore.data.command import main, parse
from flcore.data.ensure import _fitting
from flcore.data.generate import Recipe
from flcore.data.generate import generate as make
from flcore.data.partition import partition
from flcore.data.reading import DataSet
from flcore.data.sources import KNOWN
from flcore.utils.errors import UsageError
from main import main as run_main
from support import REPO, write_dataset


def run(*command, cwd=REPO, **environment):
    return subprocess.run(
        [sys.executable, *map(str, command)], cwd=cwd, capture_output=True, text=True, env={**os.environ, **environment}
    )


@pytest.fixture
def npz(tmp_path):
    """600 images of 10 classes; the first pixel of image i is i % 251, and i // 251 the second."""
    x = np.zeros((600, 1, 4, 4), np.uint8)
    x[:, 0, 0, 0], x[:, 0, 0, 1] = np.arange(600) % 251, np.arange(600) // 251
    np.savez(tmp_path / "images.npz", x=x, y=np.random.default_rng(0).integers(0, 10, 600))
    return tmp_path / "images.npz"


def generate(npz, *argv, name="MNIST"):
    main(name, [*map(str, argv), "--source", str(npz), "--out", str(npz.parent / "out")])
    return npz.parent / "out"


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def images_of(folder):
    """Which images of the fixture each client holds, read as PFLlib reads them."""
    clients = []
    for i in range(config_of(folder)["num_clients"]):
        parts = [np.load(folder / part / f"{i}.npz", allow_pickle=True)["data"].item() for part in ("train", "test")]
        pixels = np.rint((np.concatenate([part["x"] for part in parts]) * 0.5 + 0.5) * 255).astype(int)
        clients.append(sorted(pixels[:, 0, 0, 0] + 251 * pixels[:, 0, 0, 1]))
    return clients


# --- spelling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        "non-iid - dir",
        "noniid - Dir",
        "noniid balance dir",
        "noniid balance exdir",
        "noniid - -",
        "noniid unbalanced pat",
        "--alpha 0",
        "--alpha nan",
        "--alpha inf",
        "--num_clients 0",
        "--num_clients two",
        "--train_ratio 1",
        "--train_ratio 0",
        "--fraction 0",
        "--fraction 1.5",
        "--min_samples 1",
        "noniid - pat --classes_per_client 11",
        "--seed -1",
        "--source /does/not/exist",
        "--bogus",
    ],
)
def test_wrong_spellings_exit_2_with_usage_before_anything_is_loaded(wrong, monkeypatch, capsys):
    monkeypatch.setattr("flcore.data.generate.load", None)
    with pytest.raises(SystemExit) as exit:
        main("MNIST", wrong.split())
    assert exit.value.code == 2 and "usage: generate_MNIST.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "terms", "note"),
    [
        ("", ("dir", False), ""),
        ("noniid", ("dir", False), ""),
        ("noniid - dir", ("dir", False), ""),
        ("noniid --alpha 0.5 - exdir", ("exdir", False), ""),
        ("noniid balance pat", ("pat", True), ""),
        ("iid", ("iid", False), ""),
        ("iid - -", ("iid", False), ""),
        ("iid balance -", ("iid", True), ""),
        ("iid balance dir", ("iid", True), "the partition dir is ignored for iid"),
        ("iid - - --alpha 3", ("iid", False), "--alpha is ignored for iid"),
        ("noniid - pat --alpha 3", ("pat", False), "--alpha is ignored for pat"),
        ("--classes_per_client 3", ("dir", False), "--classes_per_client is ignored for dir"),
    ],
)
def test_spellings(given, terms, note, capsys):
    recipe, _ = parse("MNIST", given.split())
    assert (recipe.partition, recipe.balance) == terms
    out = capsys.readouterr().out
    assert out == (f"note: {note}\n" if note else "")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("non-iid - dir", "noniid"),
        ("NonIID", "noniid"),
        ("IID", "iid"),
        ("noniid - Dir", "dir"),
        ("noniid - dirichlet", "dir"),
        ("noniid - pathological", "pat"),
        ("noniid - ex-dir", "exdir"),
        ("noniid balanced pat", "balance"),
        ("noniid unbalanced pat", "-"),
        ("noniid dir", None),
        ("noniid - xyz", None),
    ],
)
def test_near_misses_are_understood_but_not_guessed(given, meant, capsys):
    with pytest.raises(SystemExit):
        parse("MNIST", given.split())
    message = capsys.readouterr().err.splitlines()[-1]
    assert "must be" in message and message.endswith("In full: noniid - dir")
    assert (f"did you mean {meant}?" in message) if meant else "did you mean" not in message


def test_exdir_works_as_help_spells_it(tmp_path, capsys):
    main("Digits", ["noniid", "-", "exdir", "--out", str(tmp_path / "Digits")])
    config = config_of(tmp_path / "Digits")
    assert (config["alpha"], config["class_per_client"], config["arguments"]) == (100, 2, ["noniid", "-", "exdir"])
    assert parse("Digits", "noniid - exdir --alpha 0.1".split())[0].words()[-2:] == ["--alpha", "0.1"]
    assert parse("Digits", "noniid - exdir --alpha 100".split())[0].words() == ["noniid", "-", "exdir"]
    with pytest.raises(SystemExit):
        parse("Digits", ["--help"])
    assert "(0.1 for dir, 100 for exdir)" in " ".join(capsys.readouterr().out.split())


def test_paper_defaults():
    recipe, _ = parse("Cifar100", [])
    assert recipe == Recipe("Cifar100")
    assert (recipe.num_clients, recipe.dirichlet, recipe.train_ratio, recipe.seed) == (20, 0.1, 0.75, 1)
    assert (recipe.partition, recipe.classes(100), recipe.fraction) == ("dir", None, 1.0)
    assert [Recipe("Digits", "pat").classes(number) for number in (3, 10, 100, 200)] == [2, 2, 10, 20]  # PFLlib's


@pytest.mark.parametrize(
    ("given", "noted"),
    [
        ("", []),
        ("noniid - dir --alpha 0.1 --seed 1 --num_clients 7 --force --plot", []),
        ("noniid - pat --classes_per_client 2", ["noniid", "-", "pat"]),
        ("--repair --alpha 0.5", ["--alpha", "0.5", "--repair"]),
    ],
)
def test_only_what_differs_from_the_defaults_is_noted(given, noted):
    assert parse("MNIST", given.split())[0].words() == noted


# --- what comes out ---------------------------------------------------------------------------------------------------


def test_all_images_once_in_pfllibs_files(npz, capsys):
    folder = generate(npz, "noniid", "-", "dir", "-nc", 5)
    clients = images_of(folder)
    assert sorted(sum(clients, [])) == list(range(600))
    config = config_of(folder)
    assert config["Size of samples for labels in clients"][0] == sorted(
        config["Size of samples for labels in clients"][0]
    )
    assert [sum(n for _, n in own) for own in config["Size of samples for labels in clients"]] == list(
        map(len, clients)
    )
    assert (config["num_classes"], config["shape"], config["partition"], config["min_samples"]) == (
        10,
        [1, 4, 4],
        "dir",
        40,
    )
    assert (config["repaired"], config["source"], config["class_per_client"]) == (0, str(npz), None)
    data = np.load(folder / "train" / "0.npz", allow_pickle=True)["data"].item()
    assert data["x"].dtype == np.float32 and data["y"].dtype == np.int64 and data["x"].min() == -1
    assert "600 images in 5 clients (dir)" in capsys.readouterr().out


def test_fraction_is_a_random_subset_drawn_from_the_seed(npz):
    # with one client and all classes the images come out class by class, in the order of the data set
    first = images_of(generate(npz, "iid", "-nc", 1, "--fraction", 0.2))
    again = images_of(generate(npz, "iid", "-nc", 1, "--fraction", 0.2, "--force"))
    other = images_of(generate(npz, "iid", "-nc", 1, "--fraction", 0.2, "--seed", 2, "--force"))
    assert len(set(first[0])) == len(first[0]) == 120
    assert first == again and first != other and first[0] != list(range(120))


def test_same_settings_do_nothing_and_other_settings_replace_nothing_unless_told(npz, monkeypatch, capsys):
    folder = generate(npz, "-nc", 5)
    capsys.readouterr()
    made = (folder / "config.json").stat().st_mtime_ns
    generate(npz, "-nc", 5)
    assert "already there" in capsys.readouterr().out and (folder / "config.json").stat().st_mtime_ns == made
    for other in (["-nc", 5, "--seed", 3], ["-nc", 6], ["-nc", 5, "noniid", "-", "pat", "--classes_per_client", 3]):
        with pytest.raises(SystemExit) as exit:
            generate(npz, *other)
        error = capsys.readouterr().err
        assert exit.value.code == 2 and (folder / "config.json").stat().st_mtime_ns == made
        assert "holds another partition (python" in error and f"--force replaces it, --out {folder}-2" in error
    generate(npz, *other, "--force")
    assert "making it again\n" in capsys.readouterr().out and config_of(folder)["class_per_client"] == 3


@pytest.mark.parametrize("damage", ["missing", "truncated", "another client's", "one more"])
def test_main_and_the_generator_see_the_same_damage(npz, capsys, damage):
    data = DataSet("Mine", npz.parent / "data")
    main("MNIST", ["-nc", "5", "--source", str(npz), "--out", str(data.folder)])
    before = data.digest()
    file = data.file(1, True)
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:100])
    elif damage == "another client's":
        file.write_bytes(data.file(2, True).read_bytes())
    elif damage == "one more":
        file = file.with_name("5.npz")
        file.write_bytes(data.file(2, True).read_bytes())
    else:
        file.unlink()
    flags = ["-data", "Mine", "--data_dir", str(data.root), "--results_dir", str(npz.parent / "results"), "-gr", "0"]
    assert run_main(flags) == 2
    error = capsys.readouterr().err
    assert str(file) in error and "python" in error and "generate_MNIST.py --source" in error
    main("MNIST", ["-nc", "5", "--source", str(npz), "--out", str(data.folder)])
    assert f"making it again, since {file}" in capsys.readouterr().out and data.digest() == before
    assert run_main([*flags, "-m", "MLR"]) == 0


def test_a_changed_source_is_read_again(npz, capsys):
    folder, source = npz.parent / "out", npz.parent / "animals"
    for name, grey in (("cat", 10), ("dog", 200)):
        (source / name).mkdir(parents=True)
        for i in range(20):
            Image.new("L", (4, 4), grey + i).save(source / name / f"{i}.png")
    for expected in ("0: cat, 1: dog", "already there", "since the source has changed"):
        if expected.startswith("since"):
            shutil.copytree(source / "dog", source / "ape")
        main("MNIST", ["-nc", "2", "--source", str(source), "--out", str(folder)])
        assert expected in capsys.readouterr().out
    assert config_of(folder)["num_classes"] == 3 and config_of(folder)["class_names"] == ["ape", "cat", "dog"]


def test_what_another_tool_made_is_not_replaced_unless_told(npz, capsys):
    write_dataset(npz.parent, "out")
    before = DataSet("out", npz.parent).digest()
    with pytest.raises(SystemExit):
        generate(npz, "-nc", 5)
    assert "another tool made: --force replaces it" in capsys.readouterr().err
    assert DataSet("out", npz.parent).digest() == before
    (npz.parent / "out" / "config.json").unlink()
    with pytest.raises(SystemExit):
        generate(npz, "-nc", 5)
    assert "no finished data set" in capsys.readouterr().err and (npz.parent / "out" / "train" / "3.npz").exists()
    generate(npz, "-nc", 5, "--force")
    assert config_of(npz.parent / "out")["num_clients"] == 5


def test_impossible_settings_leave_the_earlier_data_set_alone(npz, capsys):
    folder = generate(npz, "-nc", 5)
    before = images_of(folder)
    with pytest.raises(SystemExit) as exit:
        generate(npz, "-nc", 40, "--alpha", 0.001, "--force")
    assert exit.value.code == 2 and "--repair" in capsys.readouterr().err
    assert images_of(folder) == before
    generate(npz, "-nc", 40, "--alpha", 0.001, "--repair", "--force")
    assert config_of(folder)["repaired"] > 0 and "images were moved" in capsys.readouterr().out
    assert sorted(sum(images_of(folder), [])) == list(range(600))


def test_a_wrong_source_exits_2_with_its_name(npz, capsys):
    npz.write_bytes(b"nothing")
    with pytest.raises(SystemExit) as exit:
        generate(npz)
    assert exit.value.code == 2 and str(npz) in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_no_traceback(npz, capsys):
    (npz.parent / "out").write_text("a file")
    with pytest.raises(SystemExit) as exit:
        generate(npz, "-nc", 5)
    assert exit.value.code == 1 and capsys.readouterr().err.startswith("error: ")


def test_from_python(npz, capsys):
    """The same call as the command's, with the same files; nothing is printed but what `say` gets."""
    said = []
    made = make("MNIST", npz.parent / "one", num_clients=5, alpha=1, source=npz, say=said.append)
    assert made.made and made.config["num_clients"] == 5 and "600 images in 5 clients (dir)" in str(made)
    assert made.config["arguments"] == ["--alpha", "1.0", "--source", str(npz)]
    again = make("MNIST", npz.parent / "one", num_clients=5, alpha=1.0, source=npz, say=said.append)
    assert not again.made and again.config == json.loads(json.dumps(made.config))
    assert said == [
        f"{npz}: 600 images of 1 channel, 4 x 4 pixels (height x width), 10 classes, values 0 to 250, scaled to -1..1"
    ]
    assert capsys.readouterr().out == ""
    assert images_of(npz.parent / "one") == images_of(generate(npz, "-nc", 5, "--alpha", 1, "--force"))
    for wrong, message in (
        ({"alpha": 0}, "--alpha must be above 0"),
        ({"alfa": 1}, "alfa: no such setting of a data set. Did you mean alpha?"),
        ({"num_clients": "many"}, "--num_clients must be a whole number"),
        ({"partition": "dirichlet"}, "--partition must be one of iid, pat, dir, exdir, natural, not 'dirichlet'"),
        ({"partition": "exdir", "balance": True}, "balance contradicts exdir"),
        ({"source": "nowhere.npz"}, "nowhere.npz is missing"),
    ):
        with pytest.raises(UsageError, match=message):
            make("MNIST", npz.parent / "two", **wrong)
    with pytest.raises(UsageError, match="no images 'CIFAR': known are Cifar10"):
        make("CIFAR")
    assert not (npz.parent / "two").exists()


# --- as commands ------------------------------------------------------------------------------------------------------


def test_command_from_elsewhere(tmp_path):
    made = run(REPO / "dataset" / "generate_Digits.py", "iid", "balance", "-", "--out", "Digits", cwd=tmp_path)
    assert made.returncode == 0 and "1797 images in 20 clients (iid)" in made.stdout, made.stderr
    counts = plot.read_counts(DataSet("Digits", tmp_path))
    assert counts.shape == (20, 10) and (counts.max(0) - counts.min(0) < 20).all()


@pytest.mark.parametrize("name", [name for name in KNOWN if name != "Digits"])
def test_every_generator_is_there_and_thin(name):
    text = (REPO / "dataset" / f"generate_{name}.py").read_text()
    assert f'main("{name}")' in text and len(text.splitlines()) < 10


def test_no_network_is_an_error_that_helps(tmp_path):
    # a copy of the repository's two folders, so that nobody's downloads matter
    for folder in ("system/flcore", "dataset/utils"):
        shutil.copytree(REPO / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPO / "dataset" / "generate_Cifar10.py", tmp_path / "dataset")
    proxy = "http://127.0.0.1:9"  # nobody answers there
    failed = run(
        "generate_Cifar10.py", "noniid", "-", "dir", cwd=tmp_path / "dataset", https_proxy=proxy, HTTPS_PROXY=proxy
    )
    assert failed.returncode == 1 and "Traceback" not in failed.stderr
    assert "cs.toronto.edu" in failed.stderr and "--source" in failed.stderr
    assert not (tmp_path / "dataset" / "Cifar10").exists()


@pytest.mark.slow
def test_cifar100_from_an_npz(tmp_path):
    folder = REPO.parent / "shared" / "data"
    if not (folder / "make_npz.py").is_file():
        pytest.skip("needs the CIFAR-100 images beside the repository")
    assert run(folder / "make_npz.py", "cifar100", tmp_path / "c.npz").returncode == 0
    flags = ["--source", tmp_path / "c.npz", "--fraction", 0.2, "--out", tmp_path / "Cifar100"]
    made = run(REPO / "dataset" / "generate_Cifar100.py", "noniid", "-", "dir", *flags)
    assert made.returncode == 0 and "12000 images in 20 clients (dir)" in made.stdout, made.stderr
    counts = plot.read_counts(DataSet("Cifar100", tmp_path))
    assert counts.shape == (20, 100) and counts.sum() == 12_000 and counts.sum(1).min() >= 40 and counts.any(0).all()
    assert config_of(tmp_path / "Cifar100")["shape"] == [3, 32, 32]


def test_a_source_of_ones_own_by_name(npz, capsys, monkeypatch):
    monkeypatch.setattr("flcore.data.command.DATASET", npz.parent)
    main(None, ["--name", "My birds [1]", "--source", str(npz), "-nc", "5", "--alpha", "0.5"])
    made = DataSet("My birds [1]", npz.parent)
    assert made.config()["generator"] == "generate.py" and made.problem() == ""
    assert made.command().startswith("python ") and "generate.py --alpha 0.5 --source" in made.command()
    for name in ("A", "A-pat"):
        main("MNIST", ["--source", str(npz), "-nc", "5", "--name", name, "noniid", "-", name[2:] or "dir"])
    assert [config_of(npz.parent / name)["partition"] for name in ("A", "A-pat")] == ["dir", "pat"]
    with pytest.raises(SystemExit):
        main("MNIST", ["--source", str(npz), "-nc", "6", "--name", "A"])
    assert "holds another partition" in capsys.readouterr().err and config_of(npz.parent / "A")["num_clients"] == 5
    for wrong, message in (
        (["--name", "B"], "--name NAME and --source PATH are needed"),
        (["--source", str(npz)], "--name NAME and --source PATH are needed"),
        (["--name", "../B", "--source", str(npz)], "must be a plain name, not '../B'"),
        (["--name", "B", "--out", "C", "--source", str(npz)], "give one of them"),
        (
            ["--name", "B", "--source", str(npz), "--partition", "iid", "noniid", "-", "dir"],
            "--partition iid contradicts",
        ),
        (["--name", "B", "--source", str(npz), "--image_size", "32"], "must be height x width, such as 32x48"),
        (["--name", "B", "--source", str(npz), "--user_folders"], "has no folders of users"),
        (["--name", "B", "--source", str(npz), "--classes_per_client", "11", "noniid", "-", "pat"], "1 to 10 classes"),
    ):
        with pytest.raises(SystemExit) as exit:
            main(None, wrong)
        assert exit.value.code == 2 and message in capsys.readouterr().err
    assert not (npz.parent / "B").exists()


@pytest.mark.parametrize("seed", range(10))
def test_the_digits_work_with_every_seed(seed):
    y = np.repeat(np.arange(10), [178, 182, 177, 183, 181, 182, 181, 179, 174, 180])  # the digits' classes
    clients, minimum, moved = partition(y, 20, 10, "dir", seed=seed)
    assert minimum == 40 and min(map(len, clients)) >= 40 and moved <= 0.05 * len(y)
    assert sorted(np.concatenate(clients)) == list(range(len(y)))


def test_the_commands_of_the_documents(tmp_path, monkeypatch, capsys):
    """What docs/data.md shows of generators and functions, word for word."""
    draw = np.random.default_rng(0)
    for user in range(3):
        for label, name in enumerate(("crow", "owl", "wren")):
            for path in (tmp_path / "birds" / "train" / name, tmp_path / "dataset" / "phones" / str(user) / name):
                path.mkdir(parents=True, exist_ok=True)
                for i in range(20):
                    pixels = draw.integers(60 * label, 60 * label + 90, (8 + i % 2 * ("birds" in path.parts), 8))
                    Image.fromarray(pixels.astype(np.uint8)).save(path / f"{user}-{i}.png")
    rows = [f"{draw.normal()},{draw.normal()},{name}" for name in ("lily", "rose") * 40]
    (tmp_path / "dataset" / "flowers.csv").write_text("\n".join(["width,height,species", *rows]))
    monkeypatch.setenv("HOME", str(tmp_path))
    for module in ("command", "reading", "generate"):
        monkeypatch.setattr(f"flcore.data.{module}.DATASET", tmp_path / "dataset")
    blocks = re.findall(r"```(\w+)\n(.*?)```", (REPO / "docs" / "data.md").read_text(), re.DOTALL)
    ran = 0
    for language, code in blocks:
        monkeypatch.chdir(tmp_path / ("dataset" if language == "bash" else "."))
        if language == "python":
            exec(code, {})
        for script, words in re.findall(r"^python generate(\w*)\.py (.*)$", code, re.MULTILINE):
            main(script.removeprefix("_") or None, words.split())
            ran += 1
    made = sorted(path.parent.name for path in (tmp_path / "dataset").glob("*/config.json"))
    assert ran == 5 and made == ["Birds", "Digits-a0.5", "Digits-pat", "Flowers", "Mine", "Phones"]
    assert not any(DataSet(name, tmp_path / "dataset").problem() for name in made)


# --- picture ----------------------------------------------------------------------------------------------------------


def test_plot_flag(npz, capsys):
    folder = generate(npz, "-nc", 5, "--plot")
    assert (folder / "partition.png").read_bytes().startswith(b"\x89PNG")
    (folder / "partition.png").unlink()
    generate(npz, "-nc", 5, "--plot")  # also where nothing else is to be done
    assert (folder / "partition.png").exists()


@pytest.mark.parametrize("statistic", [[[[0, 3], [2, 1]], [], [[1, 5]]], [[], [], []]])
def test_picture_from_config_alone_with_empty_clients(tmp_path, statistic):
    config = {"num_clients": 3, "num_classes": 4, "Size of samples for labels in clients": statistic}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert plot.draw(tmp_path).read_bytes().startswith(b"\x89PNG")


def test_a_minimal_config_is_counted_from_the_files(tmp_path):
    """Only num_clients and num_classes are needed, as main.py reads it."""
    folder = write_dataset(tmp_path)
    whole = config_of(folder)
    (folder / "config.json").write_text(json.dumps({"num_clients": 4, "num_classes": 4}))
    counts = plot.read_counts(DataSet("Tiny", tmp_path))
    assert counts.sum(1).tolist() == [32, 20, 13, 36] and plot.draw(folder).exists()
    train = [np.load(folder / "train" / f"{i}.npz", allow_pickle=True)["data"].item()["y"] for i in range(4)]
    told = [dict(own) for own in whole["Size of samples for labels in clients"]]  # of the training images
    assert [{c: int((y == c).sum()) for c in set(y.tolist())} for y in train] == told


def test_the_picture_names_the_classes(tmp_path, drawn):
    config = {"num_clients": 2, "num_classes": 2, "Size of samples for labels in clients": [[[0, 3]], [[1, 5]]]}
    (tmp_path / "config.json").write_text(json.dumps(config | {"class_names": ["cat $x_{", "d" * 50]}))
    plot.draw(tmp_path)
    assert [text.get_text() for text in drawn[0].axes[0].get_yticklabels()] == ["cat $x_{", "d" * 19 + "…"]


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved."""
    from matplotlib.figure import Figure

    figures, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *to, **how: figures.append(figure) or save(figure, *to, **how)
    )
    return figures


@pytest.mark.parametrize("clients", [1, 2, 3, 20])
def test_ticks_are_whole_numbers(tmp_path, clients, drawn):
    config = {"num_clients": clients, "num_classes": 1, "Size of samples for labels in clients": [[[0, 3]]] * clients}
    (tmp_path / "config.json").write_text(json.dumps(config))
    plot.draw(tmp_path)
    axes = drawn[0].axes[0]
    for ticks in (axes.get_xticks(), axes.get_yticks()):
        assert 0 in ticks and (ticks == ticks.astype(int)).all()


def test_a_large_picture_stays_a_sensible_size(tmp_path):
    counts = np.random.default_rng(0).integers(0, 50, (100, 100))
    statistic = [[[c, int(n)] for c, n in enumerate(own) if n] for own in counts]
    config = {"num_clients": 100, "num_classes": 100, "Size of samples for labels in clients": statistic}
    (tmp_path / "config.json").write_text(json.dumps(config))
    width, height = Image.open(plot.draw(tmp_path)).size
    assert 1000 < height <= width < 2500


def test_picture_without_a_data_set(tmp_path):
    failed = run(REPO / "dataset" / "plot_partition.py", tmp_path / "None")
    assert failed.returncode == 2 and failed.stderr.startswith("error: ") and "config.json is missing" in failed.stderr


def test_the_number_of_clients_that_an_error_advises_fits():
    """-nc 3 -nnc 4 on 4 clients: -nnc 1."""
    assert _fitting(3, 4, 4) == "-nnc 1" and _fitting(5, 1, 4) == "-nc 3" and _fitting(5, 4, 4) == "-nc 3 -nnc 1"
    for own, new, there in itertools.product(range(1, 7), range(7), range(1, 7)):
        words = _fitting(own, new, there).split()
        flags = {"-nc": own, "-nnc": new} | dict(zip(words[::2], map(int, words[1::2]), strict=True))
        assert flags["-nc"] >= 1 and flags["-nc"] + flags["-nnc"] == there

"""Where a network comes from: a file, torchvision, Python; its arguments, its head, and weights to begin with."""

import logging

import pytest
import safetensors.torch
import torch
from torch import nn

import main
from flcore.experiment import Experiment
from flcore.reporting.provenance import command_of
from flcore.trainmodel.network import Wanted, prepare
from flcore.trainmodel.pretrained import load_pretrained, read_weights
from flcore.trainmodel.sources import read_arguments, source_of
from flcore.utils.errors import UsageError
from flcore.utils.runs.read import read_run
from support import same_tensors
from support.evil import Evil
from support.networks import Auxiliary, Base, Tuple

CODE = """
from torch import nn

from layers import SIZE


class Net(nn.Module):
    def __init__(self, num_classes, shape, size=SIZE, act="relu"):
        super().__init__()
        self.act, self.taken = act, (num_classes, shape)
        self.body = nn.Sequential(nn.Flatten(), nn.LazyLinear(size), nn.ReLU())
        self.classifier = nn.Linear(size, num_classes)

    def forward(self, x):
        return self.classifier(self.body(x))


def text():
    return "a network"
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "layers.py").write_text("from utils import SIZE\n")
    (tmp_path / "utils").mkdir()  # as our own thin front is called
    (tmp_path / "utils" / "__init__.py").write_text("SIZE = 6\n")
    (tmp_path / "net.py").write_text(CODE)
    return tmp_path / "net.py"


def experiment(data_root, **settings):
    settings = {"algorithm": "FedRep", "dataset": "Tiny", "data_dir": str(data_root), "device": "cpu", **settings}
    return Experiment(executor="loop", results_dir=settings.pop("results_dir", None), **settings)


# ---- a file ----------------------------------------------------------------------------------------------------------


def test_a_class_in_a_file_gets_what_it_asks_for(file):
    source = source_of(f"{file}:Net", {"act": "tanh"})
    net = source.build((1, 20, 20), 4)
    assert source.label == "net.py:Net" and net.taken == (4, (1, 20, 20)) and net.act == "tanh"
    assert net.classifier.in_features == 6
    assert source_of(f"{file}:Net", {"size": 3}).build((5,), 2).classifier.weight.shape == (2, 3)


def test_our_own_modules_stay_what_they_are(file):
    import sys

    def others():
        return {name: module for name, module in sys.modules.items() if not name.startswith("user_network_")}

    before = others(), list(sys.path)
    source_of(f"{file}:Net", {})
    assert (others(), list(sys.path)) == before


@pytest.mark.parametrize("changed", ["net.py", "layers.py", "utils/__init__.py"])
def test_a_changed_file_is_another_network(file, changed):
    """Also a file that it imports, in the same process and within the same second."""
    first = source_of(f"{file}:Net", {})
    assert source_of(f"{file}:Net", {}).digest == first.digest
    path = file.parent / changed
    path.write_text(path.read_text().replace("SIZE", "SIZE  "))
    assert source_of(f"{file}:Net", {}).digest != first.digest
    (file.parent / "utils" / "__init__.py").write_text("SIZE = 7\n")
    assert source_of(f"{file}:Net", {}).build((4,), 2).classifier.in_features == 7


@pytest.mark.parametrize(
    ("spec", "code", "reason"),
    [
        ("gone.py:Net", None, "there is no file"),
        ("net.py", CODE, r"which class of the file it is: -m .*net\.py:Net"),
        ("net.py:Nett", CODE, "has no class Nett. Did you mean Net?"),
        ("net.py:text", CODE, "gives no torch.nn.Module but str"),
        (
            "net.py:Net",
            "import nothing_of_this_name",
            r"cannot be imported: ModuleNotFoundError: .* \(net.py, line 1\)",
        ),
        ("net.py:Net", "class Net(:", r"cannot be read: SyntaxError"),
        ("net.py:Net", "def Net(depth): pass", "missing 1 required positional argument: 'depth'"),
        ("net.py:Net", "def Net():\n    return 1 / 0", r"ZeroDivisionError: division by zero \(net.py, line 2\)"),
    ],
)
def test_a_file_that_gives_no_network_is_one_line(file, spec, code, reason):
    if code:
        file.write_text(code)
    with pytest.raises(UsageError, match=reason) as error:
        source_of(str(file.parent / spec), {}).build((1, 20, 20), 4)
    assert "\n" not in str(error.value) and "-m" in str(error.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}),
        ("width=32", {"width": 32}),
        ('width = 32, act="relu", sizes=[1, 2]', {"width": 32, "act": "relu", "sizes": [1, 2]}),
        ('{"width": 32, "bias": null}', {"width": 32, "bias": None}),
    ],
)
def test_arguments_as_toml_or_json(text, value):
    assert read_arguments(text) == value


def test_arguments_in_a_file_of_settings(tmp_path):
    (tmp_path / "run.toml").write_text('model = "DNN"\nmodel_args = {mid_dim = 7}\n')
    network = Experiment.from_config(tmp_path / "run.toml").source.build((5,), 3)
    assert network.fc1.out_features == 7
    (tmp_path / "run.toml").write_text('model = "DNN"\nmodel_args = [7]\n')
    with pytest.raises(UsageError, match="model_args has several values"):
        Experiment.from_config(tmp_path / "run.toml")


def test_wrong_arguments_of_our_own_networks_are_one_line():
    with pytest.raises(UsageError, match="-m DNN cannot be made with these --model_args: TypeError: .*'depth'"):
        source_of("DNN", {"depth": 3}).build((5,), 3)


@pytest.mark.parametrize("text", ["act=relu", "32", '{"width": }', "a=1 b=2"])
def test_other_arguments_are_refused(text):
    with pytest.raises(UsageError, match="--model_args .*write it as"):
        read_arguments(text)


def test_the_command_runs_a_users_file(file, data_root, tmp_path, capsys):
    flags = ["--data_dir", str(data_root), "--results_dir", str(tmp_path / "results"), "-gr", "1", "-dev", "cpu"]
    flags += ["-algo", "FedCPD", "-data", "Tiny", "-m", f"{file}:Net", "--model_args", "size=5"]
    assert main.main([*flags, "--head", "classifier"]) == 0
    assert "net.py:Net: the head is classifier, 5 -> 4" in capsys.readouterr().out
    assert main.main([*flags, "--head", "classifer"]) == 2
    told = capsys.readouterr().err
    assert "--head classifer: net.py:Net has no such layer. Did you mean classifier?" in told and told.count("\n") == 1


# ---- a run knows its network -----------------------------------------------------------------------------------------


def test_a_changed_network_is_not_reused(file, data_root, tmp_path, caplog, monkeypatch):
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO, "flcore")
    settings = {"model": "net.py:Net", "global_rounds": 1, "results_dir": str(tmp_path / "results"), "reuse": True}
    first, again = (experiment(data_root, **settings).run() for _ in range(2))
    assert "is reused" in caplog.text and again.paths == first.paths
    info = first.repeats[0].info
    assert info["settings"]["model"] == "net.py:Net" and len(info["settings"]["model_digest"]) == 64
    assert f"--model {file}:Net" in command_of(read_run(first.repeats[0].path))
    assert info["network"] == {"parameters": 401 * 6 + 7 * 4, "frozen": 0, "dtype": "float32"}
    file.write_text(CODE.replace("nn.ReLU()", "nn.Tanh()"))
    other = experiment(data_root, **settings).run()
    assert other.paths != first.paths and not (other.train_loss == first.train_loss).all()


def test_settings_tell_networks_apart(file, data_root, tmp_path):
    weights = tmp_path / "weights.pt"
    torch.save(source_of(f"{file}:Net", {}).build((400,), 4).classifier.state_dict(), weights)
    usual = experiment(data_root, model="DNN").context().settings
    assert {"model_digest", "pretrained", "head", "model_args"}.isdisjoint(usual) and usual["optimizer"] == "sgd"
    seen = []
    for settings in (
        {"model": f"{file}:Net"},
        {"model": f"{file}:Net", "model_args": {"size": 3}},
        {"model": Base},
        {"model": Base()},
        {"model": Base(), "optimizer": "adam"},
    ):
        seen.append(experiment(data_root, **settings).context().settings)
        assert seen[-1] not in seen[:-1] and seen[-1]["model_digest"]


# ---- Python ----------------------------------------------------------------------------------------------------------


def test_a_class_is_made_anew_and_a_module_is_copied(data_root):
    module = Base()
    given, made = experiment(data_root, model=module), experiment(data_root, model=Base)
    first, second = (given.context(repeat).model for repeat in (0, 1))
    assert same_tensors(first.state_dict(), second.state_dict())
    assert torch.equal(first.state_dict()["head.weight"], module.out.weight)
    first.head.weight.data.zero_()
    assert bool(module.out.weight.any()) and list(dict(module.named_children())) == ["one", "two", "out"]
    first, second, again = (made.context(repeat).model.state_dict() for repeat in (0, 1, 0))
    assert same_tensors(first, again) and not same_tensors(first, second)


def test_what_is_no_network_is_refused(data_root):
    with pytest.raises(UsageError, match="gives no torch.nn.Module but dict"):
        experiment(data_root, model=lambda: {}).context()
    with pytest.raises(UsageError, match="the model is there already"):
        experiment(data_root, model=Base(), model_args={"num_classes": 4})
    with pytest.raises(UsageError, match="model_args: Object of type type is not JSON"):
        experiment(data_root, model=Base, model_args={"num_classes": int})


# ---- torchvision -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "head"), [("squeezenet1_1", None), ("shufflenet_v2_x0_5", "fc"), ("mnasnet0_5", None)]
)
def test_torchvisions_networks(data_root, name, head):
    """Grey images and four classes; SqueezeNet ends with a convolution, MNASNet's head is in a block."""
    wanted = Wanted(f"torchvision:{name}", (1, 32, 32), 4)
    model = source_of(wanted.label, {}).build((1, 32, 32), 4)
    if name == "squeezenet1_1":
        with pytest.raises(UsageError, match="not the output of a linear layer"):
            prepare(model, wanted)
        return
    net, lines = prepare(model, wanted)
    assert f"the head is {head or 'classifier.1'}, " in lines[0] and net.head.out_features == 4


def test_another_name_of_torchvision_is_refused():
    with pytest.raises(UsageError, match="no such classification model. Did you mean resnet18?"):
        source_of("torchvision:resnet-18", {})


# ---- the head --------------------------------------------------------------------------------------------------------


def test_a_named_head_of_two_layers():
    net = nn.Sequential(nn.Flatten(), nn.Linear(400, 6), nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)))
    found, _ = prepare(net, Wanted("net", (1, 20, 20), 4, head="2"))
    assert [type(layer) for layer in found.head] == [nn.Linear, nn.ReLU, nn.Linear] and found.base[1].out_features == 6


@pytest.mark.parametrize("network", [Tuple, Auxiliary])
def test_a_network_that_is_not_split_gives_its_scores_alone(network):
    whole, _ = prepare(network(), Wanted("net", (1, 20, 20), 4, split=False))
    for mode in (True, False):
        assert whole.train(mode)(torch.zeros(2, 1, 20, 20)).shape == (2, 4)
    assert "out.weight" in whole.state_dict()


@pytest.mark.parametrize(
    ("head", "reason"),
    [("one", "is not the last layer"), ("oen", "no such layer. Did you mean one?"), ("relu", "no parameters")],
)
def test_another_layer_is_no_head(head, reason):
    class Net(Base):
        def __init__(self):
            super().__init__()
            self.relu = nn.ReLU()

        def forward(self, x):
            return self.relu(super().forward(x))

    with pytest.raises(UsageError, match=f"--head {head}: .*{reason}"):
        prepare(Net(), Wanted("Net", (1, 20, 20), 4, head=head))


def test_fedcp_wants_one_linear_layer(data_root):
    net = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(400, 5), nn.ReLU(), nn.Linear(5, 4)))
    with pytest.raises(UsageError, match="FedCP reads the weights of the head"):
        experiment(data_root, algorithm="FedCP", model=net, head="1").server()


# ---- weights to begin with -------------------------------------------------------------------------------------------


def saved(tmp_path, tensors, kind):
    path = tmp_path / f"weights.{kind}"
    if kind == "safetensors":
        safetensors.torch.save_file(tensors, path)
    else:
        torch.save({"state_dict": {f"module.{name}": value for name, value in tensors.items()}, "epoch": 3}, path)
    return path


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_weights_of_another_head_leave_the_head_fresh(tmp_path, kind):
    old, new = Base(10), Base(4)
    fresh = new.out.weight.clone()
    path = saved(tmp_path, {name: value.detach() for name, value in old.state_dict().items()}, kind)
    line = load_pretrained(new, path, "out")
    assert line == f"pretrained: 4 tensors from {path}; the head (out) starts afresh"
    assert torch.equal(new.one.weight, old.one.weight) and torch.equal(new.out.weight, fresh)
    same = Base(10)
    assert load_pretrained(same, path, "out") == f"pretrained: 6 tensors from {path}"
    assert same_tensors(same.state_dict(), old.state_dict())


def test_a_run_begins_with_the_model_of_another(data_root, tmp_path, caplog):
    caplog.set_level(logging.INFO, "flcore")
    settings = {"model": Base, "algorithm": "FedAvg", "global_rounds": 2}
    first = experiment(data_root, results_dir=str(tmp_path), **settings).run()
    second = experiment(data_root, pretrained=first.paths[0]["model"], **settings).run()
    assert "pretrained: 6 tensors from" in caplog.text
    assert second.test_acc[0] == first.test_acc[-1] and len(second.settings["pretrained"]) == 64


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"one.weight": torch.zeros(4, 1, 5, 5)}, r"one.bias is not in it and \(4,\) here; 3 of 6 tensors"),
        (
            {**Base().state_dict(), "two.weight": torch.zeros(4, 4, 2, 2)},
            r"two.weight has the shape \(4, 4, 2, 2\) there",
        ),
        ({**Base().state_dict(), "one.bias": torch.full((4,), torch.inf)}, "one.bias has values that are not finite"),
        ([1, 2], "holds no state_dict"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_change_nothing(tmp_path, content, reason):
    torch.save(content, tmp_path / "weights.pt")
    net = Base()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(UsageError, match=reason):
        load_pretrained(net, tmp_path / "weights.pt", "out")
    assert same_tensors(net.state_dict(), before)


def test_nothing_in_a_file_of_weights_is_run(tmp_path):
    flag = tmp_path / "ran"
    for name, content in (("whole.pt", Base()), ("evil.pt", {"a": Evil(flag)})):
        torch.save(content, tmp_path / name)
        with pytest.raises(UsageError, match="is refused, none of it was run: it holds more than tensors"):
            read_weights(tmp_path / name)
    (tmp_path / "text.safetensors").write_text("no")
    with pytest.raises(UsageError, match="is refused"):
        read_weights(tmp_path / "text.safetensors")
    assert not flag.exists()


# ---- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 7, 33), (2, 64, 5), (17,), (1, 1, 1)])
def test_odd_sizes(shape):
    net = nn.Sequential(nn.Flatten(), nn.LazyLinear(5), nn.ReLU(), nn.Linear(5, 3))
    found, _ = prepare(net, Wanted("net", shape, 3))
    assert found(torch.zeros(2, *shape)).shape == (2, 3)


def test_an_image_that_is_too_small_is_one_line(data_root):
    with pytest.raises(
        UsageError, match=r"-m torchvision:alexnet cannot take samples of 1x20x20: RuntimeError: "
    ) as error:
        experiment(data_root, model="torchvision:alexnet").context()
    assert "\n" not in str(error.value)

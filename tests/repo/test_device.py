"""Everything on a device other than the CPU: on a pretended one (`pretended_device`) it ends with the CPU's numbers."""

import io
import json

import h5py
import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

import main
from flcore import experiment
from flcore.executors.loop import LoopExecutor
from flcore.executors.stacked import StackedExecutor
from flcore.registry import METHODS
from flcore.servers.support import dlg
from flcore.trainmodel.ktl import ImageGenerator
from flcore.trainmodel.models import FedAvgCNN
from flcore.utils.runs import run_state
from flcore.utils.runs.checkpoint import Checkpoints
from support import REPO, SHORT, same_tensors
from support.checkpoints import INFO, StoppedError, everything, stop_in_round
from support.pretended_device import DEVICE, OnDevice, pretended_device, stalls

NAMES = [line.name for line in METHODS]
QUICK = {
    ("FedCPD", StackedExecutor),
    ("FedPA", LoopExecutor),
    ("FedKTL", StackedExecutor),
    ("FedALA", LoopExecutor),
    ("FedTGP", LoopExecutor),
}
RESUMED = ("FedPA", "FedKTL")  # their servers hold modules and optimizers


@pytest.fixture
def same_on_device(make_server, monkeypatch):
    """Trains a server on the CPU and one on the pretended device: the same numbers, and no weight left the device."""
    monkeypatch.setattr(FedAvgCNN, "layout", None)  # of images on a CPU only; it changes the last bit

    def compare(algorithm, *flags, executor=LoopExecutor, dataset="Skewed", prepare=lambda server: None, **options):
        flags = ("-gr", "2", *SHORT.get(algorithm, ()), *flags)
        expected = make_server(algorithm, *flags, executor=executor(), dataset=dataset, **options)
        prepare(expected)
        expected.train()
        with pretended_device() as device:
            server = make_server(algorithm, *flags, executor=executor(), dataset=dataset, device=device, **options)
            prepare(server)
            server.train()
            assert_same(server, expected)
            assert_on_device(server)
        return server

    return compare


def assert_same(server, expected):
    """Curves, weights, and whatever else lasts from round to round, bit for bit."""
    for ours, theirs in zip(everything(server), everything(expected), strict=True):
        assert ours.keys() == theirs.keys()
        assert [name for name in ours if ours[name] != theirs[name]] == []


def assert_on_device(server):
    groups = [server.global_params, server.last_message]
    groups += [group for client in server.clients for group in (client.params, client.state, client.upload)]
    real = [value for group in groups for value in group.values() if value.is_floating_point()]
    assert real and all(isinstance(value, OnDevice) for value in real)


def quick_or_long(algorithm, executor):
    return pytest.param(algorithm, executor, marks=[] if (algorithm, executor) in QUICK else pytest.mark.long)


# ---- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "executor"),
    [quick_or_long(name, executor) for name in NAMES for executor in (LoopExecutor, StackedExecutor)],
)
def test_every_method(same_on_device, caplog, algorithm, executor):
    same_on_device(algorithm, executor=executor)
    assert "stacked:" not in caplog.text  # nothing fell back to the loop


@pytest.mark.parametrize("executor", [LoopExecutor, StackedExecutor])
def test_a_users_network_with_dropout_and_adam(same_on_device, caplog, executor):
    model = f"{REPO}/tests/support/networks.py:AllAtOnce"
    same_on_device("FedCPD", "--optimizer", "adam", "-lr", "0.001", model=model, executor=executor)
    assert "stacked:" not in caplog.text


@pytest.mark.parametrize(
    ("algorithm", "flags"),
    [
        ("FedCPD", ("-jr", "0.75", "-cdr", "0.4", "-gr", "3", "--attack", "noise", "--attack_rate", "0.5")),
        ("FedCPD", ("--aggregate", "median", "--label_noise", "0.3")),
        ("FedProto", ("--proto_noise", "1", "--proto_min_count", "2")),
    ],
)
@pytest.mark.parametrize("model", ["DNN", pytest.param("CNN", marks=pytest.mark.long)])
def test_participation_faults_and_noise(same_on_device, algorithm, flags, model):
    same_on_device(algorithm, *flags, model=model)


@pytest.mark.long
@pytest.mark.parametrize(
    ("algorithm", "flags"),
    [
        *((name, ("-jr", "0.75", "-cdr", "0.4", "-gr", "3")) for name in NAMES),
        *((name, ("--attack", "noise", "--attack_rate", "0.5")) for name in NAMES),
        ("FedHKD", ("--attack", "signflip", "--attack_rate", "0.5")),
        ("FedCPD", ("--attack", "labelflip", "--attack_rate", "0.5")),
        *(("FedCPD", ("--aggregate", how)) for how in ("trimmed", "krum")),
        *((name, ("--aggregate", "median")) for name in NAMES),
        ("FedCPD", ("--proto_noise", "1")),
        ("FedPA", ("--proto_noise", "1", "--proto_min_count", "2")),
        ("FedCPD", ("--cpd_fd", "0", "--cpd_proto_weighting", "count")),
        ("FedHKD", ("--hkd_form", "l2", "--hkd_nu", "0")),
        ("FedCRL", ("--crl_share", "base", "--crl_mix", "0.5")),
        ("FedALA", ("-gr", "3", "--layer_idx", "0")),
        ("FedAvg", ("-ld", "-fs", "3", "-eg", "2")),
        ("FedAvg", ("-lbs", "-1", "-ls", "2")),
        ("FedAvg", ("-ab", "-tc", "1", "-tth", "4", "-tsr", "0.5")),
    ],
)
@pytest.mark.parametrize("executor", [LoopExecutor, StackedExecutor])
def test_every_option(same_on_device, executor, algorithm, flags):
    same_on_device(algorithm, *flags, executor=executor)


@pytest.mark.long
@pytest.mark.parametrize("executor", [LoopExecutor, StackedExecutor])
@pytest.mark.parametrize("model", ["MLR", "DNN", "FedAvgMLP", "ResNet18"])
def test_every_model(same_on_device, executor, model):
    same_on_device("FedCPD", "-lbs", "3", executor=executor, dataset="Colour", model=model)


def test_clients_with_values_that_are_not_finite(same_on_device):
    def poison(server):
        x, y = server.clients[1].data
        server.clients[1]._tensors[True] = (x * float("nan"), y)

    server = same_on_device("FedCPD", prepare=poison, executor=StackedExecutor, model="DNN")
    assert server.records["rs_left_out"] == [1, 1]


def test_new_clients(same_on_device):
    server = same_on_device("FedCPD", "-nc", "3", "-nnc", "1", "-ften", "1", model="DNN")
    assert len(server.records["rs_new_acc"]) == 2


@pytest.mark.parametrize("algorithm", ["FedCPD", pytest.param("FedAvg", marks=pytest.mark.long)])
def test_gradient_leakage(same_on_device, monkeypatch, algorithm):
    monkeypatch.setattr(dlg, "ITERATIONS", 2)
    server = same_on_device(algorithm, "-dlg", "-dlgg", "1", model="DNN")
    assert len(server.records["rs_dlg_psnr"]) == 2


@pytest.mark.parametrize(
    "algorithm", [*RESUMED, *(pytest.param(name, marks=pytest.mark.long) for name in NAMES if name not in RESUMED)]
)
def test_resumed_with_the_state_on_disk(make_server, monkeypatch, tmp_path, algorithm):
    """A run on the device, stopped and resumed with one client in memory at a time, ends like one on the CPU."""
    monkeypatch.setattr(FedAvgCNN, "layout", None)
    flags = ("-gr", "2", *SHORT.get(algorithm, ()))
    model = "DNN" if algorithm in RESUMED else "CNN"
    expected = make_server(algorithm, *flags, model=model)
    expected.train()
    disk = ("--state_dir", str(tmp_path / "state"), "--state_cache", "1")
    with pretended_device() as device:
        stopped, resumed = (make_server(algorithm, *flags, *disk, model=model, device=device) for _ in range(2))
        stopped.checkpoints = Checkpoints(tmp_path / "run.h5", INFO, 1, False, print)
        stop_in_round(stopped, 1)
        with pytest.raises(StoppedError):
            stopped.train()
        resumed.checkpoints = Checkpoints(tmp_path / "run.h5", INFO, 1, True, print)
        resumed.train()
        assert_same(resumed, expected)
        assert_on_device(resumed)


def test_the_command_line_and_a_saved_model_that_every_machine_reads(data_root, tmp_path, monkeypatch, generator_file):
    monkeypatch.setattr(FedAvgCNN, "layout", None)
    found = []
    with pretended_device() as device:
        for place in (torch.device("cpu"), device):
            monkeypatch.setattr(experiment.cli, "resolve_device", lambda *args, place=place: place)
            folder = tmp_path / place.type
            flags = f"-algo FedCPD -data Skewed -m DNN -gr 1 -ex stacked --checkpoint_every 1 --results_dir {folder}"
            assert main.main([*flags.split(), "--data_dir", str(data_root)]) == 0
            with h5py.File(folder / "Skewed_FedCPD_test_0.h5") as file:
                curves = {name: file[name][:].tolist() for name in file if name != "rs_seconds"}
            model = torch.load(folder / "Skewed_FedCPD_test_0.pt", weights_only=True)
            assert json.loads((folder / "Skewed_FedCPD_test_0.run.json").read_text())["status"] == "finished"
            found.append((str(curves), model))
    assert found[0][0] == found[1][0]
    assert not any(isinstance(value, OnDevice) for value in found[1][1].values())
    assert same_tensors(found[0][1], found[1][1])


def test_a_saved_model_goes_back_to_the_device(make_server, tmp_path):
    with pretended_device() as device:
        server = make_server("FedAvg", "-gr", "1", device=device, result_path=tmp_path / "run.h5")
        server.train()
        saved = dict(server.global_params)
        server.global_params = {name: torch.zeros_like(value) for name, value in saved.items()}
        server.load_model()
        assert all(isinstance(value, OnDevice) for value in server.global_params.values())
        assert same_tensors(server.global_params, saved)


def test_the_modules_and_helpers_of_pfllib(make_server, pfllib_pair, monkeypatch):
    """A PFLlib-style pair, which trains modules in its own loop, and what our bases offer it."""
    monkeypatch.setattr(FedAvgCNN, "layout", None)

    def trained(device):
        server = pfllib_pair.FedAvg(make_server("FedAvg", "-gr", "1", "-dlg", "-dlgg", "1", device=device).args, 0)
        server.save_global_model = lambda: None
        server.train()
        client = server.clients[0]
        client.clone_model(server.global_model, client.model)
        return server, [*server.rs_test_acc, *server.rs_train_loss, *client.train_metrics()]

    monkeypatch.setattr(dlg, "ITERATIONS", 1)
    expected, numbers = trained("cpu")
    with pretended_device() as device:
        server, ours = trained(device)
        weights = server.global_model.state_dict()
        assert all(isinstance(value, OnDevice) for value in weights.values())
        assert same_tensors({k: v.cpu() for k, v in weights.items()}, expected.global_model.state_dict())
    assert ours == numbers


class Constants(nn.Module):
    """Latents (1, 4) -> images (1, 1, 2, 2), with a tensor that is no buffer and one made on the way."""

    def __init__(self):
        super().__init__()
        self.grey = torch.full((4,), 0.25)

    def forward(self, w):
        return (w.double().float() * self.grey + torch.zeros(4, device=w.device)).view(1, 1, 2, 2)


def test_a_program_of_torch_export_goes_to_the_device_with_its_constants(tmp_path):
    torch.export.save(torch.export.export(Constants(), (torch.zeros(1, 4),)), str(tmp_path / "g.pt2"))
    with pretended_device() as device:
        generator = ImageGenerator(str(tmp_path / "g.pt2"), 4, (1, 2, 2), device, trusted=True)
        images = generator.images(torch.tensor([[4.0, -4.0, 2.0, 0.0]], device=device))
        assert isinstance(images, OnDevice) and images.flatten().tolist() == [1, -1, 0.5, 0]


def test_a_checkpoint_keeps_the_generator_of_a_cuda_device(monkeypatch):
    """There dropout draws from the device's own."""
    kept = {"cuda:1": torch.tensor([5], dtype=torch.uint8)}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: kept[str(device)])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: kept.update({str(device): state}))
    states = run_state._random_states(torch.device("cuda", 1))
    drawn, kept["cuda:1"] = torch.rand(3), None
    run_state._set_random_states(states, torch.device("cuda", 1))
    assert torch.equal(torch.rand(3), drawn) and kept["cuda:1"].tolist() == [5]


# ---- waiting for the device ------------------------------------------------------------------------------------------

DRAWS = {"FedPA", "FedKTL", "FedCP"}  # rules whose random numbers for each step are drawn on the CPU


@pytest.mark.parametrize(
    ("algorithm", "executor"),
    [quick_or_long(name, executor) for name in NAMES for executor in (LoopExecutor, StackedExecutor)],
)
def test_no_step_waits_for_the_device(make_server, algorithm, executor):
    """Three times the steps of a phase: no line reads from the device or feeds it more often, but for drawn numbers."""

    def noted(batch_size):
        with pretended_device() as device:
            flags = ("-gr", "1", "-lbs", batch_size, *SHORT.get(algorithm, ()))
            server = make_server(algorithm, *flags, executor=executor(), dataset="Single", device=device)
            server.train()  # now there are teachers and prototypes
            with stalls() as counts:
                server.executor.train(server.clients, lambda: None)
        return counts

    few, many = noted("12"), noted("4")
    more = {place for place in many if many[place] > few[place]}
    assert not more if algorithm not in DRAWS else all("_to_copy" in place for place in more)


# ---- the pretended device itself -------------------------------------------------------------------------------------


@pytest.fixture
def there():
    with pretended_device() as device:
        yield device


def test_tensors_of_two_devices_do_not_mix(there):
    ours, cpu = torch.ones(3, device=there), torch.ones(3)
    for wrong in (
        lambda: ours + cpu,
        lambda: cpu.add_(ours),
        lambda: torch.zeros(()).add_(ours.sum()),  # the result would have to lie on both
        lambda: ours @ cpu,
        lambda: torch.stack([ours, cpu]),
        lambda: torch.cat([ours, torch.ones(1)]),
        lambda: torch.where(cpu > 0, ours, 0),
        lambda: torch.lerp(ours, ours, torch.tensor(0.5)),
        lambda: F.cross_entropy(torch.ones(3, 2, device=there), torch.zeros(3, dtype=torch.int64)),
        lambda: nn.Linear(3, 2)(ours),
        lambda: nn.Linear(3, 2).to(there)(cpu),
        lambda: vmap(torch.mul)(ours, cpu),  # scalars, but stacked
        lambda: cpu[torch.zeros(1, dtype=torch.int64, device=there)],
        lambda: cpu[ours > 0],
        lambda: ours.index_put_((torch.tensor([0]),), cpu[:1]),
        lambda: torch.rand(3, device=there, generator=torch.Generator()),
        lambda: torch.empty(3, device=there).exponential_(generator=torch.Generator()),
    ):
        with pytest.raises(RuntimeError, match=r"device|indices"):
            wrong()
    for wrong in (ours.numpy, lambda: np.asarray(ours), lambda: np.array([ours.sum()])):
        with pytest.raises(TypeError, match="numpy"):
            wrong()


def test_what_a_device_takes_from_the_cpu(there):
    ours, cpu = torch.arange(3.0, device=there), torch.ones(3)
    for right in (
        ours + torch.tensor(1.0),
        torch.where(ours > 0, ours, torch.tensor(0.0)),
        ours[torch.tensor([0, 2])],
        ours[torch.tensor([True, False, True])],
        torch.zeros_like(ours).copy_(cpu),
        torch.tensor([1, 2], device=there),
        ours.new_tensor([1.0]),
        torch.full_like(cpu, 2, device=there),
        cpu.to(there),
    ):
        assert isinstance(right, OnDevice) and right.device == there == DEVICE
    for left in (ours.cpu(), ours.to("cpu", torch.float64), torch.zeros_like(ours, device="cpu")):
        assert type(left) is torch.Tensor and left.device.type == "cpu"
    assert (ours.sum().item(), ours.tolist(), bool(ours.any())) == (3.0, [0.0, 1.0, 2.0], True)


def test_views_and_changes_in_place_share_memory(there):
    ours = torch.zeros(2, 3, device=there)
    row = ours[1]
    assert row.add_(1) is row and ours.tolist() == [[0, 0, 0], [1, 1, 1]]
    assert ours.data_ptr() == ours[0].data_ptr() != ours.clone().data_ptr()
    column = ours[:, :1]
    column.squeeze_(1)
    assert column.shape == (2,)


def test_random_numbers_of_the_device_are_not_those_of_the_cpu(there):
    torch.manual_seed(3)
    cpu = torch.rand(5)
    torch.manual_seed(3)
    assert not torch.equal(torch.rand(5, device=there).cpu(), cpu)
    assert torch.equal(torch.rand(5), cpu)  # nor does it take from the CPU's


def test_gradients_stacked_and_in_functional_form_are_those_of_the_cpu(there):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    x, y = torch.randn(2, 5, 1, 8, 8), torch.randint(3, (2, 5))

    def gradients(device):
        moved = net.to(device)
        params = {name: value.detach() for name, value in moved.named_parameters()}
        buffers = {name: torch.stack([value, value]) for name, value in moved.named_buffers()}

        def loss(params, buffers, x, y):
            return F.cross_entropy(functional_call(moved, params | buffers, (x,)), y)

        stacked = {name: torch.stack([value, 2 * value]) for name, value in params.items()}
        found = vmap(grad(loss))(stacked, buffers, x.to(device), y.to(device))
        return {name: value.cpu() for name, value in found.items()}

    assert same_tensors(gradients("cpu"), gradients(there))


def test_a_file_written_from_the_device_names_it(there):
    file = io.BytesIO()
    torch.save({"ours": torch.ones(2, device=there)}, file)
    for place, kind in ((None, OnDevice), ("cpu", torch.Tensor), (there, OnDevice)):
        file.seek(0)
        assert type(torch.load(file, weights_only=True, map_location=place)["ours"]) is kind


def test_stalls_are_noted(there):
    ours = torch.arange(3, device=there)
    with stalls() as counts:
        ours.sum().item()
        ours[ours > 1]
        ours[torch.tensor([1])]
        ours.to(torch.float64)
        ours.cpu()
        ours + 1
    assert dict(counts) == {
        f"elsewhere {what}": 1 + (what == "index") for what in ("_local_scalar_dense", "index", "_to_copy")
    }

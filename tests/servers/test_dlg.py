"""-dlg: images rebuilt from uploaded weights, and a rating that can be trusted."""

import math

import pytest
import torch

from flcore.servers.support import dlg
from support import same_tensors, write_dataset


@pytest.fixture(scope="module")
def single_images(data_root):
    """Two clients with one training image each, grey and in colour."""
    for name, channels in (("GreyOne", 1), ("ColourOne", 3)):
        write_dataset(data_root, name, shape=(channels, 16, 16), train=(1, 1), test=(2, 2), classes=10)


def train_on_images(server):
    """One round on data squeezed to what the generators write, pixels in [-1, 1]."""
    for client in server.clients:
        client._tensors = {part: (x.tanh(), y) for part, (x, y) in client._tensors.items()}
    server.train()
    return server.records["rs_dlg_psnr"][0], server.records["rs_dlg_psnr_start"][0]


def test_psnr_by_hand():
    image = torch.full((1, 1, 4, 4), 0.5)
    assert dlg.psnr(image + 0.1, image) == pytest.approx(20)  # 10 log10(1 / 0.01)
    assert dlg.psnr(image.expand(1, 3, 4, 4) + 0.1, image.expand(1, 3, 4, 4)) == pytest.approx(20)  # in colour as well
    two = torch.cat([image, image - 0.4])
    assert dlg.psnr(two.flip(0), two) == pytest.approx(100)  # in whatever order
    assert dlg.psnr(image + 0.1, two) == pytest.approx(20)  # the nearest counts


def test_pixels_of_the_generators_and_of_others():
    assert dlg.pixel_range(torch.tensor([-0.5, 0.9])) == (-1, 1)
    assert dlg.pixel_range(torch.tensor([-3.0, 4.0])) == (-3, 4)


@pytest.mark.parametrize("dataset", ["GreyOne", "ColourOne"])
@pytest.mark.parametrize("model", ["MLR", "DNN"])
def test_one_step_on_one_image_gives_the_image_away(dataset, model, single_images, make_server):
    server = make_server("FedAvg", "-lbs", "1", "-gr", "1", "-dlg", dataset=dataset, model=model)
    rebuilt, random = train_on_images(server)
    assert rebuilt > 30 and random < 10


@pytest.mark.parametrize("algorithm", ["FedRep", "FedCPD"])
def test_a_head_that_stays_at_home_does_not_protect(algorithm, single_images, make_server):
    server = make_server(algorithm, "-lbs", "1", "-gr", "1", "-dlg", dataset="GreyOne", model="DNN")
    rebuilt, random = train_on_images(server)
    assert rebuilt > 18 and random < 10


@pytest.mark.parametrize("algorithm", ["FedProto", "FedGH", "Local"])
def test_without_weights_there_is_nothing_to_attack(algorithm, make_server, caplog):
    server = make_server(algorithm, "-gr", "2", "-dlg", "-dlgg", "1")
    server.train()
    assert caplog.text.count(f"-dlg: {algorithm} uploads no weights") == 1
    assert "rs_dlg_psnr" not in server.records


@pytest.mark.parametrize("algorithm", ["FedCPD", "FedDBE"])
def test_training_does_not_notice(algorithm, make_server, monkeypatch):
    monkeypatch.setattr(dlg, "ITERATIONS", 2)
    plain, watched = (make_server(algorithm, "-gr", "3", *flags) for flags in ((), ("-dlg", "-dlgg", "2")))
    for server in (plain, watched):
        torch.manual_seed(1)
        server.train()
    drawn = torch.rand(1)
    assert same_tensors(plain.last_message, watched.last_message)
    assert plain.rs_test_acc == watched.rs_test_acc and plain.rs_train_loss == watched.rs_train_loss
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), drawn)  # nor do the global generators
    assert watched.records["rs_dlg_round"] == [0, 2]
    assert all(math.isfinite(value) for value in watched.records["rs_dlg_psnr"])


def test_a_client_that_made_no_step_is_left_out(make_server, monkeypatch, caplog):
    monkeypatch.setattr(dlg, "ITERATIONS", 1)
    server = make_server("FedAvg", "-gr", "1", "-ls", "0", "-dlg")
    server.train()
    assert math.isnan(server.records["rs_dlg_psnr"][0])
    assert "over 0 clients" in caplog.text


def test_a_pfllib_pair_is_rated_and_does_not_notice(make_server, pfllib_pair, monkeypatch):
    """Its server calls `call_dlg` by itself, with modules in place of messages."""
    monkeypatch.setattr(dlg, "ITERATIONS", 1)
    monkeypatch.setattr(pfllib_pair.FedAvg, "save_global_model", lambda self: None)
    ends = []
    for flags in ((), ("-dlg",)):
        server = pfllib_pair.FedAvg(make_server("FedAvg", "-gr", "1", *flags).args, 0)
        server.train()
        ends.append({name: value.clone() for name, value in server.global_model.state_dict().items()})
    assert same_tensors(*ends)
    assert server.records["rs_dlg_round"] == [0] and math.isfinite(server.records["rs_dlg_psnr"][0])

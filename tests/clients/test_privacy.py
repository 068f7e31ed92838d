"""Uploaded prototypes: what they show, minimum counts, noise and the privacy it gives."""

import json
import math
import sys

import h5py
import pytest
import torch

from flcore import registry
from flcore.clients.clientavg import clientAVG
from flcore.clients.support import privacy
from flcore.servers.messages import message_bytes
from flcore.trainmodel.prototypes import class_prototypes, clip_lengths
from flcore.utils.errors import UsageError
from support import SHORT, same_tensors

PROTOTYPES = [method.name for method in registry.METHODS if method.prototypes]
NOISY = [method.name for method in registry.METHODS if method.prototypes and not method.noise_refusal]


@pytest.fixture
def no_opacus(monkeypatch):
    """The accountant is slow to import; these tests do not ask what it says."""
    monkeypatch.setattr(privacy, "epsilon", lambda noise, releases, delta: float(releases))


def after_a_round(server):
    """The server after one round, with the uploads as they came, and the clients' own ones."""
    for client in server.clients:
        client.release = lambda: None
    server.train()
    return server


def test_the_prototype_of_a_single_sample_is_its_embedding(make_server):
    server = after_a_round(make_server("FedCPD", "-gr", "1", "-fs", "1"))  # one sample a class
    client, upload = server.clients[0], server.uploaded_models[0]
    weights = {**client.params, **upload}  # what the server has: the extractor
    x, y = client.data
    z = client.forward.in_batches(weights, x)
    assert len(y.unique()) == len(y) and z.abs().max() > 0
    for embedding, label in zip(z, y, strict=True):
        torch.testing.assert_close(upload["prototypes"][label], embedding)


# ---- the one step that makes class means -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [method.name for method in registry.METHODS])
def test_every_upload_of_prototypes_goes_through_the_one_step(name, make_server, monkeypatch):
    """What the step gives is what arrives, for every method that sends prototypes; the others never ask it."""
    made = {}

    def noted(z, y, num_classes, args, *key):
        assert len(z) == len(y)
        made[key[-1]] = means = torch.full((num_classes, z.shape[1]), 0.5), torch.full((num_classes,), 1000)
        return means

    monkeypatch.setattr(privacy, "class_means", noted)
    server = make_server(name, "-gr", "1", *SHORT.get(name, ()))
    server.aggregate_parameters = lambda: None
    after_a_round(server)
    assert set(made) == ({0, 1, 2, 3} if name in PROTOTYPES else set())
    for upload in server.uploaded_models:
        assert ("prototypes" in upload) is (name in PROTOTYPES)
        if name in PROTOTYPES:
            rows = upload["prototypes"][upload["counts"] > 0]
            assert len(rows) and (rows == rows.max()).all()
    known = {"FedCPD", "FedCPD+", "FedProto", "FedTGP", "FedGH", "FedProc", "FedPA", "FedCRL", "FedHKD", "FedKTL"}
    assert {*PROTOTYPES} == known


def extended(server, **methods):
    """The server's clients with a rule of their own, as a new method brings one."""
    rule = type("clientNew", (type(server.clients[0]),), methods)
    for client in server.clients:
        client.__class__ = rule
    return server


def test_a_new_way_to_send_prototypes_is_clipped_and_blurred_as_well(make_server, no_opacus):
    """Embeddings of length 1000 become means of length at most the clip, 0.01, and noise of the known scale."""

    def local_end(forward, params, data, shared, state, hp):
        far = torch.zeros(len(data[1]), 40_000)
        far[:, 0] = 1000.0
        return state, {"embeddings": far}

    flags = ("-gr", "1", "--proto_noise", "0.5", "--proto_clip", "0.01", "--proto_min_count", "2")
    server = extended(make_server("FedProto", *flags), local_end=staticmethod(local_end))
    server.aggregate_parameters = lambda: None
    after_a_round(server)
    for client, upload in zip(server.clients, server.uploaded_models, strict=True):
        sizes = torch.bincount(client.data[1], minlength=4)
        assert torch.equal(upload["counts"] > 0, sizes >= 2)
        for c in (sizes >= 2).nonzero().flatten().tolist():
            row, scale = upload["prototypes"][c], 0.5 * 2 * 0.01 / sizes[c].item()
            assert row[1:].std().item() == pytest.approx(scale, rel=0.03)
            assert abs(row[0].item() - 0.01) < 6 * scale


def test_what_a_rule_does_to_the_means_comes_after_the_noise(make_server, no_opacus):
    seen = []

    def announce(self, prototypes, counts):
        seen.append(prototypes.norm(dim=1).amin().item())
        return 10 * prototypes, counts

    server = extended(make_server("FedProto", "-gr", "1", "--proto_noise", "1000"), announce=announce)
    after_a_round(server)
    assert len(seen) == 4 and min(size for size in seen if size) > 50  # noise of 2 * 5 * 1000 / n, no bare mean


@pytest.mark.parametrize("name", ["prototypes", "counts"])
def test_a_rule_that_makes_means_by_itself_is_refused(name, make_server):
    def local_end(forward, params, data, shared, state, hp):
        return state, {name: torch.ones(4, 2)}

    server = extended(make_server("FedAvg", "-gr", "1"), local_end=staticmethod(local_end))
    with pytest.raises(ValueError, match=f"clientNew.local_end uploads {name}; give `embeddings`"):
        server.train()


@pytest.mark.parametrize("name", ["message", "end_training", "class_means"])
def test_a_rule_cannot_go_round_the_step(name):
    with pytest.raises(TypeError, match=f"clientNew overrides {name}"):
        type("clientNew", (clientAVG,), {name: lambda self: None})


# ---- minimum counts and noise ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROTOTYPES)
def test_a_class_below_the_minimum_is_not_sent(name, make_server):
    full = after_a_round(make_server(name, "-gr", "1"))
    part = after_a_round(make_server(name, "-gr", "1", "--proto_min_count", "5"))
    for client, before, after in zip(full.clients, full.uploaded_models, part.uploaded_models, strict=True):
        rare = torch.bincount(client.data[1], minlength=4) < 5
        assert not after["counts"][rare].any() and not after["prototypes"][rare].any()
        assert torch.equal(after["counts"][~rare], before["counts"][~rare])
        sent = after["counts"] > 0
        assert torch.equal(after["prototypes"][sent], before["prototypes"][sent])
        lost = int((before["counts"][rare] > 0).sum())
        row = before["prototypes"][0]
        assert message_bytes(before) - message_bytes(after) == lost * row.numel() * row.element_size()
    assert part.bytes_up < full.bytes_up


def test_a_class_that_everybody_holds_back_has_no_global_prototype(make_server):
    server = after_a_round(make_server("FedCPD", "-gr", "2", "--proto_min_count", "1000"))
    assert not server.seen.any()
    assert "prototypes" not in server.last_message  # nothing to send
    assert all(math.isfinite(loss) for loss in server.rs_train_loss)


def test_sensitivity_by_hand_and_reached_by_the_worst_replacement():
    sizes, clip = torch.tensor([1, 4]), 3.0
    assert privacy.sensitivity(sizes, clip).tolist() == [6.0, 1.5]  # 2 * 3 / 1, 2 * 3 / 4
    z = clip_lengths(torch.tensor([[30.0, 0.0], [1, 1], [0, 2], [2, 0]]), clip)
    other = torch.cat([-z[:1], z[1:]])
    y = torch.zeros(4, dtype=torch.int64)
    moved = class_prototypes(z, y, 1)[0] - class_prototypes(other, y, 1)[0]
    assert moved.norm() == pytest.approx(1.5)


def test_clipping_shortens_long_rows_only():
    z = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    torch.testing.assert_close(clip_lengths(z, 1.0), torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
    assert clip_lengths(z, 0) is z


@pytest.mark.parametrize("name", NOISY)
def test_what_noise_is_added_to_is_a_mean_of_clipped_embeddings(name, make_server, no_opacus):
    flags = ("-gr", "1", "--proto_clip", "0.01", *SHORT.get(name, ()))
    servers = [after_a_round(make_server(name, *flags, "--proto_noise", noise)) for noise in ("0.5", "1e-12")]
    for noisy, clean in zip(*(server.uploaded_models for server in servers), strict=True):
        held = clean["counts"] > 0
        longest = 1 if name == "FedKTL" else 0.01  # FedKTL scales what the step gives to length 1
        assert 0 < clean["prototypes"].norm(dim=1).max() <= longest * (1 + 1e-5)
        assert (noisy["prototypes"] - clean["prototypes"]).abs().amax(1)[held].gt(1e-6).all()
        assert not noisy["prototypes"][~held].any()


def test_noise_has_the_scale_of_its_class_and_a_key_of_its_own(make_server, no_opacus):
    args = make_server("FedCPD", "--proto_noise", "0.5", "--proto_clip", "2").args
    y = torch.tensor([0] * 4 + [2] * 10)
    z = torch.zeros(14, 40_000)
    rows, counts = privacy.class_means(z, y, 3, args, 0, 3, 1)
    assert rows[0].std().item() == pytest.approx(0.5, rel=0.02)  # 0.5 * 2 * 2 / 4
    assert rows[2].std().item() == pytest.approx(0.2, rel=0.02)  # 0.5 * 2 * 2 / 10
    assert not rows[1].any() and abs(rows[0].mean()) < 5 * 0.5 / 200
    assert counts.tolist() == [4, 0, 10]
    assert torch.equal(rows, privacy.class_means(z, y, 3, args, 0, 3, 1)[0])
    for key in ((1, 3, 1), (0, 4, 1), (0, 3, 2)):  # repeat, round, client
        other = privacy.class_means(z, y, 3, args, *key)[0]
        assert abs(torch.corrcoef(torch.stack([rows[0], other[0]]))[0, 1]) < 0.03


def exact_delta(epsilon, mu):
    """Balle and Wang 2018, Theorem 8: the Gaussian mechanism, mu = sensitivity / standard deviation."""

    def below(t):
        return math.erfc(-t / math.sqrt(2)) / 2

    return below(mu / 2 - epsilon / mu) - math.exp(epsilon) * below(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(("noise", "releases"), [(1.0, 1), (5.0, 1), (1.0, 20), (10.0, 200), (50.0, 3)])
def test_epsilon_is_a_close_upper_bound_of_the_exact_one(noise, releases):
    mu = math.sqrt(releases) / noise  # the composition of Gaussian mechanisms is one with this mu
    found = privacy.epsilon(noise, releases, 1e-5)
    assert exact_delta(found, mu) <= 1e-5  # it holds
    assert exact_delta(0.8 * found, mu) > 1e-5  # and is not far from the smallest that does


def test_epsilon_of_the_unit_gaussian():
    # The smallest epsilon at sigma 1, delta 1e-5 is 4.377; the closed form of Renyi accounting, 1/2 + sqrt(2 ln 1e5)
    # (Mironov 2017, Proposition 3, at the best order), is 5.298; the newer conversion lies between.
    assert exact_delta(4.3775, 1.0) == pytest.approx(1e-5, rel=5e-3)
    assert 4.377 < privacy.epsilon(1.0, 1, 1e-5) < 0.5 + math.sqrt(2 * math.log(1e5))
    assert privacy.epsilon(1.0, 0, 1e-5) == 0


def test_off_is_the_very_same(make_server):
    plain = after_a_round(make_server("FedCPD", "-gr", "2"))
    flags = make_server("FedCPD", "-gr", "2", "--proto_noise", "0", "--proto_clip", "0.1", "--proto_min_count", "1")
    assert same_tensors(plain.last_message, after_a_round(flags).last_message)
    assert flags.privacy == {} and "rs_dp_epsilon" not in flags.records
    z, y = torch.randn(9, 5), torch.arange(9) % 3
    for off, plain in zip(privacy.class_means(z, y, 4, flags.args, 0, 0, 0), class_prototypes(z, y, 4), strict=True):
        assert torch.equal(off, plain)


def test_methods_that_cannot_take_noise_refuse(make_server):
    assert {*PROTOTYPES} - {*NOISY} == {"FedHKD"}
    with pytest.raises(UsageError, match="--proto_noise 1 with FedHKD: "):
        make_server("FedHKD", "--proto_noise", "1")


def test_methods_without_prototypes_say_that_the_flags_do_nothing(make_server, caplog):
    server = make_server("FedRep", "--proto_noise", "1", "--proto_min_count", "3")
    printed = caplog.text
    assert "note: --proto_noise has no effect on FedRep" in printed
    assert "note: --proto_min_count has no effect on FedRep" in printed
    assert server.privacy == {} and "proto_noise" not in server.args.settings


def test_without_opacus_the_command_to_install_it_is_told(make_server, monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with pytest.raises(UsageError, match="pip install 'opacus"):
        make_server("FedCPD", "--proto_noise", "1")


def test_only_participations_count(make_server, monkeypatch):
    asked = []
    monkeypatch.setattr(privacy, "epsilon", lambda noise, releases, delta: asked.append(releases) or float(releases))
    server = after_a_round(make_server("FedProto", "-gr", "4", "-jr", "0.5", "--proto_noise", "1"))
    joined = torch.tensor([list(row) for row in server.records["rs_dp_releases"]])
    assert joined.diff(dim=0, prepend=torch.zeros(1, 4, dtype=torch.int64)).sum(1).tolist() == [2, 2, 2, 2]
    assert asked == [1, 4, *joined.amax(1).tolist()]  # at the start: one round, all rounds; then the busiest client


def test_the_guarantee_is_in_run_json_and_results(data_root, tmp_path):
    import main

    words = f"-algo FedProto -data Tiny -gr 2 --proto_noise 2 --dp_delta 1e-4 --data_dir {data_root} -dev cpu"
    assert main.main([*words.split(), "--results_dir", str(tmp_path), "-ex", "loop"]) == 0
    told = json.loads(next(tmp_path.glob("*.run.json")).read_text())["privacy"]
    assert told["delta"] == 1e-4 and told["noise_multiplier"] == 2 and told["rounds"] == 2
    assert exact_delta(told["epsilon_all_rounds"], math.sqrt(2) / 2) <= 1e-4
    with h5py.File(next(tmp_path.glob("*.h5"))) as file:
        assert file["rs_dp_epsilon"][:].tolist() == pytest.approx([told["epsilon_round"], told["epsilon_all_rounds"]])
        assert file["rs_dp_releases"][-1].tolist() == [2, 2, 2, 2]

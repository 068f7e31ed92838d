"""FedCPD as a whole: its parts, its timing, and what is left when they are switched off."""

import pytest
import torch
from torch.nn import functional as F

from flcore.clients.clientcpd import clientCPD
from flcore.trainmodel.forward import subset
from flcore.trainmodel.prototypes import class_prototypes
from support import same_tensors

OFF = {"fd": ("--cpd_fd", "0"), "align": ("--cpd_align", "0"), "contrast": ("--cpd_contrast", "0")}


def off(*parts):
    return [word for part in parts for word in OFF[part]]


@pytest.mark.parametrize("flags", [(), ("-jr", "0.5"), ("-pls", "2", "-ls", "2", "-ld")])
def test_all_parts_off_is_fedrep_bit_for_bit(make_server, flags):
    cpd, rep = make_server("FedCPD", *off(*OFF), *flags), make_server("FedRep", *flags)
    cpd.train()
    rep.train()
    assert same_tensors(cpd.global_params, rep.global_params)
    for ours, theirs in zip(cpd.clients, rep.clients, strict=True):
        assert same_tensors(ours.params, theirs.params)
    assert cpd.rs_test_acc == rep.rs_test_acc and cpd.rs_train_loss == rep.rs_train_loss
    assert cpd.records["rs_bytes_up"] == rep.records["rs_bytes_up"]  # no prototypes travel
    assert all(client.state == {} for client in cpd.clients)  # no teacher is kept


@pytest.mark.parametrize("part", OFF)
def test_each_part_alone_changes_training_from_the_second_round_on(make_server, part):
    """In the first round there is no teacher and no prototype: every variant equals FedRep."""
    others = off(*(name for name in OFF if name != part))
    alone, rep = make_server("FedCPD", *others, "-gr", "1"), make_server("FedRep", "-gr", "1")
    alone.train()
    rep.train()
    for name, value in rep.global_params.items():
        assert torch.allclose(alone.global_params[name], value, atol=1e-7), name
    alone, rep = make_server("FedCPD", *others, "-gr", "2"), make_server("FedRep", "-gr", "2")
    alone.train()
    rep.train()
    assert not torch.allclose(
        alone.global_params["base.conv1.0.weight"], rep.global_params["base.conv1.0.weight"], atol=1e-7
    )


def test_a_part_that_is_off_builds_nothing(make_server):
    assert "distiller.attention.0.mlp.0.weight" in make_server("FedCPD").clients[0].params
    assert not any("distiller" in name for name in make_server("FedCPD", *off("fd")).clients[0].params)


def test_loss_is_the_weighted_sum_of_its_parts(make_server):
    """Against formulas written down anew from the tensors of one client in its second round."""
    server = make_server(
        "FedCPD", "-gr", "1", "--cpd_fd", "3", "--cpd_align", "0.5", "--cpd_contrast", "2", "--cpd_tau", "0.2"
    )
    server.train()
    client = server.clients[0]  # has trained once, and received the second download
    x, y = (part[:6] for part in client.data)
    loss = client.local_loss(client.forward, client.params, x, y, client.shared, client.state, client.hp)

    net = client.forward.net
    net.load_state_dict(client.params)
    first = net.base.conv1(x)
    maps = [first, net.base.conv2(first)]
    z = net.base.fc1(maps[1].flatten(1))
    fused = [net.distiller.feature_fusion(maps), net.distiller.attention_fusion(net.distiller.attention(maps))]
    net.load_state_dict({**client.params, **subset(client.state, "teacher.")})
    first = net.base.conv1(x)
    teacher = [first, net.base.conv2(first)]
    targets = [teacher, net.distiller.attention(teacher)]
    distillation = sum(
        ((s - t) ** 2).mean() for ss, ts in zip(fused, targets, strict=True) for s, t in zip(ss, ts, strict=True)
    )

    prototypes, seen = client.shared["prototypes"], client.shared["seen"]
    assert seen.all()
    alignment = ((z - prototypes[y]) ** 2).sum() / (6 * z.shape[1])
    cosine = torch.stack([F.cosine_similarity(z, p[None]) for p in prototypes], 1)
    contrast = -(torch.exp(cosine / 0.2)[range(6), y] / torch.exp(cosine / 0.2).sum(1)).log().mean()
    expected = F.cross_entropy(net.head(z), y) + 3 * distillation + 0.5 * alignment + 2 * contrast
    assert distillation > 0 and alignment > 0 and contrast > 0
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_teacher_is_the_clients_own_final_extractor(make_server):
    server = make_server("FedCPD", "-gr", "2")
    for client in server.clients:
        assert client.state["taught"] == 0
    seen = []
    original = server.receive_models

    def look():
        original()
        for client in server.clients:
            assert client.state["taught"] == 1
            kept = {
                name: value
                for name, value in client.params.items()
                if name.startswith(("base.", "distiller.attention."))
            }
            assert same_tensors(subset(client.state, "teacher."), kept)
            seen.append(client.id)

    server.receive_models = look
    server.train()
    assert seen == [0, 1, 2, 3] * 2
    # after the last download the student is the global extractor and the teacher still the client's own
    for client in server.clients:
        assert not torch.equal(client.params["base.fc1.0.weight"], client.state["teacher.base.fc1.0.weight"])


def test_a_client_that_skips_rounds_keeps_its_old_teacher_and_attention(make_server):
    server = make_server("FedCPD", "-gr", "2")
    everybody, teachers = server.select_clients(), []
    server.select_clients = lambda: everybody if server.current_round == 0 else everybody[1:]
    server.end_round = lambda: teachers.append([client.state for client in server.clients])
    server.train()
    first, second = teachers
    assert same_tensors(first[0], second[0])
    assert not torch.equal(first[1]["teacher.base.fc1.0.weight"], second[1]["teacher.base.fc1.0.weight"])


def test_no_distillation_gradient_before_there_is_a_teacher(make_server):
    server = make_server("FedCPD")
    client = server.clients[0]
    client.receive(server.shared_weights(), 0)
    x, y = client.data
    loss = client.local_loss(client.forward, client.params, x, y, client.shared, client.state, client.hp)
    assert torch.equal(loss, F.cross_entropy(client.forward(client.params, x)[0], y))


def test_auxiliary_modules_are_private_persist_and_move_with_the_extractor(make_server):
    server = make_server("FedCPD", "-gr", "3")
    start = dict(server.clients[0].params)
    server.train()
    name = "distiller.feature_fusion.cv2.0.weight"
    first, second = (client.params[name] for client in server.clients[:2])
    assert not torch.equal(first, start[name]) and not torch.equal(first, second)
    assert not any(key.startswith("distiller") for key in server.uploaded_models[0])


def test_prototypes_are_class_means_of_the_final_extractor_and_averaged_over_holders(make_server):
    server = make_server("FedCPD", "-gr", "1", dataset="Skewed")
    taken = []
    original = server.aggregate_parameters

    def look():
        for client in server.clients:
            x, y = client.data
            z = client.forward.features(client.params, x)[0]
            taken.append({int(c): z[y == c].mean(0) for c in y.unique()})
        original()

    server.aggregate_parameters = look
    server.train()
    assert server.seen.tolist() == [True, True, True, False]
    for c in range(3):
        holders = [prototypes[c] for prototypes in taken if c in prototypes]
        assert torch.allclose(server.prototypes[c], sum(holders) / len(holders), atol=1e-5)
    assert torch.equal(server.prototypes[3], torch.zeros(512))


def test_count_weighting_gives_the_exact_class_mean(make_server):
    server = make_server("FedCPD", "-gr", "1", "--cpd_proto_weighting", "count", dataset="Skewed")
    original = server.aggregate_parameters
    means = []

    def look():
        z, y = (
            torch.cat(parts)
            for parts in zip(
                *((c.forward.in_batches(c.params, c.data[0]), c.data[1]) for c in server.clients), strict=True
            )
        )
        means.append(class_prototypes(z, y, 4)[0])
        original()

    server.aggregate_parameters = look
    server.train()
    assert torch.allclose(server.prototypes, means[0], atol=1e-5)


def test_without_count_weighting_counts_stay_at_home(make_server):
    server = make_server("FedCPD", "-gr", "1", dataset="Skewed")
    server.train()
    assert {int(n) for upload in server.uploaded_models for n in upload["counts"]} == {0, 1}


def test_prototypes_of_absent_clients_stay_known(make_server):
    server = make_server("FedCPD", "-gr", "3", dataset="Skewed")
    known = []
    server.select_clients = lambda: [server.clients[(1, 0, 2, 3)[server.current_round]]]
    original = server.aggregate_parameters

    def look():
        original()
        known.append(server.seen.clone())

    server.aggregate_parameters = look
    server.train()
    expected = [[False, True, False, False], [True, True, False, False], [True, True, True, False]]
    assert [seen.tolist() for seen in known] == expected
    assert torch.isfinite(server.prototypes).all()


def test_bytes_up_count_the_classes_held(make_server):
    server = make_server("FedCPD", "-gr", "2", dataset="Skewed")
    server.train()
    base = sum(4 * v.numel() for name, v in server.global_params.items() if name.startswith("base."))
    held = sum(int(client.data[1].unique().numel()) for client in server.clients)
    assert server.records["rs_bytes_up"] == [4 * base + held * 512 * 4 + 4 * 4 * 8] * 2
    assert server.records["rs_bytes_down"] == [4 * base, 4 * (base + 4 * 512 * 4 + 4)]  # (C,K) floats and C bytes


def test_any_network_with_feature_maps_will_do(make_server):
    server = make_server("FedCPD", "-gr", "2", "-lbs", "4", "--cpd_width", "8", dataset="Colour", model="ResNet18")
    assert server.clients[0].forward.channels == [64, 128, 256]
    server.train()
    assert torch.isfinite(server.global_params["base.layer4.1.conv2.weight"]).all()


def test_without_feature_maps_distillation_is_off_and_said_so(make_server, caplog):
    server = make_server("FedCPD", model="DNN")
    assert "no feature maps" in caplog.text
    server.train()
    assert all(client.state == {} for client in server.clients)
    assert server.seen.all()  # prototypes work on any embedding


def test_the_rule_runs_under_vmap_as_in_the_loop(make_server):
    """What the stacked executor will do: all clients' losses and gradients in one call."""
    server = make_server("FedCPD", "-gr", "1")
    server.train()
    clients = server.clients
    x = torch.stack([client.data[0][:5] for client in clients])
    y = torch.stack([client.data[1][:5] for client in clients])
    params = {name: torch.stack([client.params[name] for client in clients]) for name in clients[0].params}
    state = {name: torch.stack([client.state[name] for client in clients]) for name in clients[0].state}
    one, hp, shared = clients[0].forward, clients[0].hp, clients[0].shared
    one.set_training(("base.", "distiller."))

    def loss(params, state, x, y):
        return clientCPD.local_loss(one, params, x, y, shared, state, hp)

    grads, losses = torch.func.vmap(torch.func.grad_and_value(loss))(params, state, x, y)
    for i, client in enumerate(clients):
        expected, value = torch.func.grad_and_value(loss)(client.params, client.state, x[i], y[i])
        assert losses[i].item() == pytest.approx(value.item(), rel=1e-5)
        for name, gradient in expected.items():
            assert torch.allclose(grads[name][i], gradient, atol=1e-5, rtol=1e-3), name

"""Robust aggregation: numbers by hand, and what a minority of wrong uploads can and cannot do."""

import pytest
import torch

from flcore.servers.messages import weighted_mean
from flcore.servers.support.robust import krum, robust_mean, robust_prototypes, squared_distances, trimmed_mean
from flcore.trainmodel.prototypes import aggregate_prototypes
from support import same_tensors

FIVE = torch.tensor([[1.0, 9.0], [2.0, 8.0], [3.0, 7.0], [4.0, 6.0], [100.0, -100.0]])


def test_median_and_trimmed_mean_by_hand():
    assert robust_mean({"w": FIVE}, "median", 0.3)["w"].tolist() == [3, 7]
    assert robust_mean({"w": FIVE[:4]}, "median", 0.3)["w"].tolist() == [2.5, 7.5]  # of two: their mean
    assert robust_mean({"w": FIVE}, "trimmed", 0.2)["w"].tolist() == [3, 7]  # 2, 3, 4 and 8, 7, 6
    assert robust_mean({"w": FIVE}, "trimmed", 0.0)["w"].tolist() == [22, -14]
    assert robust_mean({"w": FIVE[:1]}, "trimmed", 0.4)["w"].tolist() == [1, 9]
    assert trimmed_mean(torch.tensor([[1.0], [2.0], [9.0], [10.0]]), 1).tolist() == [5.5]


def test_median_is_that_of_numpy():
    import numpy as np

    for number in (1, 2, 5, 8):
        stack = torch.randn(number, 3, 4, generator=torch.Generator().manual_seed(number))
        assert np.allclose(robust_mean({"w": stack}, "median", 0)["w"], np.median(stack, axis=0))


def test_krum_by_hand():
    """Points 0, 1, 2, 4, 20 on a line, f = 1: the scores are sums over the 5 - 1 - 2 = 2 nearest."""
    points = torch.tensor([[0.0], [1.0], [2.0], [4.0], [20.0]])
    squares = squared_distances([points], 5)
    assert squares[3].tolist() == [16, 9, 4, 0, 256]
    # scores: 1 + 4, 1 + 1, 1 + 4, 4 + 9, 16^2 + 18^2
    assert krum(squares, 1).tolist() == [0, 1, 2, 3]
    assert robust_mean({"w": points}, "krum", 0.2)["w"].tolist() == [1.75]
    assert robust_mean({"w": points}, "krum", 0.49)["w"].tolist() == [1.75]  # f is at most (5 - 3) / 2


def test_krum_measures_all_tensors_of_an_upload_together():
    a, b = torch.tensor([[0.0], [0.0], [0.0], [0.0], [3.0]]), torch.tensor([[0.0], [1.0], [2.0], [9.0], [3.0]])
    assert squared_distances([a, b], 5)[0].tolist() == [0, 1, 4, 81, 18]
    assert robust_mean({"a": a, "b": b}, "krum", 0.2)["b"].tolist() == [1.5]  # without the fourth


@pytest.mark.parametrize("number", [1, 2, 3])
def test_krum_of_few_uploads_is_their_mean(number):
    points = torch.arange(float(number))[:, None]
    assert robust_mean({"w": points}, "krum", 0.4)["w"] == points.mean()


@pytest.mark.parametrize("how", ["median", "trimmed", "krum"])
def test_equal_uploads_give_themselves_and_order_does_not_matter(how):
    same = torch.randn(3, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(robust_mean({"w": same.expand(7, -1)}, how, 0.3)["w"], same)
    stack = torch.randn(9, 4, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(
        robust_mean({"w": stack}, how, 0.3)["w"], robust_mean({"w": stack.flip(0)}, how, 0.3)["w"], atol=1e-6
    )


@pytest.mark.parametrize("how", ["median", "trimmed", "krum"])
@pytest.mark.parametrize("wrong", [1e6, -1e6])
def test_three_of_ten_that_lie_alike_do_not_carry_the_result_away(how, wrong):
    stack = torch.randn(10, 50, generator=torch.Generator().manual_seed(2))
    honest = stack[3:].clone()
    stack[:3] = wrong
    result = robust_mean({"w": stack}, how, 0.3)["w"]
    assert (result >= honest.amin(0)).all() and (result <= honest.amax(0)).all()
    assert stack.mean(0).abs().min() > 1e5  # as the mean is


@pytest.mark.parametrize("how", ["median", "trimmed", "krum"])
def test_counters_stay_whole_and_are_no_distance(how):
    stacks = {"w": torch.tensor([[0.0], [1.0], [2.0], [4.0], [20.0]]), "n": torch.tensor([10**9, 5, 5, 6, 5])}
    result = robust_mean(stacks, how, 0.2)
    assert result["n"].dtype == torch.int64 and result["n"] == 5
    assert result["w"] == {"median": 2, "trimmed": 7 / 3, "krum": 1.75}[how]


def test_prototypes_class_by_class_over_the_holders():
    prototypes = torch.zeros(5, 3, 2)
    counts = torch.tensor([[4, 0, 0], [1, 0, 0], [9, 2, 0], [1, 3, 0], [1, 0, 0]])
    prototypes[:, 0] = FIVE
    prototypes[2, 1], prototypes[3, 1] = torch.tensor([1.0, 1.0]), torch.tensor([3.0, 5.0])
    previous, seen = torch.full((3, 2), 7.0), torch.tensor([False, False, True])
    rows, held = robust_prototypes(prototypes, counts, "median", 0.3)
    merged, known = aggregate_prototypes(rows, held, previous, seen, "count")
    assert merged.tolist() == [[3, 7], [2, 3], [7, 7]]  # nobody holds the last class: it keeps what it had
    assert known.tolist() == [True, True, True]


def test_the_flag_reaches_weights_and_prototypes(make_server):
    server = make_server("FedCPD", "-gr", "1", "--aggregate", "median")
    server.train()
    uploads = server.uploaded_models
    name = "base.fc1.0.weight"
    four = torch.stack([upload[name] for upload in uploads]).sort(0).values
    assert torch.allclose(server.global_params[name], (four[1] + four[2]) / 2)
    rows = torch.stack([upload["prototypes"][0] for upload in uploads if upload["counts"][0]])
    middle = rows.sort(0).values[(len(rows) - 1) // 2 : len(rows) // 2 + 1].mean(0)
    assert torch.allclose(server.prototypes[0], middle)


def test_the_mean_is_bitwise_the_weighted_mean(make_server):
    server = make_server("FedCPD", "-gr", "1")
    server.train()
    expected = weighted_mean(list(server.shared_weights()), server.uploaded_models, server.uploaded_weights)
    assert same_tensors(server.shared_weights(), expected)
    prototypes, counts = (torch.stack([u[name] for u in server.uploaded_models]) for name in ("prototypes", "counts"))
    assert torch.equal(server.prototypes, aggregate_prototypes(prototypes, counts, None, None)[0])


def test_a_client_without_a_step_is_no_vote(make_server):
    server = make_server("FedAvg", "--aggregate", "median")
    messages = [{"w": torch.tensor(value)} for value in (0.0, 0.0, 0.0, 5.0, 7.0, 9.0)]
    assert server.combine(["w"], messages, [0, 0, 0, 0.2, 0.3, 0.5])["w"] == 7


@pytest.mark.parametrize("algorithm", ["Local", "FedGH", "FedTGP", "FedKTL"])
def test_methods_without_a_mean_say_that_the_flag_has_no_effect(make_server, caplog, algorithm):
    make_server(algorithm, "--aggregate", "krum")
    assert f"note: --aggregate has no effect on {algorithm}" in caplog.text
    caplog.clear()
    make_server("FedProto", "--aggregate", "krum")
    assert "no effect" not in caplog.text


def test_batchnorm_and_krum(make_server):
    server = make_server("FedAvg", "-gr", "1", "-lbs", "4", "--aggregate", "krum", dataset="Colour", model="ResNet18")
    server.train()
    assert server.global_params["base.bn1.num_batches_tracked"].dtype == torch.int64
    assert all(value.isfinite().all() for value in server.global_params.values())

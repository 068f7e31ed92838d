"""Partition and split: PFLlib's numbers where it is right, and each of its defects mended."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flcore.data.partition import (
    deal,
    draw_dirichlet,
    draw_labels,
    draw_pathological,
    gather,
    least_samples,
    move_samples,
    partition,
    split_data,
)
from flcore.utils.errors import UsageError


def balanced(num_classes, each):
    return np.tile(np.arange(num_classes), each)


def rng(seed=0):
    return np.random.default_rng(seed)


# --- every partition --------------------------------------------------------------------------------------------------


@st.composite
def problems(draw):
    num_classes, num_clients = draw(st.integers(1, 7)), draw(st.integers(1, 12))
    enough = num_clients * (num_classes + 12)
    y = np.array(draw(st.lists(st.integers(0, num_classes - 1), min_size=enough, max_size=enough + 100)))
    kind = draw(st.sampled_from(["iid", "pat", "dir", "exdir"]))
    q = draw(st.integers(-(-num_classes // num_clients), num_classes))
    return y, num_clients, num_classes, kind, q


@settings(max_examples=150, deadline=None)
@given(
    problems(),
    st.booleans(),
    st.sampled_from([1e-3, 0.1, 1.0, 100.0]),
    st.integers(0, 99),
    st.none() | st.integers(2, 9),
)
def test_every_partition_is_disjoint_exhaustive_large_enough_and_repeatable(problem, balance, alpha, seed, min_samples):
    y, num_clients, num_classes, kind, q = problem

    def make():
        return partition(
            y,
            num_clients,
            num_classes,
            kind,
            balance=balance,
            class_per_client=q,
            alpha=alpha,
            seed=seed,
            min_samples=min_samples,
            repair=True,
        )

    clients, minimum, moved = make()
    assert len(clients) == num_clients
    assert sorted(np.concatenate(clients)) == list(range(len(y)))
    assert min(map(len, clients)) >= minimum >= 2
    assert min_samples is None or minimum == min_samples
    if kind in ("pat", "exdir") and not moved:
        assert max(len(np.unique(y[own])) for own in clients) <= q
    again, _, _ = make()
    for one, other in zip(clients, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_another_seed_gives_another_partition():
    y = balanced(10, 100)
    first, second = (partition(y, 5, 10, "dir", seed=seed)[0] for seed in (1, 2))
    assert any(len(one) != len(other) for one, other in zip(first, second, strict=True))


# --- pat and iid ------------------------------------------------------------------------------------------------------


def test_pat_by_hand():
    # K q / C = 20 * 2 / 10 = 4 clients a class: clients 0-3 hold {0, 1}, 4-7 hold {2, 3}, ...; 40 images a class
    y = balanced(10, 40)
    clients, _, _ = partition(y, 20, 10, "pat", balance=True, class_per_client=2)
    images, labels, statistic = gather(y * 1000 + np.arange(400), y, clients)
    for client, own in enumerate(statistic):
        first = client // 4 * 2
        assert own == [(first, 10), (first + 1, 10)]
    # in the order of the data set: client 1 gets the 11th to 20th image of classes 0 and 1
    np.testing.assert_array_equal(images[1] % 1000, [*range(100, 200, 10), *range(101, 200, 10)])
    np.testing.assert_array_equal(labels[1], [0] * 10 + [1] * 10)


def test_pat_leaves_what_does_not_divide_to_the_last():
    counts = draw_pathological(np.array([11, 7]), 3, 2, True, 2, rng())
    np.testing.assert_array_equal(counts, [[3, 2], [3, 2], [5, 3]])


def test_unbalanced_pat_draws_between_a_tenth_and_the_whole_share_and_leaves_the_rest_to_the_last():
    sizes = np.array([1000, 2000])
    for seed in range(30):
        counts = draw_pathological(sizes, 4, 2, False, 40, rng(seed))
        np.testing.assert_array_equal(counts.sum(0), sizes)
        # shares 250 and 500; the least number 40 / C = 20 is below a tenth of them
        assert (counts[:3, 0] >= 25).all() and (counts[:3, 0] < 250).all() and counts[3, 0] > 250
        assert (counts[:3, 1] >= 50).all() and (counts[:3, 1] < 500).all() and counts[3, 1] > 500
        counts = draw_pathological(sizes, 4, 2, False, 120, rng(seed))
        assert (counts[:3] >= 60).all()  # now 120 / C counts for both


def test_pat_drops_no_class():
    # PFLlib: ceil(6 * 2 / 10) = 2 clients a class, so that classes 6-9 find nobody
    y = balanced(10, 30)
    clients, _, _ = partition(y, 6, 10, "pat", balance=True, class_per_client=2)
    assert {int(c) for own in clients for c in y[own]} == set(range(10))
    # 1, 1, 1, 1, 2, 1, 1, 1, 1, 2 clients a class; class 9 finds only the last client open
    assert [len(np.unique(y[own])) for own in clients] == [2, 2, 2, 2, 2, 1]


def test_too_few_slots_are_an_error():
    with pytest.raises(UsageError, match="take at least 3 --classes_per_client, or 5 clients"):
        partition(balanced(10, 30), 4, 10, "pat", balance=True, class_per_client=2)
    with pytest.raises(UsageError, match="cannot hold 10 classes"):
        partition(balanced(10, 30), 4, 10, "exdir", class_per_client=2)
    with pytest.raises(UsageError, match="1 to 10 classes per client"):
        partition(balanced(10, 30), 4, 10, "pat", class_per_client=11)


@pytest.mark.parametrize(
    ("images", "clients", "minimum", "ways"),
    [
        (30, 20, 10, "at most 3 clients (--num_clients) or more images (--fraction, --source)"),
        (30, 10, 5, "at most 6 clients (--num_clients) or --min_samples 3 or more images (--fraction, --source)"),
        (4, 1, 5, "--min_samples 4 or more images (--fraction, --source)"),
        (1, 3, 5, "more images (--fraction, --source)"),
    ],
)
def test_too_few_images_and_what_is_possible(images, clients, minimum, ways):
    with pytest.raises(UsageError) as error:
        partition(np.arange(images) % 2, clients, 2, "pat", class_per_client=2, min_samples=minimum)
    assert str(error.value).endswith(f"need {clients * minimum} images, there are {images}: take {ways}")


def test_iid_is_pat_with_all_classes():
    y = balanced(5, 40)
    _, _, statistic = gather(y, y, partition(y, 4, 5, "iid", balance=True)[0])
    assert statistic == [[(c, 10) for c in range(5)]] * 4


# --- dir and exdir ----------------------------------------------------------------------------------------------------


class Fixed:
    """A generator with prepared Dirichlet draws."""

    def __init__(self, *draws):
        self.draws = list(draws)

    def dirichlet(self, alpha):
        return np.array(self.draws.pop(0))

    def choice(self, items):
        return items[-1]


def test_dirichlet_by_hand():
    everyone = np.ones((3, 2), bool)
    draws = Fixed([0.5, 0.25, 0.25], [0.5, 0.25, 0.25])
    # N / K = 20. Class 0: 20, 10, 10. Client 0 is full, so that class 1 is cut by 0, 1/2, 1/2: 0, 10, 10.
    np.testing.assert_array_equal(
        draw_dirichlet(np.array([40, 20]), everyone, 0.1, draws), [[20, 0], [10, 10], [10, 10]]
    )


def test_dirichlet_without_weight_on_an_open_client_is_no_0_by_0():
    everyone = np.ones((3, 2), bool)
    draws = Fixed([1.0, 0.0, 0.0], [1.0, 0.0, 0.0])
    # Client 0 holds 40 >= 20 after class 0, yet has all the weight of class 1: an open client gets that class.
    np.testing.assert_array_equal(draw_dirichlet(np.array([40, 20]), everyone, 1e-9, draws), [[40, 0], [0, 0], [0, 20]])
    draws = Fixed([np.nan] * 3, [np.nan] * 3)
    counts = draw_dirichlet(np.array([40, 20]), everyone, 1e-9, draws)
    assert sorted(counts.sum(1)) == [0, 20, 40]


@pytest.mark.parametrize("alpha", [1e-300, 1e-9, 1e-3])
def test_tiny_alpha_gives_whole_classes(alpha):
    counts = draw_dirichlet(np.full(10, 50), np.ones((10, 10), bool), alpha, rng())
    assert counts.sum() == 500 and (counts.sum(0) == 50).all()


def test_dirichlet_keeps_to_assigned_clients_even_when_they_are_full():
    assigned = np.array([[True, True], [False, False], [True, False]])
    draws = Fixed([0.9, 0.05, 0.05], [0.1, 0.9, 0.0])
    counts = draw_dirichlet(np.array([40, 20]), assigned, 0.1, draws)
    assert counts[0, 1] == 20 and counts[1].sum() == 0


@pytest.mark.parametrize(("num_clients", "num_classes", "q"), [(20, 100, 10), (5, 10, 2), (20, 10, 2), (3, 4, 4)])
def test_exdir_labels(num_clients, num_classes, q):
    # 20 clients with 10 of 100 labels: the condition is met by one in some 300,000 draws, PFLlib goes on drawing
    assigned = draw_labels(num_clients, num_classes, q, rng())
    assert (assigned.sum(1) == q).all()
    assert (assigned.sum(0) >= max(num_clients * q // num_classes // 2, 1)).all()


def test_minimum_is_pfllibs():
    assert least_samples(70_000, 20) == 40  # 10 / (1 - 0.75)
    assert least_samples(1000, 20) == 25  # 1000 / 20 / 2
    y = balanced(10, 200)
    assert partition(y, 10, 10, "dir")[1] == 40
    assert partition(y, 10, 10, "exdir", class_per_client=5, alpha=100.0)[1] == 10
    assert partition(y, 10, 10, "pat", balance=True, class_per_client=2)[1] == 2


@pytest.mark.parametrize("balance", [False, True])
def test_small_classes_are_shared_by_all(balance):
    """200 classes of 3 images: once one of three clients got nearly all."""
    counts = draw_pathological(np.full(200, 3), 3, 200, balance, 40, rng())
    assert (counts == 1).all()
    counts = draw_pathological(np.full(200, 7), 5, 200, balance, 40, rng())
    assert set(counts.ravel()) == {1, 2} and (counts.sum(0) == 7).all() and np.ptp(counts.sum(1)) < 60


def test_impossible_dirichlet_ends_with_an_error_that_helps():
    y = rng().integers(0, 10, 2000)
    start = time.monotonic()
    with pytest.raises(UsageError, match=r"each of 50 clients 20 images .*--num_clients.*--alpha.*--repair"):
        partition(y, 50, 10, "dir", alpha=0.01)
    clients, minimum, moved = partition(y, 50, 10, "dir", alpha=0.01, repair=True)
    assert time.monotonic() - start < 10
    assert minimum == 20 and moved > 0 and min(map(len, clients)) >= 20
    assert sorted(np.concatenate(clients)) == list(range(2000))


def test_more_clients_than_images_allow():
    with pytest.raises(UsageError, match="at most 5 clients"):
        partition(balanced(2, 5), 6, 2, "pat", class_per_client=2)
    with pytest.raises(UsageError, match="at least 600 images"):
        partition(balanced(10, 100), 2, 10, "dir", min_samples=600)


def test_repair_by_hand():
    counts = np.array([[10, 0], [1, 2], [0, 0]])
    assert move_samples(counts, 4) == 5
    # Client 1 lacks one and holds class 0, which client 0 can spare; client 2 gets 4 of the largest client's.
    np.testing.assert_array_equal(counts, [[5, 0], [2, 2], [4, 0]])


def test_deal_gives_blocks_in_order_or_shuffled():
    labels = np.array([0, 1, 0, 1, 0, 0])
    counts = np.array([[1, 2], [3, 0]])
    first, second = deal(labels, counts, "pat", rng())
    assert first.tolist() == [0, 1, 3] and second.tolist() == [2, 4, 5]
    shuffled = {tuple(deal(labels, counts, "dir", rng(seed))[1]) for seed in range(20)}
    assert len(shuffled) > 3


def test_unknown_partition_is_named():
    with pytest.raises(UsageError, match="pat, dir or exdir, not 'Dir'"):
        partition(np.zeros(9, int), 2, 1, "Dir")


# --- split ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "train"), [(0, 0), (1, 1), (2, 1), (3, 2), (4, 3), (10, 7), (100, 75)])
def test_split_sizes(count, train):
    train_data, test_data = split_data([np.arange(count)], [np.arange(count)])
    assert len(train_data[0]["y"]) == train and len(test_data[0]["y"]) == count - train
    together = np.concatenate([train_data[0]["y"], test_data[0]["y"]])
    assert sorted(together) == list(range(count))
    np.testing.assert_array_equal(train_data[0]["x"], train_data[0]["y"])


@pytest.mark.parametrize("ratio", [0.001, 0.5, 0.999])
def test_every_client_trains_and_is_tested(ratio):
    train, test = split_data([np.arange(n) for n in (2, 7)], [np.arange(n) for n in (2, 7)], train_ratio=ratio)
    assert all(len(part["y"]) for part in (*train, *test))


def test_split_depends_on_the_seed_and_the_client_alone():
    data = [np.arange(50), np.arange(50)]
    one, again, other = (split_data(data, data, seed=seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one[0]["y"], again[0]["y"])
    assert one[0]["y"].tolist() != other[0]["y"].tolist()
    assert one[0]["y"].tolist() != one[1]["y"].tolist()
    np.testing.assert_array_equal(split_data(data[:1], data[:1], seed=1)[0][0]["y"], one[0]["y"])

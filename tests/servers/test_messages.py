"""Messages: their bytes and averages, and what is wrong with a reply."""

import pytest
import torch

from flcore.servers.messages import (
    add_weighted,
    defect,
    expected_layout,
    is_finite,
    layout,
    message_bytes,
    weighted_mean,
)

NAN, INF = float("nan"), float("inf")
WEIGHTS = {"base.w": torch.zeros(2, 3), "base.n": torch.tensor(0)}  # as a server has them
EXTRAS = ("prototypes", "counts")


def reply(**changes):
    """What a client sends back, with other values for some names; None: without it."""
    sound = {
        "base.w": torch.ones(2, 3),
        "base.n": torch.tensor(4),
        "prototypes": torch.ones(4, 3),
        "counts": torch.tensor([1, 0, 1, 1]),
    }
    names = {name.replace("__", "."): value for name, value in changes.items()}
    return {name: value for name, value in {**sound, **names}.items() if value is not None}


EXPECTED = expected_layout(WEIGHTS, [reply()], EXTRAS)


# ---- bytes and averages ----------------------------------------------------------------------------------------------


def test_weighted_mean_by_hand():
    messages = [{"w": torch.tensor([1.0]), "n": torch.tensor(3)}, {"w": torch.tensor([5.0]), "n": torch.tensor(2)}]
    mean = weighted_mean(["w", "n"], messages, [0.25, 0.75])
    assert mean["w"].item() == pytest.approx(4.0)  # 1/4 * 1 + 3/4 * 5
    assert mean["n"].item() == 3  # BatchNorm's counter: the larger one
    assert messages[0]["w"].item() == 1.0


def test_sums_by_hand():
    total = {}
    for count, n in ((2, 5), (3, 4)):
        add_weighted(total, ["w", "n"], {"w": torch.tensor([1.0 * n]), "n": torch.tensor(n), "x": torch.ones(1)}, count)
    assert total.keys() == {"w", "n"} and total["w"].item() == 2 * 5 + 3 * 4
    assert total["n"].item() == 5  # whole numbers take the maximum


def test_message_bytes_by_hand():
    assert message_bytes({"w": torch.zeros(5), "b": torch.zeros(2, dtype=torch.float64)}) == 5 * 4 + 2 * 8
    message = {"prototypes": torch.zeros(4, 8), "counts": torch.tensor([3, 0, 0, 1])}  # two classes go out
    assert message_bytes(message) == 2 * 8 * 4 + 4 * 8


# ---- replies ---------------------------------------------------------------------------------------------------------


def test_a_sound_reply_has_no_defect():
    assert defect(reply(), EXPECTED) == ""
    assert defect(reply(base__w=torch.full((2, 3), 1e38)), EXPECTED) == ""  # the sum of these overflows


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (reply(base__w=None), "lacks base.w"),
        (reply(counts=None), "lacks counts"),
        (reply(base__w=torch.ones(3, 2)), "holds base.w of shape (3, 2) instead of (2, 3)"),
        (reply(prototypes=torch.ones(4, 5)), "holds prototypes of shape (4, 5) instead of (4, 3)"),
        (reply(base__n=torch.tensor([4])), "holds base.n of shape (1,) instead of ()"),
        (reply(base__w=torch.ones(2, 3).double()), "holds base.w of type torch.float64 instead of torch.float32"),
        (reply(counts=torch.ones(4)), "holds counts of type torch.float32 instead of torch.int64"),
        (reply(base__w=torch.tensor([[1, 2, 3], [4, NAN, 6]])), "holds base.w with values that are not finite"),
        (reply(prototypes=torch.full((4, 3), -INF)), "holds prototypes with values that are not finite"),
        (reply(head__w=torch.ones(1)), "holds head.w, which the method's card does not declare (its `extras`)"),
        (reply(centres=torch.ones(4, 3)), "holds centres, which the method's card does not declare (its `extras`)"),
        (reply(base__w=[[1.0] * 3] * 2), "holds base.w that is no tensor but list"),
        (reply(note="hello"), "holds note, which the method's card does not declare (its `extras`)"),
        (None, "is no dict of tensors but NoneType"),
        ([torch.ones(2, 3)], "is no dict of tensors but list"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_defect_is_named(bad, reason):
    assert defect(bad, EXPECTED) == reason


def test_of_several_defects_values_come_last():
    """A tensor of the wrong shape may hold anything; its values are not even looked at."""
    assert defect(reply(base__w=torch.tensor([NAN])), EXPECTED).startswith("holds base.w of shape")


def test_most_replies_decide_what_comes_beside_the_weights():
    odd = reply(prototypes=torch.ones(4, 7))
    replies = [odd, reply(), None, reply(base__w=None)]
    expected = expected_layout(WEIGHTS, replies, EXTRAS)
    assert expected == EXPECTED == layout(reply())
    assert [defect(each, expected) != "" for each in replies] == [True, False, True, True]
    assert expected_layout(WEIGHTS, [odd, reply()], EXTRAS)["prototypes"][0] == (4, 7)  # a tie: the first one


def test_class_means_and_counts_come_together():
    """A reply with one of the two has no vote, however many there are of it."""
    expected = expected_layout(WEIGHTS, [reply(counts=None), reply(counts=None), reply()], EXTRAS)
    assert expected == EXPECTED and defect(reply(counts=None), expected) == "lacks counts"


def test_who_lacks_what_is_needed_has_no_vote():
    """Most clients of a method of class means send none: those that do are right, however few."""
    bare = reply(prototypes=None, counts=None)
    expected = expected_layout(WEIGHTS, [bare, bare, reply()], EXTRAS, EXTRAS)
    assert expected == EXPECTED and defect(bare, expected) == "lacks prototypes"
    assert expected_layout(WEIGHTS, [bare], EXTRAS, EXTRAS) == layout(WEIGHTS)


def test_what_no_method_declares_is_not_expected_however_many_send_it():
    expected = expected_layout(WEIGHTS, [reply(), reply()], ())
    assert expected == layout(WEIGHTS)
    assert (
        defect(reply(), expected) == "holds prototypes, counts, which the method's card does not declare (its `extras`)"
    )
    assert expected_layout(WEIGHTS, []) == layout(WEIGHTS)


def test_weights_are_never_put_to_the_vote():
    small = reply(base__w=torch.ones(1))
    assert expected_layout(WEIGHTS, [small, small, reply()], EXTRAS) == EXPECTED


def test_is_finite():
    assert is_finite([]) and is_finite([torch.tensor([1, 2])]) and is_finite([torch.ones(3), torch.tensor([True])])
    assert not is_finite([torch.ones(3), torch.tensor([INF])])

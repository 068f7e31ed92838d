"""Letters through Flower's records, and what a stranger may not write."""

import math

import pytest
import torch

from flcore.federation import flower
from flcore.federation.letters import Member, Order, Reply, from_records, to_records
from flcore.utils.errors import UsageError

TENSORS = {"w": torch.tensor([[1.5, -2.0]]), "n": torch.tensor(3), "seen": torch.tensor([True, False])}


def reply(**changed):
    values = {
        **{"round": 1, "samples": 4, "correct": 3, "auc": 0.5, "correct_after": 4, "auc_after": math.nan},
        **{"loss": 2.0, "loss_samples": 8, "sound": True, "fresh": False, "tensors": TENSORS},
    }
    return Reply(**values | changed)


def test_without_flower_it_is_said_what_to_install():
    with pytest.raises(UsageError, match="pip install 'flwr>=1.42'"):
        flower("no_such_module")


class TestRecords:
    @pytest.fixture(autouse=True)
    def flower(self):
        self.app = pytest.importorskip("flwr.app")

    def test_tensors_keep_names_types_shapes_and_values(self):
        order = Order(0, 2, True, False, 1, True, TENSORS)
        back = from_records(Order, to_records(order))
        assert (back.round, back.base) == (2, (1, True))
        for name, tensor in TENSORS.items():
            assert torch.equal(back.tensors[name], tensor) and back.tensors[name].dtype == tensor.dtype

    def test_a_member_has_no_tensors(self):
        member = Member(2, 10, 4, False, 3, 4, [1, 20, 20], "a", "b")
        assert from_records(Member, to_records(member)) == member

    @pytest.mark.parametrize(
        ("changed", "why"),
        [
            ({"correct": 5}, "claims 5 and 4 of 4 test samples"),
            ({"correct_after": -1}, "claims 3 and -1 of 4"),
            ({"auc": 1.5}, "claims an AUC of 1.5"),
            ({"loss_samples": -1}, "a loss over -1 samples"),
            ({"round": 1.0}, "its round is 1.0, not of type int"),
            ({"sound": 1}, "its sound is 1, not of type bool"),
        ],
    )
    def test_numbers_that_cannot_be_are_refused(self, changed, why):
        with pytest.raises(ValueError, match=why):
            from_records(Reply, to_records(reply(**changed)))

    def test_other_records_are_no_letter(self):
        with pytest.raises(ValueError, match="no records numbers and tensors"):
            from_records(Reply, self.app.RecordDict({}))
        content = to_records(reply())
        content["numbers"]["more"] = 1
        with pytest.raises(ValueError, match="holds more, which is unknown"):
            from_records(Reply, content)

    def test_an_array_that_is_none_stays_for_the_server_to_name(self):
        content = to_records(reply())
        content["tensors"]["w"] = self.app.Array("float32", (1, 2), "numpy.ndarray", b"no array")
        back = from_records(Reply, content).tensors
        assert not isinstance(back["w"], torch.Tensor) and torch.equal(back["n"], TENSORS["n"])

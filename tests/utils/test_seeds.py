import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flcore.utils.seeds import numpy_generator, seed_everything, torch_generator

KEYS = st.lists(st.one_of(st.integers(-3, 2**70), st.text(max_size=4)), max_size=4).map(tuple)


def draw(*key):
    return tuple(numpy_generator(*key).integers(2**62, size=3)), tuple(
        torch.rand(3, generator=torch_generator(*key)).tolist()
    )


@given(st.integers(0, 2**64), KEYS)
def test_same_key_same_stream(seed, key):
    assert draw(seed, *key) == draw(seed, *key)


@given(st.integers(0, 5), KEYS, st.integers(0, 5), KEYS)
def test_other_key_other_stream(seed, key, other_seed, other_key):
    if (seed, *map(repr, key)) != (other_seed, *map(repr, other_key)):
        ours, theirs = draw(seed, *key), draw(other_seed, *other_key)
        assert ours[0] != theirs[0] and ours[1] != theirs[1]


@pytest.mark.parametrize(
    ("key", "other"),
    [((0,), (0, 0)), ((0, 1), (0, "1")), ((0, "ab", "c"), (0, "a", "bc")), ((0, 1, 23), (0, 12, 3)), ((1, 0), (0, 1))],
)
def test_keys_that_a_careless_hash_would_mix_up(key, other):
    assert draw(*key) != draw(*other)


def test_stream_is_the_same_on_every_machine():
    # `printf '0,1,8:training' | sha256sum`; numpy's SeedSequence and Generator are specified to the bit
    digest = 0xCF57AD9A8C9D3C1E1BBFDEA1106E591C4906DE3DE51D661E9D36C3D7BF489DFB
    expected = np.random.default_rng(np.random.SeedSequence(digest)).integers(1000, size=4)
    assert numpy_generator(0, 1, "training").integers(1000, size=4).tolist() == expected.tolist()


def test_a_numpy_integer_is_that_integer():
    assert draw(np.int64(3), np.int32(2)) == draw(3, 2)


def test_a_fraction_is_no_key():
    with pytest.raises(TypeError):
        numpy_generator(0, 1.5)


def test_generators_leave_the_global_ones_alone():
    seed_everything(1)
    before = random.random(), float(np.random.rand()), float(torch.rand(1))
    seed_everything(1)
    draw(5, "x")
    assert (random.random(), float(np.random.rand()), float(torch.rand(1))) == before


@pytest.mark.parametrize("seed", [0, 2**32 + 5])
def test_seed_everything_depends_on_the_seed(seed):
    def three(value):
        seed_everything(value)
        return random.random(), float(np.random.rand()), float(torch.rand(1))

    assert three(seed) == three(seed)
    assert all(ours != theirs for ours, theirs in zip(three(seed), three(seed + 1), strict=True))

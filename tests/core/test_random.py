"""Derived seeds: stable values, and a separate stream for each combination of keys."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phiseg.core.random import derive_seed

keys = st.lists(st.integers() | st.text(max_size=5), max_size=4).map(tuple)
quick = settings(max_examples=200)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ((0,), 5_254_295_370_254_170_289),
        ((0, "noise", 1), 1_413_489_107_338_554_685),
        ((0, "noise", 1, 2), 2_318_091_653_208_384_812),
        ((2**63, "sample", "case-é"), 4_757_152_092_394_181_333),
        ((-1, "a"), 8_894_016_457_970_108_741),
    ],
)
def test_derive_seed_is_stable(arguments, value):
    """Different values would silently change every run, split, phantom and sample."""
    assert derive_seed(*arguments) == value


@quick
@given(st.integers(), keys, st.integers(), keys)
def test_derive_seed_differs_between_streams(seed, first, other_seed, second):
    same = (seed, first) == (other_seed, second)
    assert (derive_seed(seed, *first) == derive_seed(other_seed, *second)) == same


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("a", 1), ("a1",)),
        (("a", 1), ("a", "1")),
        (("a", "b"), ("b", "a")),
        (("a", "b"), ("ab",)),
        (("a, 'b'",), ("a", "b")),
        ((1, 2), (12,)),
        ((), ("",)),
    ],
)
def test_derive_seed_separates_keys(first, second):
    assert derive_seed(0, *first) != derive_seed(0, *second)


def test_derive_seed_treats_numpy_values_as_python_values():
    for number in (np.int64(1), np.uint8(1), True):
        assert derive_seed(0, "noise", number) == derive_seed(0, "noise", 1)
    assert derive_seed(np.int64(3), np.str_("a")) == derive_seed(3, "a")


def test_derive_seed_distinguishes_seed_and_keys():
    assert derive_seed(1, 2) != derive_seed(2, 1)


@quick
@given(st.integers(), keys)
def test_derive_seed_is_a_valid_generator_seed(seed, key):
    assert 0 <= derive_seed(seed, *key) < 2**63

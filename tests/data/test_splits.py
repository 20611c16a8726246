"""Splits by patient."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phiseg.core.errors import ConfigError, DataError
from phiseg.data.splits import check_splits, split_patients
from phiseg.data.store import Dataset

patients = st.lists(st.text(max_size=4), max_size=60)
seeds = st.integers(0, 2**32)
shares = st.integers(0, 10).flatmap(
    lambda val: st.integers(0, 19 - val).map(lambda test: ((20 - val - test) / 20, val / 20, test / 20))
)


@given(patients, seeds, shares)
def test_every_patient_is_in_exactly_one_split(names, seed, fractions):
    splits = split_patients(names, seed=seed, fractions=fractions)
    assert list(splits) == ["train", "val", "test"]
    assert sorted(name for part in splits.values() for name in part) == sorted(set(names))


@given(patients, seeds, shares, st.randoms())
def test_split_is_independent_of_order_and_repetition(names, seed, fractions, random):
    shuffled = names + names[:3]
    random.shuffle(shuffled)
    assert split_patients(shuffled, seed=seed, fractions=fractions) == split_patients(
        names, seed=seed, fractions=fractions
    )


@given(st.integers(0, 200), seeds, shares)
def test_counts_match_fractions_up_to_one_patient(number, seed, fractions):
    splits = split_patients(map(str, range(number)), seed=seed, fractions=fractions)
    num_parts = sum(share > 0 for share in fractions)
    for part, share in zip(splits.values(), fractions, strict=True):
        assert abs(len(part) - share * number) < 2
        assert share > 0 or not part
        assert share == 0 or number < num_parts or part


def test_paper_fractions_are_exact_if_possible():
    splits = split_patients(map(str, range(1000)), seed=1)
    assert [len(part) for part in splits.values()] == [600, 200, 200]


def test_seeds_give_different_splits():
    names = [str(number) for number in range(50)]
    assert split_patients(names, seed=0) != split_patients(names, seed=1)


def test_split_is_random():
    names = [f"{number:03d}" for number in range(100)]
    assert split_patients(names, seed=0)["train"] != names[:60]


@pytest.mark.parametrize(
    "fractions", [(0.6, 0.4), (0.6, 0.3, 0.2), (-0.2, 0.6, 0.6), (0, 0.5, 0.5), (float("nan"), 0.5, 0.5)]
)
def test_invalid_fractions_are_rejected(fractions):
    with pytest.raises(ConfigError, match="split fractions"):
        split_patients(["a"], seed=0, fractions=fractions)


def test_patient_twice_in_one_split_is_rejected():
    with pytest.raises(DataError, match="twice in split 'train'"):
        check_splits({"train": ["a", "a"]}, ["a"], where="splits.json")


def test_hold_out_makes_a_split_the_test_split(lesions, copy):
    dataset = Dataset.open(copy(lesions))
    held_out = dataset.splits["val"]
    after = dataset.resplit(seed=1, fractions=(80, 20, 0), hold_out="val")
    assert after.splits["test"] == held_out
    assert sorted(after.splits["train"] + after.splits["val"]) == sorted(
        dataset.splits["train"] + dataset.splits["test"]
    )
    assert len(after.splits["val"]) == 2
    with pytest.raises(ConfigError, match="becomes test"):
        after.resplit(seed=1, fractions=(60, 20, 20), hold_out="val")
    with pytest.raises(DataError, match="no split 'vla'"):
        after.resplit(seed=1, fractions=(80, 20, 0), hold_out="vla")


def test_long_split_name_is_rejected():
    with pytest.raises(DataError, match="a split name has 101 characters"):
        check_splits({"x" * 101: ["a"]}, ["a"], where="splits.json")
    check_splits({"x" * 100: ["a"]}, ["a"], where="splits.json")

"""Neighbouring slices: found by the columns of cases.csv, shown or hidden together, equal in every batch."""

import numpy as np
import pytest
import torch

from phiseg.data.augment import AugmentConfig, reverse_slices
from phiseg.data.intensity import Intensity
from phiseg.data.loader import TrainingStream
from phiseg.data.neighbours import find_neighbours
from phiseg.data.writer import Case, write_dataset

SHAPE = (2, 4, 4)
STACKS = {("a", "0"): range(3, 8), ("a", "1"): range(4), ("b", "0"): [0, 1, 3, 4]}
"""Slices of each nodule; the last stack has a gap."""


def value(patient, nodule, number):
    """Return the pixel value of a slice: no two slices share one."""
    return 100 * "ab".index(patient) + 20 * int(nodule) + number


def make_cases():
    for (patient, nodule), numbers in STACKS.items():
        for number in reversed(numbers):  # the order of the rows must not matter
            yield Case(
                case=f"{patient}-{nodule}-{number}",
                patient=patient,
                image=np.stack([np.full(SHAPE[1:], value(patient, nodule, number))] * 2)
                * np.array([[[1]], [[-1]]]),
                labels=np.zeros((1, *SHAPE[1:])),
                valid=np.array([True]),
                columns={"nodule": nodule, "slice": number},
            )


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_dataset(
        tmp_path_factory.mktemp("neighbours") / "data",
        name="stacks",
        classes=("background", "nodule"),
        num_annotators=1,
        image_shape=SHAPE,
        image_dtype=np.float32,
        intensity=Intensity(kind="zscore"),
        cases=make_cases(),
        splits={"train": ["a", "b"], "val": []},
    )


def test_slices_of_several_scans_have_no_neighbours():
    visits = [{"patient": "a", "slice": str(number)} for _ in range(2) for number in range(3)]
    other = [{"patient": "b", "slice": str(number)} for number in range(2)]
    assert find_neighbours([*visits, *other], 1).tolist() == [
        *([row, -1, -1] for row in range(6)),
        [6, -1, 7],
        [7, 6, -1],
    ]
    named = [{**case, "scan": str(row // 3)} for row, case in enumerate(visits)]
    assert find_neighbours(named, 1)[4].tolist() == [4, 3, 5]


def channels(image):
    """Return the value of each channel of a constant image."""
    return image[:, 0, 0].tolist()


def expected_input(case, context):
    """Return the channels of a case by looking slices up in STACKS."""
    patient, nodule, number = case["patient"], case["nodule"], int(case["slice"])
    order = [number, *(n for distance in range(1, context + 1) for n in (number - distance, number + distance))]
    if not set(order) <= set(STACKS[patient, nodule]):
        order = [number] * len(order)
    return [sign * value(patient, nodule, n) for n in order for sign in (1, -1)]


@pytest.mark.parametrize("context", [0, 1, 2])
def test_image_has_neighbours_or_repeats_itself(dataset, context):
    complete = dataset.has_neighbours(context)
    for row, case in enumerate(dataset.cases):
        found = channels(dataset.image(row, context=context))
        assert found == expected_input(case, context)
        assert complete[row] == (len(set(found)) == 2 * (1 + 2 * context))
    assert 0 < complete.sum() < dataset.num_cases or context == 0


def test_hidden_neighbours_look_like_missing_ones(dataset):
    row = int(np.flatnonzero(dataset.has_neighbours(1))[0])
    assert channels(dataset.image(row, context=1, hide_neighbours=True)) == 3 * channels(dataset.image(row))


def test_find_neighbours_without_slice_numbers_finds_none():
    cases = [{"case": "x", "patient": "a"}, {"case": "y", "patient": "a", "slice": "top"}]
    assert (find_neighbours(cases, 1)[:, 1:] == -1).all()


def test_find_neighbours_does_not_cross_series_or_patients():
    cases = [{"patient": "a", "series_uid": "1", "slice": "0"}, {"patient": "a", "series_uid": "2", "slice": "1"}]
    assert (find_neighbours(cases, 1)[:, 1:] == -1).all()
    cases[1]["series_uid"] = "1"
    assert find_neighbours(cases, 1).tolist() == [[0, -1, 1], [1, 0, -1]]


def test_reverse_slices_exchanges_before_and_after():
    image = torch.arange(10.0)[None, :, None, None].repeat(2, 1, 1, 1)  # five slices of two channels
    straight, reversed_ = reverse_slices(image, torch.tensor([False, True]), context=2)
    assert straight.flatten().tolist() == list(range(10))
    assert reversed_.flatten().tolist() == [0, 1, 4, 5, 2, 3, 8, 9, 6, 7]


def stream(dataset, **changes):
    augment = AugmentConfig(
        **{
            "probability": 0,
            "flip_horizontal": False,
            "hide_neighbours": 0.5,
            "flip_slices": True,
            **changes.pop("augment", {}),
        }
    )
    return TrainingStream(dataset, batch_size=4, seed=0, augment=augment, context=1, **changes)


def test_batch_hides_and_reverses_neighbours_by_chance(dataset):
    complete = dataset.has_neighbours(1)
    seen = set()
    for step in range(40):
        batch = stream(dataset).batch(step)
        for row, image in zip(batch.rows, batch.image, strict=True):
            own = channels(dataset.image(int(row)))
            straight = expected_input(dataset.cases[row], 1)
            found = [round(number, 3) for number in channels(image)]
            kinds = {
                "straight": straight,
                "reversed": straight[:2] + straight[4:] + straight[2:4],
                "hidden": 3 * own,
            }
            matching = [name for name, numbers in kinds.items() if numbers == found]
            assert matching, found
            if complete[row]:
                seen.add(matching[0])
            else:
                assert found == 3 * own
    assert seen == {"straight", "reversed", "hidden"}


def test_batch_of_two_processes_equals_batch_of_one(dataset):
    whole = stream(dataset).batch(7)
    parts = [stream(dataset, rank=rank, world_size=2).batch(7) for rank in range(2)]
    assert torch.equal(torch.cat([part.image for part in parts]), whole.image)


def test_without_augmentation_all_neighbours_are_shown(dataset):
    batch = stream(dataset, augment={"enabled": False}).batch(0)
    for row, image in zip(batch.rows, batch.image, strict=True):
        assert channels(image) == expected_input(dataset.cases[row], 1)

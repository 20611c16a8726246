"""The example scan has the values that the model expects, and a lesion at the stated place."""

import numpy as np
import pytest

from phiseg.inference.example_scan import NUM_SLICES, example_volume
from phiseg.inference.prepared_stack import PreparedStack
from phiseg.inference.preprocessing import Preprocessing


def preprocessing(**changes):
    values = {
        "classes": ["background", "lesion"],
        "image_channels": 1,
        "size": [64, 64],
        "intensity": {"kind": "window", "low": -1000, "high": 400},
    }
    return Preprocessing.parse(values | changes, where="the test")


@pytest.mark.parametrize("plane", [None, "auto", "axial", "coronal", "sagittal"])
@pytest.mark.parametrize("spacing", [None, [0.6, 0.6], [3.0, 2.0]])
def test_example_has_plane_and_spacing_of_the_model(plane, spacing):
    wanted = preprocessing(plane=plane, spacing_mm=spacing)
    volume, (number, row, column) = example_volume(wanted)
    stack = PreparedStack.of(volume, wanted, name="example")
    assert stack.plane == (plane if plane not in (None, "auto") else "axial")
    assert stack.stack.grid == (NUM_SLICES, 64, 64)
    assert stack.step == (1, 1)
    assert stack.warnings == ()
    assert 0 < number < NUM_SLICES - 1
    assert abs(row - 32) < 16
    assert abs(column - 32) < 16


def test_example_lesion_is_bright_at_its_point():
    wanted = preprocessing()
    volume, (number, row, column) = example_volume(wanted)
    slices = PreparedStack.of(volume, wanted, name="example").stack.values[..., 0]
    around = slices[:, row - 3 : row + 4, column - 3 : column + 4].mean((1, 2))
    assert around[number] > around[[0, -1]].max() + 200
    areas = [(image > (around[number] + around[0]) / 2).sum() for image in slices]
    assert areas[number] > areas[number - 3] > areas[0]
    assert areas[number] > areas[number + 3] > areas[-1]


def test_example_lesion_in_ct_is_surrounded_by_air():
    wanted = preprocessing(modality="CT")
    volume, (number, row, column) = example_volume(wanted)
    middle = PreparedStack.of(volume, wanted, name="example").stack.values[number, ..., 0]
    assert np.median(middle) < -800
    assert np.median(middle[row - 3 : row + 4, column - 3 : column + 4]) > -300


@pytest.mark.parametrize("changes", [{"size": [8, 20]}, {"image_channels": 3}, {"intensity": {"kind": "zscore"}}])
def test_example_exists_for_any_model(changes):
    wanted = preprocessing(**changes)
    volume, start = example_volume(wanted)
    stack = PreparedStack.of(volume, wanted, name="example").stack
    assert stack.values.shape[3] == wanted.image_channels
    assert all(0 <= place < length for place, length in zip(start, stack.grid, strict=True))


def test_example_is_deterministic():
    first, second = (example_volume(preprocessing())[0].values for _ in range(2))
    np.testing.assert_array_equal(first, second)

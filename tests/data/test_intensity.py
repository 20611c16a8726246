"""The intensity rule."""

import numpy as np
import pytest

from phiseg.core.errors import ConfigError
from phiseg.data.intensity import Intensity, normalise

WINDOW = Intensity(kind="window", low=-1000, high=600)


def test_window_maps_bounds_to_half():
    values = np.array([-1000, -200, 600], dtype=np.int16)
    np.testing.assert_allclose(normalise(values, WINDOW), [-0.5, 0, 0.5], atol=1e-7)


def test_window_clips_values_outside():
    values = np.array([-32768, 32767], dtype=np.int16)  # int16 arithmetic would overflow here
    np.testing.assert_array_equal(normalise(values, WINDOW), np.array([-0.5, 0.5], np.float32))


def test_zscore_is_unchanged():
    values = np.array([-3.5, 0, 7], dtype=np.float16)
    np.testing.assert_array_equal(normalise(values, Intensity(kind="zscore")), values.astype(np.float32))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float16, np.float64])
@pytest.mark.parametrize("intensity", [WINDOW, Intensity(kind="zscore")])
def test_normalise_returns_new_float32_array(dtype, intensity):
    values = np.ones((2, 3), dtype)
    result = normalise(values, intensity)
    assert result.dtype == np.float32
    assert result.shape == (2, 3)
    result += 1
    assert (values == 1).all()


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "window", "low": 0},
        {"kind": "window", "low": 1, "high": 1},
        {"kind": "window", "low": 0, "high": float("nan")},
        {"kind": "zscore", "low": 0, "high": 1},
        {"kind": "percentile"},
    ],
)
def test_invalid_rules_are_rejected(values):
    with pytest.raises(ConfigError):
        Intensity.parse(values, where="dataset.json")

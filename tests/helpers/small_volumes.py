"""Small datasets of volumes of different depth."""

import numpy as np

from phiseg.data.intensity import Intensity
from phiseg.data.writer import Case, write_dataset

DEPTHS = (4, 1, 7, 3, 6)
SIZE = (5, 8)
CHANNELS, NUM_ANNOTATORS = 2, 3
SPACING_MM = (2.5, 0.5, 0.7)


def make_volume(index, **changes):
    """Return a random volume with 3 annotators, of which the second is missing in every third volume."""
    rng = np.random.default_rng(index)
    depth = DEPTHS[index % len(DEPTHS)]
    case = Case(
        case=f"volume-{index}",
        patient=f"patient-{index}",
        image=rng.integers(-1000, 1000, (CHANNELS, depth, *SIZE)).astype(np.int16),
        labels=rng.integers(0, 2, (NUM_ANNOTATORS, depth, *SIZE)),
        valid=np.array([True, index % 3 != 1, True]),
        columns={"slice_spacing_mm": SPACING_MM[0]},
    )
    return case._replace(**changes)


def write_volumes(out, cases=None, **changes):
    """Write a dataset of 5 volumes, or of the given ones."""
    options = {
        "name": "volumes",
        "dims": 3,
        "classes": ("background", "lesion"),
        "num_annotators": NUM_ANNOTATORS,
        "image_shape": (CHANNELS, *SIZE),
        "image_dtype": np.int16,
        "intensity": Intensity(kind="window", low=-1000, high=1000),
        "spacing_mm": SPACING_MM[1:],
        "plane": "axial",
        "splits": {"train": ["patient-0", "patient-1", "patient-2"], "val": ["patient-3"], "test": ["patient-4"]},
    }
    cases = map(make_volume, range(5)) if cases is None else cases
    return write_dataset(out, cases=cases, **{**options, **changes})

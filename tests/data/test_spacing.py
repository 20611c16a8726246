import numpy as np
import pytest

from phiseg.data.check import check_dataset
from phiseg.data.intensity import Intensity
from phiseg.data.spacing import case_spacing
from phiseg.data.writer import Case, write_dataset


@pytest.mark.parametrize(
    ("case", "spacing"),
    [
        ({"spacing_mm": "0.7"}, (0.7, 0.7)),
        ({"row_spacing_mm": "0.5", "column_spacing_mm": "0.75"}, (0.5, 0.75)),
        ({"spacing_mm_0": "0.5", "spacing_mm_1": "0.75"}, (0.5, 0.75)),
        ({"spacing_mm": "unknown", "row_spacing_mm": "0.5", "column_spacing_mm": "0.75"}, (0.5, 0.75)),
        ({"row_spacing_mm": "0.5"}, None),
        ({"spacing_mm": "0"}, None),
        ({"spacing_mm": "inf"}, None),
        ({}, None),
    ],
)
def test_case_spacing_reads_every_spelling_and_rejects_invalid_numbers(case, spacing):
    assert case_spacing(case) == spacing


@pytest.mark.parametrize("names", [("row_spacing_mm", "column_spacing_mm"), ("spacing_mm_0", "spacing_mm_1")])
def test_check_dataset_reports_the_range_of_every_spelling(names, tmp_path):
    dataset = write_dataset(
        tmp_path / "data",
        name="slices",
        classes=("background", "lesion"),
        num_annotators=1,
        image_shape=(1, 4, 4),
        image_dtype=np.float32,
        intensity=Intensity(kind="zscore"),
        cases=[
            Case(
                f"case-{row}",
                f"patient-{row}",
                np.full((1, 4, 4), row, np.float32),
                np.zeros((1, 4, 4), np.uint8),
                np.ones(1, bool),
                dict(zip(names, spacing, strict=True)),
            )
            for row, spacing in enumerate([(0.5, 0.6), (0.7, 0.9)])
        ],
        splits={"train": ["patient-0", "patient-1"]},
    )
    assert check_dataset(dataset, progress=False).spacing_mm == (0.5, 0.9)

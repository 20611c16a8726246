"""The examples of an evaluation know their pixel spacing, where the dataset or its table of cases does."""

import csv
import json

import numpy as np
import pytest

from helpers.synthetic_evaluations import make_evaluation, write
from phiseg.core.errors import DataError
from phiseg.evaluation.evaluation_folder import read_evaluation
from phiseg.evaluation.model_evaluation import evaluate


@pytest.fixture
def spacing_of(trained, lesions, copy, tmp_path):
    """Return a function that evaluates on a dataset without a spacing of its own, but with further columns."""

    def spacing_of(columns):
        data = copy(lesions)
        manifest = json.loads((data / "dataset.json").read_text())
        (data / "dataset.json").write_text(json.dumps(manifest | {"spacing_mm": None}))
        with (data / "cases.csv").open(newline="") as file:
            rows = [row | columns for row in csv.DictReader(file)]
        with (data / "cases.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        out = tmp_path / "eval"
        evaluate(trained("unet"), data, out, num_samples=2, num_examples=2, progress=False)
        return read_evaluation(out).examples.spacing_mm

    return spacing_of


def test_common_spacing_is_from_the_dataset(trained, lesions, tmp_path):
    evaluate(trained("unet"), lesions, tmp_path / "eval", num_samples=2, num_examples=2, progress=False)
    shared = json.loads((lesions / "dataset.json").read_text())["spacing_mm"]
    np.testing.assert_array_equal(read_evaluation(tmp_path / "eval").examples.spacing_mm, [shared, shared])


@pytest.mark.parametrize(
    "columns",
    [
        {"row_spacing_mm": "0.5", "column_spacing_mm": "0.75"},
        {"spacing_mm_0": "0.5", "spacing_mm_1": "0.75"},
        {"spacing_mm": "unknown", "row_spacing_mm": "0.5", "column_spacing_mm": "0.75"},
    ],
)
def test_cases_may_have_individual_spacing(columns, spacing_of):
    np.testing.assert_array_equal(spacing_of(columns), [[0.5, 0.75]] * 2)


def test_single_spacing_applies_to_both_axes(spacing_of):
    np.testing.assert_array_equal(spacing_of({"spacing_mm": "0.7"}), [[0.7, 0.7]] * 2)


@pytest.mark.parametrize("columns", [{}, {"spacing_mm": ""}, {"spacing_mm": "0"}, {"spacing_mm": "nan"}])
def test_unknown_spacing_is_absent(columns, spacing_of):
    assert spacing_of(columns) is None


@pytest.mark.parametrize(
    ("spacing", "problem"),
    [
        (np.array([[0.7, 0.0], [0.7, 0.7]]), "'spacing_mm' contains values that are not positive"),
        (np.array([[0.7], [0.7]]), "'spacing_mm' has 2 = 1"),
        (np.array([[0.7, 0.7]]), "'spacing_mm' has E = 1"),
    ],
)
def test_invalid_spacing_is_rejected(spacing, problem, tmp_path):
    folder = write(make_evaluation(tmp_path / "a", size=8))
    with np.load(folder / "examples.npz") as arrays:
        np.savez(folder / "examples.npz", **{**arrays, "spacing_mm": spacing})
    with pytest.raises(DataError, match=problem):
        read_evaluation(folder)

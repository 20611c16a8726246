"""Datasets of volumes of different depth: exact round trips, and detection of damage."""

import csv
import json
import weakref

import numpy as np
import pytest

from helpers.small_volumes import CHANNELS, DEPTHS, NUM_ANNOTATORS, SIZE, SPACING_MM, make_volume, write_volumes
from phiseg.core.errors import DataError
from phiseg.data.check import check_dataset, disagreement
from phiseg.data.manifest import MISSING
from phiseg.data.relabel import relabel
from phiseg.data.store import Dataset


@pytest.fixture
def folder(tmp_path):
    write_volumes(tmp_path / "data")
    return tmp_path / "data"


def test_written_volumes_are_read_back(folder):
    dataset = Dataset.open(folder)
    assert dataset.dims == 3
    assert dataset.num_cases == 5
    for row, case in enumerate(map(make_volume, range(5))):
        assert dataset.size(row) == (DEPTHS[row], *SIZE)
        assert dataset.depth(row) == DEPTHS[row]
        np.testing.assert_array_equal(dataset.stored_image(row), case.image)
        np.testing.assert_allclose(dataset.image(row), case.image / 2000, atol=1e-6)
        np.testing.assert_array_equal(dataset.annotations(row), case.labels[case.valid])
        np.testing.assert_array_equal(dataset.valid[row], case.valid)
        expected = np.where(case.valid[:, None, None, None], case.labels, MISSING)
        np.testing.assert_array_equal(dataset.case_labels(row), expected)
        assert dataset.cases[row]["depth"] == str(DEPTHS[row])
        assert dataset.voxel_spacing_mm(row) == SPACING_MM
        assert dataset.spacing_mm(row) == SPACING_MM[1:]
    dataset.verify()
    dataset.check_labels(range(5))


def test_slices_of_a_volume_are_chosen_by_number(folder):
    dataset, case, slices = Dataset.open(folder), make_volume(2), np.array([3, 3, 0, 6])
    np.testing.assert_array_equal(dataset.stored_image(2, slices=slices), case.image[:, slices])
    assert dataset.image(2, slices=slices).shape == (CHANNELS, 4, *SIZE)
    np.testing.assert_array_equal(dataset.annotation(2, 2, slices=slices), case.labels[2, slices])
    np.testing.assert_array_equal(dataset.annotation(2, 0), case.labels[0])


def test_arrays_contain_the_slices_in_order(folder):
    images, labels = (np.load(folder / f"{name}.npy") for name in ("images", "labels"))
    assert images.shape == (sum(DEPTHS), CHANNELS, *SIZE)
    assert labels.shape == (sum(DEPTHS), NUM_ANNOTATORS, *SIZE)
    np.testing.assert_array_equal(images[DEPTHS[0] + DEPTHS[1] + 2], make_volume(2).image[:, 2])


def test_writer_holds_one_volume_at_a_time(tmp_path):
    def cases():
        images = []
        for index in range(5):
            case = make_volume(index)
            images.append(weakref.ref(case.image))
            yield case
            del case
            assert sum(image() is not None for image in images) <= 1

    write_volumes(tmp_path / "data", cases())


def test_relabelled_volumes_have_the_new_numbers(folder):
    dataset = Dataset.open(folder)
    other = relabel(dataset, ("background", "vessel", "lesion"), (0, 2))
    np.testing.assert_array_equal(other.annotations(3), 2 * dataset.annotations(3))
    np.testing.assert_array_equal(other.annotation(3, 0), 2 * dataset.annotation(3, 0))


def test_fingerprint_depends_on_the_depths(folder):
    before = Dataset.open(folder).fingerprint
    edit_table(folder, depth=["1", "4", "7", "3", "6"])
    assert Dataset.open(folder).fingerprint != before


def test_repr_shows_the_range_of_depths(folder):
    assert "5 cases of 1 to 7 slices of 5 x 8 pixels" in repr(Dataset.open(folder))


def edit_table(folder, **columns):
    with (folder / "cases.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for name, values in columns.items():
        for row, value in zip(rows, values, strict=True):
            row[name] = value
    with (folder / "cases.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize(
    ("depths", "message"),
    [
        (["4", "1", "7", "3", "5"], "depths sum to 20, but images.npy has 21"),
        (["4", "0", "7", "3", "7"], "'volume-1' has depth '0'"),
        (["4", "1", "", "3", "6"], "'volume-2' has depth ''"),
        (["4", "1", "7.0", "3", "6"], "'volume-2' has depth '7.0'"),
    ],
)
def test_invalid_depths_are_rejected(folder, depths, message):
    edit_table(folder, depth=depths)
    with pytest.raises(DataError, match=message):
        Dataset.open(folder)


def test_volumes_are_not_read_as_images(folder):
    values = json.loads((folder / "dataset.json").read_text())
    (folder / "dataset.json").write_text(json.dumps({**values, "dims": 2}))
    with pytest.raises(DataError, match="do not match"):
        Dataset.open(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": np.zeros((CHANNELS, *SIZE), np.int16)}, "not \\(channels, D, H, W\\)"),
        ({"image": np.zeros((CHANNELS, 0, *SIZE), np.int16)}, "not \\(channels, D, H, W\\)"),
        ({"labels": np.zeros((NUM_ANNOTATORS, 2, *SIZE))}, "labels .*, but the dataset has \\(3, 4, 5, 8\\)"),
        ({"labels": np.zeros((4, NUM_ANNOTATORS, *SIZE))}, "labels has shape \\(4, 3, 5, 8\\)"),
        ({"image": np.zeros((CHANNELS, 4, *SIZE[::-1]), np.int16)}, "image has shape \\(2, 4, 8, 5\\)"),
        ({"labels": np.full((NUM_ANNOTATORS, 4, *SIZE), 2)}, "label 2 is not one of the classes"),
    ],
)  # fmt: skip
def test_invalid_volume_is_rejected_by_name(tmp_path, changes, message):
    with pytest.raises(DataError, match=f"'volume-0'.*{message}"):
        write_volumes(tmp_path / "data", [make_volume(0, **changes)])
    assert list(tmp_path.iterdir()) == []


def test_spacing_is_unknown_without_slice_spacing(tmp_path):
    cases = (make_volume(index, columns={}) for index in range(5))
    dataset = write_volumes(tmp_path / "data", cases)
    assert dataset.voxel_spacing_mm(0) is None
    assert dataset.spacing_mm(0) == SPACING_MM[1:]


def test_images_of_version_1_are_read(lesions, copy):
    folder = copy(lesions)
    before = Dataset.open(folder)
    values = json.loads((folder / "dataset.json").read_text())
    del values["dims"]
    (folder / "dataset.json").write_text(json.dumps({**values, "version": 1}))
    old = Dataset.open(folder)
    assert old.dims == 2
    assert old.fingerprint == before.fingerprint
    assert old.size(0) == (16, 16)
    np.testing.assert_array_equal(old.image(3), before.image(3))


def iou(one, other):
    union = (one | other).sum()
    return (one & other).sum() / union if union else 1.0


def test_check_computes_overlaps_over_volumes(folder):
    dataset = Dataset.open(folder)
    report = check_dataset(dataset, progress=False)
    assert report.problems == ()
    pairs = [
        iou(one > 0, other > 0)
        for case in map(make_volume, range(5))
        for index, one in enumerate(case.labels[case.valid])
        for other in case.labels[case.valid][index + 1 :]
    ]
    assert report.agreement.pairs == len(pairs)
    assert report.agreement.iou == pytest.approx(np.mean(pairs), abs=1e-6)
    drawn = np.concatenate([case.labels[case.valid].ravel() for case in map(make_volume, range(5))])
    assert report.classes["lesion"].pixels == pytest.approx(drawn.mean())
    assert disagreement(dataset, 0) > 0
    assert report.depth == (1, 7)
    assert report.slice_spacing_mm == (2.5, 2.5)
    assert report.notes == ()


def test_check_notes_volumes_of_unknown_spacing(tmp_path, cli):
    cases = [make_volume(0, columns={}), *map(make_volume, range(1, 5))]
    report = check_dataset(write_volumes(tmp_path / "data", cases), progress=False)
    assert report.problems == ()
    assert report.notes == ("volumes of unknown spacing, so that they cannot be measured in ml: 1 (volume-0)",)
    shown = cli("data", "check", tmp_path / "data")
    assert shown.code == 0
    assert "slices: 1 to 7 per volume, 2.5 mm apart" in shown.out


def test_check_finds_equal_volumes_in_two_splits(tmp_path):
    same = make_volume(0)
    cases = [same, *map(make_volume, range(1, 4)), same._replace(case="volume-4", patient="patient-4")]
    report = check_dataset(write_volumes(tmp_path / "data", cases), progress=False)
    (problem,) = report.problems
    assert "volume-0 = volume-4 are the same image, in splits test and train" in problem

"""Prepared datasets: exact round trips, and detection of damage."""

import csv
import json
import shutil
import weakref
from pathlib import Path

import numpy as np
import pytest

from phiseg.core.errors import DataError, OutputError
from phiseg.data.intensity import Intensity
from phiseg.data.manifest import MISSING
from phiseg.data.store import Dataset
from phiseg.data.writer import Case, write_dataset

CLASSES = ("background", "inner", "outer")
NUM_ANNOTATORS = 3
FILES = ("dataset.json", "images.npy", "labels.npy", "valid.npy", "cases.csv", "splits.json")
SHAPE = (2, 5, 7)  # C, H, W, all different


def make_case(index, *, seed=0, **changes):
    rng = np.random.default_rng((seed, index))
    case = Case(
        case=f"case-{index}",
        patient=f"patient-{index // 2}",
        image=rng.integers(-1000, 1000, SHAPE).astype(np.int16),
        labels=rng.integers(0, 3, (NUM_ANNOTATORS, *SHAPE[1:])),
        valid=np.array([True, index % 3 != 1, True]),
        columns={"slice": index, "z": 0.5 * index} if index % 2 else {"slice": index, "series": 'a,b "c"\nd'},
    )
    return case._replace(**changes)


def write(out, cases=None, **changes):
    options = {
        "name": "toy",
        "classes": CLASSES,
        "num_annotators": NUM_ANNOTATORS,
        "image_shape": SHAPE,
        "image_dtype": np.int16,
        "intensity": Intensity(kind="window", low=-1000, high=1000),
        "spacing_mm": (0.5, 0.7),
        "seed": 3,
        "source": {"files": {"a.dcm": "12ab"}},
        "command": "phiseg prepare toy",
    }
    return write_dataset(out, cases=map(make_case, range(20)) if cases is None else cases, **{**options, **changes})


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "data")
    return tmp_path / "data"


def test_written_dataset_is_read_back(folder):
    dataset = Dataset.open(folder)
    assert dataset.num_cases == 20
    assert dataset.images.dtype == np.int16
    assert dataset.info.size == (5, 7)
    assert dataset.info.spacing_mm == (0.5, 0.7)
    assert dataset.info.source == {"files": {"a.dcm": "12ab"}}
    for row, case in enumerate(map(make_case, range(20))):
        np.testing.assert_array_equal(dataset.images[row], case.image)
        np.testing.assert_array_equal(dataset.valid[row], case.valid)
        np.testing.assert_array_equal(dataset.annotations(row), case.labels[case.valid])
        np.testing.assert_allclose(dataset.image(row), case.image / 2000, atol=1e-6)
        assert dataset.image(row).dtype == np.float32
        assert dataset.cases[row]["case"] == case.case
        assert dataset.cases[row]["patient"] == case.patient
    dataset.verify()
    dataset.check_labels(range(20))


def test_cases_may_have_different_columns(folder):
    cases = Dataset.open(folder).cases
    assert cases[0] == {"case": "case-0", "patient": "patient-0", "slice": "0", "series": 'a,b "c"\nd', "z": ""}
    assert cases[3]["z"] == "1.5"


def test_missing_annotator_is_marked(folder):
    dataset = Dataset.open(folder)
    assert not dataset.valid[1, 1]
    assert (dataset.labels[1, 1] == MISSING).all()
    assert dataset.annotations(1).shape == (2, 5, 7)


def test_arrays_are_ordinary_npy_files(folder):
    images = np.load(folder / "images.npy", allow_pickle=False)
    assert images.shape == (20, *SHAPE)
    assert images.flags.c_contiguous


def test_arrays_are_mapped_and_read_only(folder):
    dataset = Dataset.open(folder)
    assert isinstance(dataset.images.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        dataset.labels[0, 0, 0, 0] = 1


def test_writer_holds_one_case_at_a_time(tmp_path):
    def cases():
        images = []
        for index in range(20):
            case = make_case(index)
            images.append(weakref.ref(case.image))
            yield case
            del case
            assert sum(image() is not None for image in images) <= 1

    write(tmp_path / "data", cases())


def test_fingerprint_depends_on_arrays_intensity_and_classes_only(tmp_path):
    first = write(tmp_path / "a").fingerprint
    assert write(tmp_path / "b", name="another", command="other").fingerprint == first
    changed = [make_case(0, valid=np.array([True, True, False])), *map(make_case, range(1, 20))]
    assert write(tmp_path / "c", changed).fingerprint != first
    other_window = Intensity(kind="window", low=-1, high=1)
    assert write(tmp_path / "d", intensity=other_window).fingerprint != first
    assert write(tmp_path / "e", classes=("background", "outer", "inner")).fingerprint != first


def test_verify_finds_a_changed_pixel(folder):
    content = bytearray((folder / "images.npy").read_bytes())
    content[-1] ^= 1
    (folder / "images.npy").write_bytes(content)
    dataset = Dataset.open(folder)  # too small a change for the quick checks
    with pytest.raises(DataError, match=r"images\.npy changed"):
        dataset.verify()


def test_error_while_writing_leaves_no_files(tmp_path):
    def cases():
        yield make_case(0)
        assert [path.name for path in tmp_path.iterdir()] != []  # something is being written
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "data", cases())
    assert list(tmp_path.iterdir()) == []


def test_incomplete_folder_does_not_open(tmp_path):
    def cases():
        yield make_case(0)
        (half,) = tmp_path.iterdir()
        shutil.copytree(half, tmp_path / "killed")  # what a kill at this moment leaves behind
        yield make_case(1)

    write(tmp_path / "data", cases())
    with pytest.raises(DataError, match=r"dataset\.json is missing"):
        Dataset.open(tmp_path / "killed")


def test_unreadable_source_raises_data_error(tmp_path):
    def cases():
        yield make_case(0)
        Path("nowhere.dcm").read_bytes()

    with pytest.raises(DataError, match=r"cannot read nowhere\.dcm"):
        write(tmp_path / "data", cases())


def test_existing_folder_is_replaced_only_with_overwrite(folder):
    before = Dataset.open(folder).fingerprint

    def unused():
        raise AssertionError("refused before any work is done")
        yield

    with pytest.raises(OutputError, match="--overwrite"):
        write(folder, unused())
    assert Dataset.open(folder).fingerprint == before
    write(folder, (make_case(index, seed=1) for index in range(4)), overwrite=True)
    assert Dataset.open(folder).num_cases == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": np.zeros((1, 5, 7), np.int16)}, r"'case-1': image has shape \(1, 5, 7\)"),
        ({"labels": np.zeros((2, 5, 7))}, r"labels has shape \(2, 5, 7\)"),
        ({"valid": np.zeros(3, bool)}, "all annotations are missing"),
        ({"labels": np.full((3, 5, 7), 3)}, r"'case-1', annotator 0: label 3 .*0 background, 1 inner, 2 outer"),
        ({"labels": np.full((3, 5, 7), -1)}, "label -1"),
        ({"case": "case-0"}, "'case-0' occurs twice"),
        ({"patient": ""}, "patient"),
    ],
)
def test_invalid_case_is_rejected_by_name(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        write(tmp_path / "data", [make_case(0), make_case(1, **changes)])
    assert list(tmp_path.iterdir()) == []


def test_pixels_out_of_range_of_dtype_are_rejected(tmp_path):
    with pytest.raises(DataError, match="float16"), np.errstate(over="ignore"):
        write(tmp_path / "data", [make_case(0, image=np.full(SHAPE, 1e6))], image_dtype=np.float16)


def test_source_without_cases_is_rejected(tmp_path):
    with pytest.raises(DataError, match="the source has no usable case"):
        write(tmp_path / "data", [])


@pytest.mark.parametrize(
    "name", ["dataset.json", "images.npy", "labels.npy", "valid.npy", "cases.csv", "splits.json"]
)
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "foreign"])
def test_damaged_file_is_named(folder, name, damage):
    path = folder / name
    if damage == "missing":
        path.unlink()
    else:
        content = path.read_bytes()
        path.write_bytes({"empty": b"", "truncated": content[:-9], "foreign": b'[{"a": "\xff\x00'}[damage])
    with pytest.raises(DataError, match=name) as caught:
        Dataset.open(folder)
    assert "\n" not in str(caught.value)
    assert "phiseg prepare" in str(caught.value)


def test_surplus_bytes_are_detected(folder):
    with (folder / "labels.npy").open("ab") as file:
        file.write(b"0")
    with pytest.raises(DataError, match=r"labels\.npy"):
        Dataset.open(folder)


def test_pickle_is_never_loaded(folder):
    np.save(folder / "valid.npy", np.full((20, 3), True, dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"valid\.npy"):
        Dataset.open(folder)


def test_arrays_of_another_dataset_are_rejected(folder, tmp_path):
    write(tmp_path / "other", map(make_case, range(10)))
    shutil.copy(tmp_path / "other" / "labels.npy", folder / "labels.npy")
    with pytest.raises(DataError, match=r"labels\.npy has uint8 \(10, 3, 5, 7\)"):
        Dataset.open(folder)


def edit_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "coco"}, "not the manifest of a phiseg dataset"),
        ({"version": 3, "new": 1}, "version 3, but only versions 1 and 2"),
        ({"clases": []}, "did you mean 'classes'"),
        ({"num_annotators": 4}, "do not match"),
        ({"classes": ["a", "a", "b"]}, "same name"),
        ({"intensity": {"kind": "window"}}, "low < high"),
        (
            {"arrays": {key: {"sha256": "", "shape": [], "dtype": "u1"} for key in ("images", "labels")}},
            "do not match",
        ),
    ],
)
def test_invalid_manifest_is_rejected(folder, changes, message):
    edit_json(folder / "dataset.json", **changes)
    with pytest.raises(DataError, match=message):
        Dataset.open(folder)


def test_missing_folder_and_file_are_rejected(folder):
    for path in (folder / "nowhere", folder / "dataset.json"):
        with pytest.raises(DataError, match="is not a folder"):
            Dataset.open(path)


def test_splits_partition_the_rows_by_patient(folder):
    dataset = Dataset.open(folder)
    rows = np.concatenate([dataset.rows(split) for split in ("train", "val", "test")])
    assert sorted(rows) == list(range(20))
    assert [len(dataset.rows(split)) for split in ("train", "val", "test")] == [12, 4, 4]


def test_given_splits_are_kept(tmp_path):
    splits = {"train": ["patient-0", "patient-3"], "holdout": ["patient-1"]}
    dataset = write(tmp_path / "data", splits=splits)
    assert dataset.splits == splits
    assert dataset.rows("train").tolist() == [0, 1, 6, 7]
    with pytest.raises(DataError, match="did you mean 'holdout'"):
        dataset.rows("holdot")


def test_unknown_and_empty_splits_are_rejected(folder):
    with pytest.raises(DataError, match="valid: test, train, val"):
        Dataset.open(folder).rows("validation_set")
    edit_json(folder / "splits.json", val=[])
    with pytest.raises(DataError, match="'val' has no case"):
        Dataset.open(folder).rows("val")


def test_patient_in_two_splits_is_rejected(folder):
    train = json.loads((folder / "splits.json").read_text())["train"]
    edit_json(folder / "splits.json", test=[train[0]])
    with pytest.raises(DataError, match=f"'{train[0]}' is in split 'train' and in 'test'"):
        Dataset.open(folder)


def test_split_with_unknown_patient_is_rejected(folder, tmp_path):
    edit_json(folder / "splits.json", test=["nobody"])
    with pytest.raises(DataError, match="'nobody'"):
        Dataset.open(folder)
    with pytest.raises(DataError, match="'nobody'"):
        write(tmp_path / "other", splits={"train": ["nobody"]})
    assert not (tmp_path / "other").exists()


def test_splits_must_be_lists_of_patients(folder):
    edit_json(folder / "splits.json", test="patient-1")
    with pytest.raises(DataError, match="not a list of patients"):
        Dataset.open(folder)


def test_repeated_case_is_rejected(folder):
    with (folder / "cases.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    rows[2][0] = rows[1][0]
    with (folder / "cases.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    with pytest.raises(DataError, match="'case-0' occurs twice"):
        Dataset.open(folder)


def tamper(folder, name, place, value):
    array = np.load(folder / name)
    array[place] = value
    np.save(folder / name, array)
    return Dataset.open(folder)


def test_labels_outside_classes_are_rejected(folder):
    dataset = tamper(folder, "labels.npy", (4, 2, 0, 0), 3)
    dataset.check_labels([0, 1, 2, 3, 5])
    with pytest.raises(DataError, match=r"'case-4', annotator 2: label 3 .*2 outer"):
        dataset.check_labels(range(20))


def test_case_without_annotators_is_rejected(folder):
    with pytest.raises(DataError, match="'case-6' has no annotator"):
        tamper(folder, "valid.npy", 6, False)


def test_non_finite_pixels_are_rejected(tmp_path):
    write(tmp_path / "data", image_dtype=np.float32, intensity=Intensity(kind="zscore"))
    dataset = tamper(tmp_path / "data", "images.npy", (3, 0, 0, 0), np.nan)
    assert np.isfinite(dataset.image(2)).all()
    with pytest.raises(DataError, match="'case-3' has NaN"):
        dataset.image(3)


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"{'descr'", b"{('descr'"), (b"'<f2'", b"'<f2  "), (b"False", b"Fals("), (b"'<f2'", b"'|O' ")],
    ids=str,
)
def test_invalid_npy_header_is_rejected(old, new, lesions, copy):
    folder = copy(lesions)
    content = (folder / "images.npy").read_bytes()
    assert old in content
    (folder / "images.npy").write_bytes(content.replace(old, new, 1))
    with pytest.raises(DataError, match=r"images\.npy.* prepare the dataset again"):
        Dataset.open(folder)

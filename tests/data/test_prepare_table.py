"""`phiseg prepare table`: images and labels in any place, listed in a CSV file."""

import numpy as np
import pytest
from PIL import Image

from phiseg.core.errors import DataError
from phiseg.data.prepare.table import find_in_table
from phiseg.data.store import Dataset
from phiseg.imaging.nifti_files import write_nifti
from phiseg.imaging.volume import Volume

AFFINE = np.diag([-1.0, -1.0, 3.0, 1.0])  # L, P, S: an axial slice is values[:, :, k].T


def values(seed, high, shape=(6, 8)):
    return np.random.default_rng(seed).integers(0, high, shape).astype(np.uint8)


@pytest.fixture
def pictures(tmp_path):
    """Three pictures of two patients in odd places, with splits."""
    rows = ["image,rater,label,patient,split"]
    for number, (patient, split) in enumerate((("p", "train"), ("p", "train"), ("q", "Testing"))):
        Image.fromarray(values(number, 256)).save(tmp_path / f"scan {number}.png")
        for rater in ("ann", "bob")[: 1 + number % 2]:
            Image.fromarray(values(10 * number + len(rater), 2) * 255).save(tmp_path / f"{rater}-{number}.png")
            rows.append(f"scan {number}.png,{rater},{rater}-{number}.png,{patient},{split}")
    (tmp_path / "list.csv").write_text("\n".join(rows))
    return tmp_path / "list.csv"


def test_pictures_keep_patients_and_splits(pictures, tmp_path, cli):
    code, out, err = cli("prepare", "table", pictures, tmp_path / "data")
    assert code == 0, err
    assert "annotators: ann, bob" in out
    dataset = Dataset.open(tmp_path / "data")
    assert dataset.splits == {"train": ["p"], "test": ["q"]}
    assert [case["case"] for case in dataset.cases] == ["scan 0", "scan 1", "scan 2"]
    assert dataset.valid.tolist() == [[True, False], [True, True], [True, False]]
    np.testing.assert_array_equal(dataset.images[2, 0], values(2, 256))
    np.testing.assert_array_equal(dataset.labels[1, 1], values(13, 2))


def test_volumes_are_sliced(tmp_path, cli):
    rows = ["image,rater,label,split"]
    for case, split in (("a", "train"), ("b", "val"), ("c", "test")):
        write_nifti(tmp_path / case / "t2.nii.gz", Volume(values(ord(case), 200, (6, 8, 2)), AFFINE))
        write_nifti(tmp_path / "drawn" / f"{case}.nii", Volume(values(ord(case), 3, (6, 8, 2)), AFFINE))
        rows.append(f"{case}/t2.nii.gz,me,drawn/{case}.nii,{split}")
    (tmp_path / "list.csv").write_text("\n".join(rows))
    words = ["--values", "2:1", "--classes", "background", "gland", "--modality", "MR"]
    code, out, err = cli("prepare", "table", tmp_path / "list.csv", tmp_path / "data", *words, "--dry-run")
    assert (code, (tmp_path / "data").exists()) == (0, False), err
    assert "b, split val: 2 x 8 x 6 voxels of 3 x 1 x 1 mm, 1 annotator" in out
    code, _, err = cli("prepare", "table", tmp_path / "list.csv", tmp_path / "data", *words)
    assert code == 0, err
    dataset = Dataset.open(tmp_path / "data")
    assert dataset.splits == {"train": ["a"], "val": ["b"], "test": ["c"]}
    assert dataset.info.modality == "MR"
    np.testing.assert_array_equal(dataset.labels[2, 0], values(ord("b"), 3, (6, 8, 2))[:, :, 0].T > 0)


@pytest.mark.parametrize("separator", [";", "\t"])
def test_table_of_a_spreadsheet_is_read(tmp_path, separator):
    rows = [["Image", "Rater", "Label"], ["a.png", "r", "b,c.png"]]
    (tmp_path / "list.csv").write_text("\n".join(map(separator.join, rows)))
    (case,) = find_in_table(tmp_path / "list.csv").cases
    assert case.labels == {"r": tmp_path / "b,c.png"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("picture,rater,label\na.png,r,b.png", "columns picture, rater, label, but not image;"),
        ("image,mask\na.png,b.png", "columns image, mask, but not rater, label;"),
        ("image,rater,label\n", "has no rows"),
        ("image,rater,label\na.png,,b.png", "line 2: image, rater or label is empty"),
        ("image,rater,label\na.png,r,b.png\na.png,r,c.png", "line 3: a second label of annotator 'r'"),
        ("image,rater,label,patient\na.png,r,b.png,p\na.png,s,c.png,q", "line 3: another patient"),
        ("image,rater,label,patient,split\na.png,r,c.png,p,train\nb.png,r,d.png,p,test", "tested on training"),
    ],
)
def test_invalid_table_error_names_the_line(tmp_path, text, message):
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        find_in_table(tmp_path / "list.csv")


@pytest.mark.parametrize(
    ("words", "message"), [(["--spacing", "0.6"], "for NIfTI files"), (["--size", "big"], "not a size in pixels")]
)
def test_options_of_the_other_kind_are_rejected(pictures, tmp_path, cli, words, message):
    code, _, err = cli("prepare", "table", pictures, tmp_path / "data", *words)
    assert code == 2
    assert message in err


def test_missing_file_skips_its_case(pictures, tmp_path, cli):
    (tmp_path / "ann-0.png").unlink()
    code, _, err = cli("prepare", "table", pictures, tmp_path / "data")
    assert code == 0, err
    assert "ann-0.png cannot be read" in err
    assert "1 of 3 cases skipped" in err

"""Reading samples of volumes: slices of all cases one after the other, one array per case, one folder per case."""

import nibabel
import numpy as np
import pytest

from phiseg.core.errors import DataError
from phiseg.evaluation.sample_files import open_samples, read_cases
from phiseg.imaging.nifti_files import write_nifti_sequence
from phiseg.imaging.volume import Volume

DEPTHS = {"a": 4, "b": 1, "c": 3}
NUM_SAMPLES, SIZE = 2, (5, 6)


@pytest.fixture
def volumes():
    """Labels of two samples (S, D, H, W) by case."""
    rng = np.random.default_rng(0)
    return {name: rng.integers(0, 2, (NUM_SAMPLES, depth, *SIZE), dtype=np.uint8) for name, depth in DEPTHS.items()}


def write_cases(folder, *, with_depth=True):
    lines = ["case,depth", *(f"{name},{depth}" for name, depth in DEPTHS.items())] if with_depth else list(DEPTHS)
    (folder / "cases.csv").write_text("\n".join(lines) + "\n")


def read(path, **options):
    given = open_samples(path, dims=3, **options)
    return {name: entry() for name, entry in zip(given.names, given.entries, strict=True)}


def test_slices_of_all_volumes_one_after_the_other(volumes, tmp_path):
    np.save(tmp_path / "labels.npy", np.concatenate([labels.swapaxes(0, 1) for labels in volumes.values()]))
    probs = {name: np.stack([1 - labels, labels], 1).astype(np.float32) for name, labels in volumes.items()}
    np.save(tmp_path / "probs.npy", np.concatenate([np.moveaxis(one, 2, 0) for one in probs.values()]))
    write_cases(tmp_path)
    for name, arrays in read(tmp_path).items():
        np.testing.assert_array_equal(arrays["labels"], volumes[name])
        np.testing.assert_array_equal(arrays["probs"], probs[name])
    for name, arrays in read(tmp_path / "probs.npy").items():
        np.testing.assert_array_equal(arrays["probs"], probs[name])
    write_cases(tmp_path, with_depth=False)
    with pytest.raises(DataError, match=r"one after the other; give their numbers in cases.csv"):
        read(tmp_path)


def test_wrong_number_of_slices_is_refused(volumes, tmp_path):
    stacked = np.concatenate([labels.swapaxes(0, 1) for labels in volumes.values()])
    np.save(tmp_path / "labels.npy", stacked[:-1])
    write_cases(tmp_path)
    with pytest.raises(DataError, match=r"different numbers of cases \(labels 7, the list of cases 8\)"):
        read(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        'a\nb 1\n"c,d"\n',
        '\ufeffa\r\nb 1\r\n"c,d"\r\n\r\n',
        ' a \n\nb 1\n"c,d"\n',
        'case,depth\na,4\nb 1,1\n"c,d",3\n',
        "\ufeffdepth;case\r\n4;a\r\n1;b 1\r\n3;c,d\r\n",
        "patient\tcase\tdepth\nx\ta\t4\nx\t b 1 \t 1\nx\tc,d\t3\n",
    ],
    ids=["list", "list of Windows", "list with spaces", "commas", "semicolons", "tabs"],
)
def test_names_of_cases_are_read_as_spreadsheets_and_editors_write_them(text, tmp_path):
    (tmp_path / "names").write_bytes(text.encode())
    found = read_cases(tmp_path / "names")
    assert found.names == ["a", "b 1", "c,d"]
    assert found.depths == ([4, 1, 3] if "depth" in text else None)


def test_row_without_depth_does_not_match(volumes, tmp_path):
    np.save(tmp_path / "labels.npy", np.concatenate([labels.swapaxes(0, 1) for labels in volumes.values()]))
    (tmp_path / "cases.csv").write_text("case,depth\na,4\nb\nc,3\n")
    with pytest.raises(DataError, match=r"different numbers of cases \(labels 8, the list of cases 7\)"):
        read(tmp_path)


def test_volumes_by_case(volumes, tmp_path):
    np.savez(tmp_path / "x.npz", **volumes)
    for name, arrays in read(tmp_path / "x.npz").items():
        np.testing.assert_array_equal(arrays["labels"], volumes[name])


def test_volumes_of_equal_depth_in_one_array(volumes, tmp_path):
    np.save(tmp_path / "x.npy", np.stack([volumes["a"], volumes["a"][::-1]]))
    (first, second) = open_samples(tmp_path / "x.npy", dims=3).entries
    np.testing.assert_array_equal(first()["labels"], volumes["a"])
    np.testing.assert_array_equal(second()["labels"], volumes["a"][::-1])


def test_nifti_volumes_are_read_by_their_orientation(volumes, tmp_path):
    """Axial slices (D, H, W) are stored as (x, y, z) with LPS directions, as by SimpleITK, or all in one file."""
    affine = np.diag([-0.5, -0.5, 2, 1])
    for name, labels in volumes.items():
        (tmp_path / "single" / name).mkdir(parents=True)
        for number, mask in enumerate(labels):
            path = tmp_path / "single" / name / f"sample_{number}.nii.gz"
            nibabel.save(nibabel.Nifti1Image(mask.T, affine), path)
        (tmp_path / "joint" / name).mkdir(parents=True)
        path = tmp_path / "joint" / name / "samples.nii.gz"
        write_nifti_sequence(path, (Volume(mask.T, affine) for mask in labels), number=NUM_SAMPLES)
    for kind in ("single", "joint"):
        for name, arrays in read(tmp_path / kind, plane="axial").items():
            np.testing.assert_array_equal(arrays["labels"], volumes[name])


@pytest.mark.parametrize(
    "arrays", [{"labels": (1, 2, *SIZE)}, {"a": (2, *SIZE), "b": (2, *SIZE)}], ids=["labels", "cases"]
)
def test_damaged_archive_is_refused(arrays, tmp_path):
    """Whatever byte is damaged, the error is one of ours, or the archive is still readable."""
    rng = np.random.default_rng(0)
    path = tmp_path / "samples.npz"
    np.savez_compressed(path, **{name: rng.integers(0, 2, shape, dtype=np.uint8) for name, shape in arrays.items()})
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        try:
            for entry in open_samples(path, dims=2, cases=["a"]).entries:
                entry()
        except DataError:
            refused += 1
    assert refused > len(whole) // 6

"""Volumes from NIfTI files and from LIDC-IDRI: the same voxels as slices, joined in order."""

import numpy as np
import pytest

from helpers.lidc_source import LidcSource, disc
from phiseg.core.errors import ConfigError, DataError
from phiseg.data.prepare.lidc import prepare_lidc
from phiseg.data.prepare.lidc_series import LidcOptions
from phiseg.data.prepare.nifti import prepare_nifti
from phiseg.data.prepare.nifti_slices import Slicing
from phiseg.imaging.nifti_files import write_nifti
from phiseg.imaging.volume import Volume

PLAIN = np.diag([-1.0, -0.5, 3.0, 1.0])  # L, P, S: an axial slice is values[:, :, k].T
DEPTHS = {"p1": 4, "p2": 7, "p3": 5}


def nifti_values(case, rater=None):
    rng = np.random.default_rng([*case.encode(), *(rater or "").encode()])
    shape = (12, 10, DEPTHS[case])
    return rng.integers(0, 2, shape).astype(np.uint8) if rater else rng.normal(100, 20, shape).astype(np.float32)


@pytest.fixture
def nifti_source(tmp_path):
    """Three scans of different depth; rater bo is missing in p2."""
    for case in DEPTHS:
        folder = tmp_path / "src" / case
        write_nifti(folder / "image.nii.gz", Volume(nifti_values(case), PLAIN))
        for rater in ("al", "bo") if case != "p2" else ("al",):
            write_nifti(folder / f"rater-{rater}.nii.gz", Volume(nifti_values(case, rater), PLAIN))
    return tmp_path / "src"


def prepare(source, out="out", **options):
    slicing = Slicing(volumes=True, **options)
    return prepare_nifti(source, source.parent / out, slicing=slicing, progress=False)


def test_nifti_volumes_contain_the_voxels_of_the_scans(nifti_source):
    dataset = prepare(nifti_source, window=(0, 200))
    assert dataset.dims == 3
    assert [case["case"] for case in dataset.cases] == ["p1", "p2", "p3"]
    for row, (case, depth) in enumerate(DEPTHS.items()):
        assert dataset.size(row) == (depth, 10, 12)
        np.testing.assert_array_equal(dataset.stored_image(row)[0], nifti_values(case).T)
        assert dataset.voxel_spacing_mm(row) == (3.0, 0.5, 1.0)
        raters = ["al"] if case == "p2" else ["al", "bo"]
        expected = np.stack([nifti_values(case, rater).T for rater in raters])
        np.testing.assert_array_equal(dataset.annotations(row), expected)
    assert dataset.valid.tolist() == [[True, True], [True, False], [True, True]]
    assert dataset.info.plane == "axial"


def test_nifti_volumes_equal_the_slices(nifti_source):
    options = {"plane": "coronal", "spacing": 0.8, "size": (8, 9)}
    volumes = prepare(nifti_source, **options)
    slices = prepare_nifti(nifti_source, nifti_source.parent / "s", slicing=Slicing(**options), progress=False)
    np.testing.assert_array_equal(volumes.images, slices.images)
    np.testing.assert_array_equal(volumes.labels, slices.labels)
    first = {case["scan"]: case for case in reversed(slices.cases)}
    for case in volumes.cases:
        for column in ("x_mm", "y_mm", "z_mm", "row_spacing_mm", "origin_row"):
            assert case[column] == first[case["scan"]][column]
        assert case["slice_spacing_mm"] == "0.5"


@pytest.mark.parametrize(
    ("options", "message"),
    [({"slices": "annotated"}, "use --slices all"), ({"plane": "auto"}, "--volumes needs one plane")],
)
def test_unsuitable_slicing_of_volumes_is_rejected(options, message):
    with pytest.raises(ConfigError, match=message):
        Slicing(volumes=True, **options)


def test_command_writes_nifti_volumes(nifti_source, tmp_path, cli):
    result = cli("prepare", "nifti", nifti_source, tmp_path / "data", "--volumes", "--workers", "1")
    assert result.code == 0
    assert "3 cases of 3 patients" in result.out
    assert "4 to 7 slices of 10 x 12 pixels" in result.out


@pytest.fixture
def lidc_source(tmp_path):
    source = LidcSource(tmp_path / "LIDC-IDRI")
    first = {20: disc(20, 30, 3), 25: disc(20, 34, 2)}
    source.patient("P1", [[first, {10: disc(40, 40, 3)}], [{20: disc(20, 30, 2)}], []], depths=range(0, 50, 5))
    source.patient("P2", [[{5: disc(20, 30, 3), 15: disc(20, 30, 3)}]])  # nobody outlined z = 10
    return source


def prepare_nodules(source, out, **options):
    options = LidcOptions(size=32, **options)
    return prepare_lidc(source.root, source.root.parent / out, options=options, progress=False)


def test_lidc_volumes_are_the_joined_slices(lidc_source):
    volumes, slices = (prepare_nodules(lidc_source, str(v), margin=2, volumes=v) for v in (True, False))
    np.testing.assert_array_equal(volumes.images, slices.images)
    np.testing.assert_array_equal(volumes.labels, slices.labels)
    assert [volumes.depth(row) for row in range(3)] == [5, 6, 5]
    names = [case["case"] for case in volumes.cases]
    assert names == list(dict.fromkeys(case["case"].rpartition("-s")[0] for case in slices.cases))
    for row, case in enumerate(volumes.cases):
        before = slices.cases[volumes.starts[row]]
        assert volumes.voxel_spacing_mm(row) == (5.0, 0.7, 0.7)
        assert [case["first_slice"], case["first_slice_z_mm"]] == [before["slice"], before["slice_z_mm"]]
        assert [case[name] for name in ("nodule", "origin_x", "readers")] == [
            before[name] for name in ("nodule", "origin_x", "readers")
        ]
    assert volumes.valid.tolist()[0] == [True, True, True, False]


def test_lidc_volume_without_margin_has_no_gap(lidc_source):
    dataset = prepare_nodules(lidc_source, "data", volumes=True)
    assert [dataset.depth(row) for row in range(3)] == [1, 2, 3]
    assert dataset.voxel_spacing_mm(0) == (5.0, 0.7, 0.7)  # of the series, although there is only one slice
    assert dataset.annotations(2).any((2, 3)).tolist()[0] == [True, False, True]


@pytest.mark.parametrize("damage", ["missing", "unreadable"])
def test_lidc_nodule_with_a_missing_slice_is_skipped(damage, lidc_source, capfd):
    path = lidc_source.folder("P2") / "000002.dcm"
    path.unlink()
    if damage == "unreadable":
        lidc_source.dicom(path, patient="P2", z=10, instance=2, PixelData=b"")
    dataset = prepare_nodules(lidc_source, "data", volumes=True)
    assert {case["patient"] for case in dataset.cases} == {"P1"}
    assert "a slice is missing, so it cannot be a volume" in capfd.readouterr().err
    assert any("a slice is missing" in reason for reason in dataset.info.source["left_out"])


def test_lidc_volumes_need_all_slices():
    with pytest.raises(ConfigError, match="--volumes requires all slices"):
        LidcOptions(volumes=True, slices="largest")


def test_lidc_without_usable_volume_is_rejected(tmp_path):
    source = LidcSource(tmp_path / "LIDC-IDRI")
    folder = source.patient("P2", [[{5: disc(20, 30, 3), 15: disc(20, 30, 3)}]])
    source.dicom(folder / "000002.dcm", patient="P2", z=10, instance=2, PixelData=b"")
    with pytest.raises(DataError, match="no usable case"):
        prepare_nodules(source, "data", volumes=True)

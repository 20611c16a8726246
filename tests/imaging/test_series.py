"""Reading a DICOM series as a volume: geometry and errors."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import SimpleITK
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from helpers.dicom_slices import (
    AXIAL,
    COLUMNS,
    CORONAL,
    OBLIQUE,
    ORIGIN,
    ROWS,
    SAGITTAL,
    SPACING,
    file_name,
    write_scan,
)
from phiseg.core.errors import DataError
from phiseg.imaging.nifti_files import read_nifti, write_nifti
from phiseg.imaging.series import read_series

PLANES = {"axial": AXIAL, "coronal": CORONAL, "sagittal": SAGITTAL, "oblique": OBLIQUE}


def itk_series(folder, uid=""):
    """Read a series with SimpleITK; returns the image and its files."""
    reader = SimpleITK.ImageSeriesReader()
    names = reader.GetGDCMSeriesFileNames(str(folder), uid)
    reader.SetFileNames(names)
    return reader.Execute(), names


def assert_same_as_itk(series, image, tolerance):
    """Compare values exactly, and the positions of all corners in millimetres."""
    values = SimpleITK.GetArrayViewFromImage(image)  # (K, J, I)
    np.testing.assert_array_equal(series.volume.values.transpose(2, 1, 0), values)
    np.testing.assert_allclose(series.volume.spacing_mm, image.GetSpacing(), atol=tolerance)
    for corner in np.ndindex(2, 2, 2):
        voxel = [int(end * (n - 1)) for end, n in zip(corner, series.volume.grid, strict=True)]
        x, y, z = image.TransformIndexToPhysicalPoint(voxel)
        np.testing.assert_allclose(series.volume.world(np.array(voxel)), (-x, -y, z), atol=tolerance)


@pytest.mark.parametrize("patient", ["LIDC-IDRI-0003", "LIDC-IDRI-0013"])
def test_read_series_of_real_scans_matches_itk(shared_data, patient):
    """Values, spacing, origin, directions and the order of the files."""
    folder = next((shared_data("lidc_dicom") / patient).rglob("*.dcm")).parent
    series = read_series(folder)
    image, names = itk_series(folder)
    assert_same_as_itk(series, image, tolerance=1e-6)
    assert series.files == tuple(Path(name) for name in names)
    assert (series.modality, series.warnings) == ("CT", ())
    assert series.volume.values.dtype == np.float32


@pytest.mark.parametrize("plane", PLANES)
def test_read_series_of_any_orientation_matches_itk(tmp_path, plane):
    write_scan(tmp_path, directions=PLANES[plane])
    series = read_series(tmp_path)
    assert series.volume.grid == (COLUMNS, ROWS, 5)
    assert_same_as_itk(series, itk_series(tmp_path)[0], tolerance=1e-5)


@settings(max_examples=20)
@given(angles=st.tuples(*[st.floats(-180, 180)] * 3), distance=st.floats(0.3, 8), count=st.integers(1, 6))
def test_read_series_follows_dicom_geometry(tmp_path_factory, angles, distance, count):
    """Equation C.7.6.2.1-1 for every pixel of every slice, and a round trip through NIfTI."""
    folder = tmp_path_factory.mktemp("scan")
    turned = Rotation.from_euler("xyz", angles, degrees=True).as_matrix().round(9)
    along_row, along_column = turned[:, 0], turned[:, 1]
    axes = {"directions": (along_row, along_column), "distance": distance, "SliceThickness": distance}
    raw = write_scan(folder, depths=range(count), **axes)
    series = read_series(folder)
    places = np.empty((*series.volume.grid, 3))
    for i, j, k in np.ndindex(series.volume.grid):
        slice_origin = ORIGIN + np.cross(along_row, along_column) * distance * k
        x, y, z = slice_origin + along_row * SPACING[1] * i + along_column * SPACING[0] * j
        places[i, j, k] = -x, -y, z
    voxels = np.stack(np.indices(series.volume.grid), axis=-1)
    np.testing.assert_allclose(series.volume.world(voxels), places, atol=1e-5)
    np.testing.assert_array_equal(series.volume.values, raw.transpose(2, 1, 0) * 2.0 - 1000)
    assert [path.name for path in series.files] == [file_name(number) for number in range(count)]
    write_nifti(folder / "scan.nii.gz", series.volume)
    np.testing.assert_allclose(read_nifti(folder / "scan.nii.gz").affine, series.volume.affine, atol=1e-4)


def test_read_series_ignores_other_files_and_subfolders(tmp_path):
    write_scan(tmp_path / "scan")
    write_scan(tmp_path / "scan" / "below", uid="1.9")
    (tmp_path / "scan" / "notes.txt").write_text("hello")
    (tmp_path / "scan" / ".hidden.dcm").write_text("hello")
    series = read_series(tmp_path / "scan")
    assert (len(series.files), series.uid, series.warnings) == (5, "1.2.3", ())


def test_read_series_selects_series_by_uid(tmp_path):
    write_scan(tmp_path)
    write_scan(tmp_path, uid="1.9", depths=range(3), Modality="MR")
    write_scan(tmp_path, uid="2.1", depths=range(1), Modality="SEG")  # not a scan, so never a candidate
    with pytest.raises(DataError, match=r"2 series: 1\.2\.3 \(CT, 5 slices\), 1\.9 \(MR, 3 slices\); choose one"):
        read_series(tmp_path)
    chosen = read_series(tmp_path, series_uid="1.9")
    assert (chosen.uid, chosen.modality, chosen.volume.grid) == ("1.9", "MR", (COLUMNS, ROWS, 3))
    with pytest.raises(DataError, match=r"does not contain series 1\.7, but 1\.2\.3 \(CT, 5 slices\), 1\.9"):
        read_series(tmp_path, series_uid="1.7")


def test_read_series_ignores_series_without_slices(tmp_path):
    write_scan(tmp_path)
    write_scan(tmp_path, uid="1.9", depths=range(1), Modality="SEG")
    assert read_series(tmp_path).uid == "1.2.3"
    with pytest.raises(DataError, match="no slices with a position"):
        read_series(tmp_path, series_uid="1.9")


def test_read_series_rejects_folders_without_scan(tmp_path):
    with pytest.raises(DataError, match="is not a directory; pass"):
        read_series(tmp_path / "nowhere")
    with pytest.raises(DataError, match="contains no DICOM file; pass"):
        read_series(tmp_path)
    (tmp_path / "broken.dcm").write_text("hello")
    with pytest.raises(DataError, match=r"no readable DICOM file: .*broken\.dcm is not a DICOM file"):
        read_series(tmp_path)
    write_scan(tmp_path / "radiograph", depths=range(1), Modality="DX")
    with pytest.raises(DataError, match=r"no slices with a position .* only 1\.2\.3 \(DX, 0 slices\); pass a CT"):
        read_series(tmp_path / "radiograph")
    write_scan(tmp_path / "enhanced", depths=range(1), ImagePositionPatient=None)
    with pytest.raises(DataError, match=r"ImagePositionPatient.* \(convert multi-frame files first\)"):
        read_series(tmp_path / "enhanced")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ImageOrientationPatient": [1, 0, 0, 0, 0, -1]}, r"different orientation: 1\.2\.3-\d\d\.dcm and"),
        ({"PixelSpacing": [0.8, 0.6]}, r"different pixel spacing: 0\.8 x 0\.[56] mm in .*, 0\.8 x 0\.[56] mm in"),
        ({"Rows": 3, "Columns": 14}, r"1\.2\.3-10\.dcm has 3 x 14 pixels, but 1\.2\.3-03\.dcm has 6 x 7"),
        ({"PixelData": None}, r"1\.2\.3-10\.dcm has no pixel data"),
    ],
)
def test_read_series_rejects_inconsistent_slice(tmp_path, changes, message):
    write_scan(tmp_path, depths=range(3))
    write_scan(tmp_path / "others", depths=range(4), **changes)
    shutil.copy(tmp_path / "others" / file_name(3), tmp_path)
    with pytest.raises(DataError, match=message):
        read_series(tmp_path)


@pytest.mark.parametrize("name", ["RescaleSlope", "RescaleIntercept"])
def test_empty_rescale_parameter_is_the_default_except_in_ct(tmp_path, name):
    raw = write_scan(tmp_path / "mr", Modality="MR", **{name: ""})
    slope, intercept = (1, -1000) if name == "RescaleSlope" else (2, 0)
    np.testing.assert_array_equal(read_series(tmp_path / "mr").volume.values, raw.T * float(slope) + intercept)
    write_scan(tmp_path / "ct", **{name: ""})
    with pytest.raises(DataError, match=rf"has an empty {name}, so its Hounsfield units are unknown; correct"):
        read_series(tmp_path / "ct")


def test_read_series_rejects_duplicate_positions(tmp_path):
    write_scan(tmp_path, depths=[0, 1, 1.004, 2])
    message = r"4 slices at 3 positions: 1\.2\.3-07\.dcm and 1\.2\.3-03\.dcm are both at 42\.00 mm; keep one"
    with pytest.raises(DataError, match=message):
        read_series(tmp_path)


@pytest.mark.parametrize("directions", [AXIAL, OBLIQUE])
@pytest.mark.parametrize("depths", [[0, 1, 4, 5], [0, 1, 4], [0, 3, 4]])
def test_read_series_reports_missing_slices(tmp_path, directions, depths):
    write_scan(tmp_path, directions=directions, depths=depths)
    before = depths.index(4) - 1 if 1 in depths else 0
    message = (
        rf"seems to lack 2 slices: {file_name(before)} at -?[\d.]+ mm and {file_name(before + 1)} at -?[\d.]+ mm "
        r"are 6\.000 mm apart, others 2\.000 mm \(2 slices missing in total\)"
    )
    with pytest.raises(DataError, match=message):
        read_series(tmp_path)


def test_read_series_counts_missing_slices_of_all_gaps(tmp_path):
    write_scan(tmp_path, depths=[0, 1, 2, 4, 5, 8])
    with pytest.raises(DataError, match=r"seems to lack 2 slices: .* \(3 slices missing in total\)"):
        read_series(tmp_path)


@pytest.mark.parametrize(
    ("depths", "sound"),
    [
        ([0, 1.1, 2, 3, 4], True),
        ([0, 1.2, 2, 3, 4], False),
        ([0, 1.05, 2.1, 3.15, 4.2], True),  # different spacing, but even
        ([0, 1, 2, 3.45, 4.45, 5.45], False),
        ([0, 1, 1.4, 2, 3, 4], False),
    ],
)
def test_read_series_tolerates_a_tenth_of_the_spacing(tmp_path, depths, sound):
    write_scan(tmp_path, depths=depths)
    if sound:
        np.testing.assert_allclose(read_series(tmp_path).volume.spacing_mm, (0.5, 0.8, depths[-1] / 4 * 2))
    else:
        with pytest.raises(DataError, match="unevenly spaced slices"):
            read_series(tmp_path)


def rounded_scan(folder, numbers, start):
    """Write slices with a spacing of 0.625 mm and positions rounded to 0.1 mm."""
    depths = [round(start + 0.625 * number, 1) for number in numbers]
    write_scan(folder, depths=numbers, ImagePositionPatient=lambda number: [*ORIGIN[:2], depths[number]])
    return np.diff(depths)


@pytest.mark.parametrize("start", [0.0, -101.27, 7.04])
def test_read_series_handles_rounded_positions(tmp_path, start):
    distances = rounded_scan(tmp_path / "whole", range(10), start)
    assert np.ptp(distances) > 0.09  # 0.6 and 0.7
    np.testing.assert_allclose(read_series(tmp_path / "whole").volume.spacing_mm[2], 0.625, atol=0.02)
    for lacking in (1, 5, 8):
        folder = tmp_path / f"without {lacking}"
        rounded_scan(folder, [number for number in range(10) if number != lacking], start)
        with pytest.raises(DataError, match=r"seems to lack 1 slice: .* \(1 slice missing in total\)"):
            read_series(folder)
    rounded_scan(tmp_path / "doubled", [*range(10), 4], start)
    with pytest.raises(DataError, match="11 slices at 10 positions"):
        read_series(tmp_path / "doubled")


@pytest.mark.parametrize("directions", [AXIAL, OBLIQUE])
def test_read_series_rejects_gantry_tilt(tmp_path, directions):
    sideways = np.array(directions[1])
    write_scan(tmp_path / "tilted", directions=directions, skew=sideways * 2 * np.tan(np.radians(10)))
    with pytest.raises(DataError, match=r"tilted scan: .* sideways by 1\.4 mm over 8\.0 mm \(10\.0 degrees"):
        read_series(tmp_path / "tilted")
    write_scan(tmp_path / "hair", directions=directions, skew=sideways * 0.01, distance=2.0)  # 0.3 degrees
    x, y, z = ORIGIN + (np.cross(*directions) * 2 + sideways * 0.01) * 4
    last = read_series(tmp_path / "hair").volume.world(np.array([0, 0, 4]))
    np.testing.assert_allclose(last, (-x, -y, z), atol=1e-6)


def test_read_series_rejects_shifted_slice(tmp_path):
    write_scan(
        tmp_path, ImagePositionPatient=lambda k: [ORIGIN[0] + (0.3 if k == 2 else 0), ORIGIN[1], ORIGIN[2] + 2 * k]
    )
    with pytest.raises(DataError, match=r"sideways by 0\.3 mm over 4\.0 mm"):
        read_series(tmp_path)


def test_read_series_reports_unreadable_files(tmp_path):
    write_scan(tmp_path)
    (tmp_path / file_name(4)).write_bytes(b"damaged")
    series = read_series(tmp_path)
    assert len(series.files) == 4
    assert len(series.warnings) == 1
    assert file_name(4) in series.warnings[0]
    (tmp_path / file_name(2)).write_bytes(b"damaged")
    message = rf"seems to lack 1 slice: .*could not be read: .*{file_name(2)} is not a DICOM file"
    with pytest.raises(DataError, match=message):
        read_series(tmp_path)


@pytest.mark.parametrize(("stated", "expected"), [(3.0, 3), (lambda number: 1.0 + number % 3, 3), (None, None)])
def test_read_series_returns_the_largest_thickness(tmp_path, stated, expected):
    write_scan(tmp_path, distance=2.0, SliceThickness=stated)
    series = read_series(tmp_path)
    assert series.thickness_mm == expected
    assert series.volume.spacing_mm[2] == pytest.approx(2)


def test_read_series_single_slice_uses_header_thickness(tmp_path):
    write_scan(tmp_path / "known", depths=range(1), directions=OBLIQUE)
    known = read_series(tmp_path / "known")
    np.testing.assert_allclose(known.volume.spacing_mm, (0.5, 0.8, 3.0))
    assert known.warnings == ()
    write_scan(tmp_path / "unknown", depths=range(1), SliceThickness=None)
    unknown = read_series(tmp_path / "unknown")
    np.testing.assert_allclose(unknown.volume.spacing_mm, (0.5, 0.8, 1.0))
    assert "unknown thickness; 1 mm is assumed" in unknown.warnings[0]

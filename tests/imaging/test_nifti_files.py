"""NIfTI files: round trips, and errors with the name of the file."""

import gzip
import logging
import struct

import nibabel
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phiseg.core.errors import DataError
from phiseg.imaging.nifti_files import (
    read_nifti,
    read_nifti_header,
    read_nifti_labels,
    write_nifti,
    write_nifti_sequence,
)
from phiseg.imaging.volume import Volume

AFFINE = np.array([[-0.6, 0.1, 0, 30.0], [0.1, 0.6, 0.2, -20], [0, -0.1, 3.0, 7], [0, 0, 0, 1]])


def save(path, values, affine=AFFINE, *, slope=None, inter=0.0, kind=nibabel.Nifti1Image):
    image = kind(values, affine, dtype=values.dtype)
    if slope is not None:
        image.header.set_slope_inter(slope, inter)
    nibabel.save(image, path)
    return path


def ramp(shape=(3, 4, 5), dtype=np.int16):
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("shape", [(3, 4, 5), (3, 4, 5, 2)])
def test_write_nifti_round_trip(tmp_path, name, dtype, shape):
    volume = Volume(ramp(shape, dtype), AFFINE)
    write_nifti(tmp_path / name, volume)
    back = read_nifti(tmp_path / name, channels=len(shape) == 4)
    assert back.values.dtype == dtype
    np.testing.assert_array_equal(back.values, volume.values)
    np.testing.assert_allclose(back.affine, AFFINE, atol=1e-6)  # NIfTI stores single precision
    header = nibabel.load(tmp_path / name).header
    assert (header["sform_code"], header["qform_code"]) == (1, 1)
    assert header.get_xyzt_units()[0] == "mm"


@pytest.mark.parametrize(("unit", "scale"), [("micron", 1e-3), ("meter", 1e3), ("mm", 1), ("unknown", 1)])
def test_units_of_length_are_converted_to_mm(tmp_path, unit, scale):
    image = nibabel.Nifti1Image(ramp(), AFFINE, dtype=np.int16)
    image.header.set_xyzt_units(unit, "sec")
    nibabel.save(image, tmp_path / "a.nii.gz")
    np.testing.assert_allclose(read_nifti(tmp_path / "a.nii.gz").affine[:3], AFFINE[:3] * scale, rtol=1e-6)


@pytest.mark.parametrize("shape", [(40000, 2, 1), (2, 40000, 1, 3)])
def test_axes_too_long_for_nifti1_are_written_as_nifti2(tmp_path, shape):
    volume = Volume(ramp(shape, np.uint8), AFFINE)
    write_nifti(tmp_path / "a.nii.gz", volume)
    assert isinstance(nibabel.load(tmp_path / "a.nii.gz"), nibabel.Nifti2Image)
    back = read_nifti(tmp_path / "a.nii.gz", channels=len(shape) == 4)
    np.testing.assert_array_equal(back.values, volume.values)
    np.testing.assert_allclose(back.affine, AFFINE)
    single = Volume(ramp(shape[:3], np.uint8), AFFINE)
    write_nifti_sequence(tmp_path / "b.nii.gz", [single] * 2, number=2)
    np.testing.assert_array_equal(read_nifti(tmp_path / "b.nii.gz", channels=True).values[..., 1], single.values)


def test_write_nifti_is_reproducible_and_atomic(tmp_path):
    for name in ("a.nii.gz", "b.nii.gz"):
        write_nifti(tmp_path / name, Volume(ramp(dtype=bool), AFFINE))
    assert (tmp_path / "a.nii.gz").read_bytes() == (tmp_path / "b.nii.gz").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.nii.gz", "b.nii.gz"]
    assert read_nifti(tmp_path / "a.nii.gz").values.dtype == np.uint8


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32])
def test_write_nifti_sequence_equals_4d_file(tmp_path, name, dtype):
    values = np.random.default_rng(0).integers(0, 9, (5, 4, 3, 7)).astype(dtype)
    write_nifti_sequence(tmp_path / name, (Volume(values[..., index], AFFINE) for index in range(7)), number=7)
    write_nifti(tmp_path / f"whole-{name}", Volume(values, AFFINE))
    assert (tmp_path / name).read_bytes() == (tmp_path / f"whole-{name}").read_bytes()


BOXES = [(slice(1, 3), slice(2, 5), slice(1, 4)), (slice(0, 6), slice(0, 7), slice(4, 5)), (slice(None),) * 3]


@pytest.mark.parametrize("box", BOXES, ids=["inside", "at the borders", "everything"])
@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_write_nifti_with_box_round_trip(tmp_path, name, dtype, box):
    values = np.zeros((6, 7, 5, 2), dtype)
    values[box] = np.random.default_rng(0).integers(0, 9, values[box].shape)
    values[:, :, 2] = 0  # an empty slice in the box
    write_nifti(tmp_path / name, Volume(values, AFFINE, box))
    np.testing.assert_array_equal(read_nifti(tmp_path / name, channels=True).values, values)


def test_write_nifti_reads_only_the_box(tmp_path):
    values = np.ones((6, 7, 5), np.uint8)
    write_nifti(tmp_path / "a.nii.gz", Volume(values, AFFINE, BOXES[0]))
    found = read_nifti(tmp_path / "a.nii.gz").values
    assert found.sum() == found[:, 2:5, 1:4].sum() == 6 * 3 * 3


def test_read_nifti_applies_scaling(tmp_path):
    path = save(tmp_path / "ct.nii.gz", ramp(), slope=2.0, inter=-1024.0)
    np.testing.assert_array_equal(read_nifti(path).values, ramp() * 2.0 - 1024)
    assert read_nifti_header(path).values.dtype == np.float64


def test_read_nifti_ignores_case_of_suffix(tmp_path):
    """Zeros, which compress to fewer bytes than the uncompressed size."""
    save(tmp_path / "scan.nii.gz", np.zeros((20, 20, 20), np.int16)).rename(tmp_path / "SCAN.NII.GZ")
    assert read_nifti(tmp_path / "SCAN.NII.GZ").values.shape == (20, 20, 20)


def test_read_nifti_reads_version_2_and_swapped_bytes(tmp_path):
    save(tmp_path / "two.nii.gz", ramp(), kind=nibabel.Nifti2Image)
    np.testing.assert_array_equal(read_nifti(tmp_path / "two.nii.gz").values, ramp())
    header = nibabel.Nifti1Header(endianness=">")
    header.set_data_dtype(">i2")
    nibabel.save(nibabel.Nifti1Image(ramp(), AFFINE, header), tmp_path / "big.nii")
    found = read_nifti(tmp_path / "big.nii").values
    np.testing.assert_array_equal(found, ramp())
    assert found.dtype.isnative


def test_read_nifti_normalises_dimensions(tmp_path):
    assert read_nifti(save(tmp_path / "a.nii", ramp((3, 4, 5, 1)))).values.shape == (3, 4, 5)
    assert read_nifti(save(tmp_path / "b.nii", ramp((3, 4)))).values.shape == (3, 4, 1)
    assert read_nifti(save(tmp_path / "c.nii", ramp((3, 4, 5))), channels=True).values.shape == (3, 4, 5, 1)
    assert read_nifti(save(tmp_path / "d.nii", ramp((3, 4, 5, 2, 1))), channels=True).values.shape == (3, 4, 5, 2)


def test_read_nifti_rejects_time_points(tmp_path):
    path = save(tmp_path / "four.nii.gz", ramp((3, 4, 5, 2)))
    with pytest.raises(DataError, match=r"four\.nii\.gz has 4 dimensions .*split it into 3D files"):
        read_nifti(path)
    path = save(tmp_path / "five.nii.gz", ramp((3, 4, 5, 1, 2)))
    with pytest.raises(DataError, match=r"five\.nii\.gz has 5 dimensions .*store channels in the fourth dimension"):
        read_nifti(path, channels=True)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_read_nifti_rejects_non_finite_voxels(tmp_path, bad):
    values = ramp(dtype=np.float32)
    values[1, 2, 3] = bad
    with pytest.raises(DataError, match=r"a\.nii has NaN or infinite voxels"):
        read_nifti(save(tmp_path / "a.nii", values))


def test_read_nifti_labels_accepts_integers_floats_and_scaling(tmp_path):
    labels = ramp() % 4
    for name, values, slope in (("i", labels, None), ("f", labels.astype("f4"), None), ("s", labels * 3, 1 / 3)):
        found = read_nifti_labels(save(tmp_path / f"{name}.nii.gz", values, slope=slope)).values
        np.testing.assert_array_equal(found, labels)
        assert found.dtype == np.int32


@pytest.mark.parametrize("value", [0.5, -1.25, 1e12])
def test_read_nifti_labels_rejects_non_integers(tmp_path, value):
    labels = (ramp() % 4).astype(np.float64)
    labels[0, 0, 3] = value
    with pytest.raises(
        DataError, match=rf"l\.nii contains {value:g}, which is not a class index".replace("+", r"\+")
    ):
        read_nifti_labels(save(tmp_path / "l.nii", labels))


@pytest.mark.parametrize("name", ["huge.nii", "huge.nii.gz"])
def test_read_nifti_rejects_header_larger_than_file(tmp_path, name):
    content = bytearray(nibabel.Nifti1Image(ramp(), AFFINE).to_bytes())
    content[40:56] = struct.pack("<8h", 3, 30000, 30000, 30000, 1, 1, 1, 1)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(
        DataError, match=rf"{name} is damaged: \d+ bytes are too few for the \(30000, 30000, 30000\)"
    ):
        read_nifti(tmp_path / name)


def test_read_nifti_header_returns_geometry_without_memory(tmp_path):
    found = read_nifti_header(save(tmp_path / "a.nii.gz", np.zeros((300, 300, 100), np.int16)))
    assert found.values.shape == (300, 300, 100)
    assert found.values.dtype == np.int16
    assert found.values.strides == (0, 0, 0)
    np.testing.assert_allclose(found.affine, AFFINE, atol=1e-6)


def test_read_nifti_rejects_invalid_affine(tmp_path):
    content = bytearray(nibabel.Nifti1Image(ramp(), AFFINE).to_bytes())
    content[280:328] = bytes(48)  # the three rows of the sform
    (tmp_path / "a.nii").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.nii has no valid position and spacing"):
        read_nifti(tmp_path / "a.nii")


def test_read_nifti_rejects_rgb(tmp_path):
    colours = np.zeros((3, 4, 5), dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")])
    nibabel.save(nibabel.Nifti1Image(colours, AFFINE), tmp_path / "rgb.nii")
    with pytest.raises(DataError, match=r"rgb\.nii has voxels of type .*not numbers"):
        read_nifti(tmp_path / "rgb.nii")


def test_read_nifti_rejects_missing_file_and_other_formats(tmp_path):
    with pytest.raises(DataError, match=r"no\.nii\.gz does not exist"):
        read_nifti(tmp_path / "no.nii.gz")
    nibabel.save(nibabel.MGHImage(ramp(dtype=np.int32), AFFINE), tmp_path / "a.mgz")
    with pytest.raises(DataError, match=r"a\.mgz is not a single-file NIfTI image"):
        read_nifti(tmp_path / "a.mgz")


def test_read_nifti_verifies_gzip_checksum(tmp_path):
    path = save(tmp_path / "a.nii.gz", ramp((30, 40, 5)))
    content = bytearray(path.read_bytes())
    content[-8] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.nii\.gz cannot be read as NIfTI \(CRC"):
        read_nifti(path)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    gzipped=st.sampled_from(["inside", "outside", "no"]),
    cut=st.integers(0, 600),
    changes=st.lists(st.tuples(st.integers(0, 471), st.integers(0, 255)), max_size=4),
)
def test_read_nifti_survives_random_damage(tmp_path, capfd, gzipped, cut, changes):
    content = bytearray(nibabel.Nifti1Image(ramp(), AFFINE).to_bytes())
    if gzipped == "outside":  # the damage is in the compressed bytes
        content = bytearray(gzip.compress(content))
    for place, byte in changes:
        content[place % len(content)] = byte
    content = content[: cut if cut < len(content) else None]
    path = tmp_path / ("a.nii" if gzipped == "no" else "a.nii.gz")
    path.write_bytes(gzip.compress(content) if gzipped == "inside" else content)
    told = None
    try:
        assert read_nifti(path).values.size <= 60
    except DataError as error:
        told = str(error)
    assert told is None or (str(path) in told and "\n" not in told)
    assert not logging.getLogger("nibabel.global").disabled
    assert capfd.readouterr().err == ""

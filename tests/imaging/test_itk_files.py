"""MetaImage and NRRD files: the same voxels and geometry as in SimpleITK and as in NIfTI, and damaged files."""

import gzip
import zlib

import numpy as np
import pytest
import SimpleITK

from phiseg.core.errors import DataError
from phiseg.imaging.itk_files import (
    files_of,
    read_itk,
    stated_orientation,
    stated_spacing,
    write_itk,
    write_itk_sequence,
)
from phiseg.imaging.nifti_files import read_nifti, write_nifti
from phiseg.imaging.volume import Volume

SUFFIXES = ["mha", "mhd", "nrrd", "nhdr"]
WRITABLE = ["mha", "nrrd"]
OBLIQUE = np.array([[-0.6, 0.1, 0, 100 / 3], [0.1, 0.6, 0.2, -20], [0, -0.1, np.pi, 1e-3 / 7], [0, 0, 0, 1]])
"""Anisotropic, oblique and sheared, with numbers that need all digits."""
LEFT_HANDED = np.array([[0, 0, 1.25, -7], [-0.5, 0, 0, 3], [0, 0.75, 0, 11], [0, 0, 0, 1.0]])
DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "float32", "float64"]
UNPLACED = b"NRRD0004\ntype: uint8\ndimension: 3\nsizes: 1 1 2\nencoding: raw\n\n\x01\x02"
"""An NRRD file without geometry."""


def ramp(shape=(3, 4, 5), dtype=np.int16):
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def itk_image(values, *, dims=3, directions=None, spacing=(0.7, 1.5, 4.0), origin=(-10.5, 20.25, 1 / 3)):
    """Return an image of SimpleITK with values (I, J, K[, C]); the channels are components of voxels."""
    axes = (*reversed(range(dims)), *range(dims, values.ndim))
    image = SimpleITK.GetImageFromArray(np.ascontiguousarray(values.transpose(axes)), isVector=values.ndim > dims)
    image.SetSpacing(spacing[:dims])
    image.SetOrigin(origin[:dims])
    if directions is not None:
        image.SetDirection(np.ravel(directions).tolist())
    return image


def save(path, image, *, compressed=False):
    SimpleITK.WriteImage(image, str(path), useCompression=compressed)
    return path


def turned(degrees=(20, -35, 50)):
    transform = SimpleITK.Euler3DTransform((0, 0, 0), *np.deg2rad(degrees))
    return np.reshape(transform.GetMatrix(), (3, 3))


def ras_position(image, index):
    x, y, z = image.TransformIndexToPhysicalPoint(index)
    return -x, -y, z


# Reading


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_read_itk_voxels_and_positions_match_simpleitk(tmp_path, suffix, compressed):
    image = itk_image(ramp(), directions=turned() @ np.diag([1, -1, 1]))
    volume = read_itk(save(tmp_path / f"a.{suffix}", image, compressed=compressed))
    np.testing.assert_array_equal(volume.values, ramp())
    assert volume.values.dtype == np.int16
    for index in [(0, 0, 0), (2, 0, 0), (0, 3, 0), (0, 0, 4), (1, 2, 3)]:
        np.testing.assert_allclose(volume.world(np.array(index)), ras_position(image, index), rtol=0, atol=1e-12)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_read_itk_equals_nifti_of_the_same_image(tmp_path, suffix):
    image = itk_image(ramp(dtype=np.float32), directions=turned())
    nifti, other = read_nifti(save(tmp_path / "a.nii.gz", image)), read_itk(save(tmp_path / f"a.{suffix}", image))
    np.testing.assert_array_equal(other.values, nifti.values)
    np.testing.assert_allclose(other.affine, nifti.affine, atol=1e-5)  # NIfTI stores single precision


def test_read_itk_converts_nrrd_spaces(tmp_path):
    path = tmp_path / "a.nrrd"
    write_itk(path, Volume(ramp(), OBLIQUE))
    text = path.read_bytes().replace(b"left-posterior-superior", b"right-anterior-superior")
    path.write_bytes(text)
    flipped = np.diag([-1, -1, 1, 1]) @ OBLIQUE
    np.testing.assert_allclose(read_itk(path).affine, flipped, rtol=0, atol=1e-12)


@pytest.mark.parametrize("suffix", WRITABLE)
def test_read_itk_components_are_channels(tmp_path, suffix):
    values = ramp((3, 4, 5, 2), np.uint8)
    path = save(tmp_path / f"a.{suffix}", itk_image(values))
    np.testing.assert_array_equal(read_itk(path, channels=True).values, values)
    with pytest.raises(DataError, match=r"too many dimensions; split it into 3-D files"):
        read_itk(path)
    single = save(tmp_path / f"b.{suffix}", itk_image(values[..., 0]))
    assert read_itk(single, channels=True).values.shape == (3, 4, 5, 1)


@pytest.mark.parametrize("suffix", WRITABLE)
def test_read_itk_two_dimensions_are_one_slice(tmp_path, suffix):
    path = save(tmp_path / f"a.{suffix}", itk_image(ramp((3, 4), np.uint8), dims=2))
    volume = read_itk(path, channels=True)
    np.testing.assert_array_equal(volume.values[:, :, 0, 0], ramp((3, 4)))
    np.testing.assert_allclose(volume.affine, np.diag([-1, -1, 1, 1]) @ affine_of((0.7, 1.5, 1), (-10.5, 20.25, 0)))
    colours = ramp((3, 4, 3), np.uint8)
    path = save(tmp_path / f"rgb.{suffix}", itk_image(colours, dims=2))
    np.testing.assert_array_equal(read_itk(path, channels=True).values[:, :, 0], colours)


def affine_of(spacing, origin):
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = origin
    return affine


def test_stated_orientation_and_spacing(tmp_path):
    for suffix in WRITABLE:
        write_itk(tmp_path / f"a.{suffix}", Volume(ramp(), OBLIQUE))
        assert stated_orientation(tmp_path / f"a.{suffix}")
        assert stated_spacing(tmp_path / f"a.{suffix}")
    (tmp_path / "b.nrrd").write_bytes(UNPLACED)
    header = b"NDims = 3\nDimSize = 1 1 2\nElementType = MET_UCHAR\nElementDataFile = LOCAL\n"
    (tmp_path / "b.mha").write_bytes(header + b"\x01\x02")
    for suffix in WRITABLE:
        assert not stated_orientation(tmp_path / f"b.{suffix}")
        assert not stated_spacing(tmp_path / f"b.{suffix}")
        np.testing.assert_array_equal(read_itk(tmp_path / f"b.{suffix}").values.ravel(), [1, 2])


@pytest.mark.parametrize(("text", "stated"), [("spacings: 1 1 2", True), ("spacings: nan nan nan", False)])
def test_spacings_of_nrrd_may_be_unknown(tmp_path, text, stated):
    (tmp_path / "a.nrrd").write_bytes(UNPLACED.replace(b"encoding", f"{text}\nencoding".encode()))
    assert stated_spacing(tmp_path / "a.nrrd") == stated


@pytest.mark.parametrize(
    ("suffix", "line", "scale"),
    [
        ("nrrd", 'space units: "microns" "microns" "microns"', 1e-3),
        ("nrrd", 'space units: "m" "m" "m"', 1e3),
        ("nrrd", 'space units: "mm" "mm" ""', 1),
        ("mha", "DistanceUnits = um", 1e-3),
        ("mha", "DistanceUnits = ?", 1),
        ("mha", "DistanceUnits = cm", 10),
    ],
)
def test_units_of_length_are_converted_to_mm(tmp_path, suffix, line, scale):
    path = tmp_path / f"a.{suffix}"
    write_itk(path, Volume(ramp(), OBLIQUE))
    before = {"nrrd": b"endian", "mha": b"ElementType"}[suffix]
    path.write_bytes(path.read_bytes().replace(before, line.encode() + b"\n" + before))
    volume = read_itk(path)
    np.testing.assert_array_equal(volume.values, ramp())
    np.testing.assert_allclose(volume.affine[:3], OBLIQUE[:3] * scale)


@pytest.mark.parametrize(("unit", "scale"), [("um", 1e-3), ("mm", 1), ("s", 1)])
def test_units_of_nrrd_axes_are_converted_to_mm(tmp_path, unit, scale):
    more = f'spacings: 1 2 3\nunits: "{unit}" "{unit}" "{unit}"\nencoding'
    (tmp_path / "a.nrrd").write_bytes(UNPLACED.replace(b"encoding", more.encode()))
    assert read_itk(tmp_path / "a.nrrd").spacing_mm == pytest.approx((scale, 2 * scale, 3 * scale))


@pytest.mark.parametrize("units", ['"pixel" "pixel" "pixel"', '"mm" "mm" "um"'])
def test_unknown_units_of_length_are_rejected(tmp_path, units):
    path = tmp_path / "a.nrrd"
    write_itk(path, Volume(ramp(), OBLIQUE))
    path.write_bytes(path.read_bytes().replace(b"endian", b"space units: " + units.encode() + b"\nendian"))
    with pytest.raises(DataError, match=r"a\.nrrd has the units (mm, um|pixel); convert its geometry to mm"):
        read_itk(path)


# Writing


@pytest.mark.parametrize("affine", [OBLIQUE, LEFT_HANDED], ids=["oblique", "left-handed"])
@pytest.mark.parametrize("suffix", WRITABLE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_write_itk_is_read_by_simpleitk(tmp_path, suffix, dtype, affine):
    values = ramp(dtype=dtype)
    write_itk(tmp_path / f"a.{suffix}", Volume(values, affine))
    image = SimpleITK.ReadImage(str(tmp_path / f"a.{suffix}"))
    stored = SimpleITK.GetArrayFromImage(image).T
    np.testing.assert_array_equal(stored, values)
    assert stored.dtype == ("uint8" if dtype == "bool" else dtype)
    for index in [(0, 0, 0), (2, 3, 4)]:
        expected = (affine @ [*index, 1])[:3]
        np.testing.assert_allclose(ras_position(image, index), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("suffix", WRITABLE)
def test_write_itk_round_trip_keeps_affine(tmp_path, suffix):
    write_itk(tmp_path / f"a.{suffix}", Volume(ramp(), OBLIQUE))
    write_nifti(tmp_path / "a.nii.gz", Volume(ramp(), OBLIQUE))
    back = read_itk(tmp_path / f"a.{suffix}")
    np.testing.assert_allclose(back.affine, OBLIQUE, rtol=0, atol=1e-14)
    np.testing.assert_allclose(back.affine, read_nifti(tmp_path / "a.nii.gz").affine, atol=1e-5)


@pytest.mark.parametrize("suffix", WRITABLE)
def test_write_itk_sequence_equals_4d_file(tmp_path, suffix):
    values = np.random.default_rng(0).integers(0, 9, (5, 4, 3, 7)).astype(np.uint8)
    one, whole = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    write_itk_sequence(one, (Volume(values[..., index], OBLIQUE) for index in range(7)), number=7)
    write_itk(whole, Volume(values, OBLIQUE))
    assert one.read_bytes() == whole.read_bytes()
    assert len(list(tmp_path.iterdir())) == 2
    back = read_itk(one, channels=True)
    np.testing.assert_array_equal(back.values, values)
    np.testing.assert_allclose(back.affine, OBLIQUE, rtol=0, atol=1e-14)


# Errors


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("suffix", WRITABLE)
def test_damaged_files_are_rejected(tmp_path, suffix, compressed, capfd):
    path = save(tmp_path / f"a.{suffix}", itk_image(ramp((6, 7, 8))), compressed=compressed)
    content = path.read_bytes()
    for length in (0, 5, 60, len(content) // 2, len(content) - 9):
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match=rf"a\.{suffix} .*(copy|save)"):
            read_itk(path)
    assert capfd.readouterr() == ("", "")  # no remark of the library


@pytest.mark.parametrize("suffix", WRITABLE)
def test_flipped_bits_of_compressed_voxels_are_detected(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    write_itk(path, Volume(np.random.default_rng(0).integers(0, 99, (6, 7, 8)).astype(np.int16), OBLIQUE))
    content = bytearray(path.read_bytes())
    content[-60] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"a\.{suffix} cannot be read"):
        read_itk(path)


@pytest.mark.parametrize("suffix", WRITABLE)
def test_nan_voxels_and_huge_headers_are_rejected(tmp_path, suffix):
    values = ramp(dtype=np.float32)
    values[1, 1, 1] = np.nan
    write_itk(tmp_path / f"nan.{suffix}", Volume(values, OBLIQUE))
    with pytest.raises(DataError, match="has NaN or infinite voxels"):
        read_itk(tmp_path / f"nan.{suffix}")
    path = tmp_path / f"huge.{suffix}"
    write_itk(path, Volume(ramp(), OBLIQUE))
    path.write_bytes(path.read_bytes().replace(b"3 4 5\n", b"30000 40000 50000\n"))
    with pytest.raises(DataError, match="bytes are too few for the voxels of its header"):
        read_itk(path)


@pytest.mark.parametrize("name", ["../secret.raw", "/etc/hostname", "missing.raw", "LIST", "slice%03d.raw 1 3 1"])
def test_headers_of_other_folders_are_rejected(tmp_path, name):
    (tmp_path / "secret.raw").write_bytes(bytes(60))
    folder = tmp_path / "in"
    folder.mkdir()
    meta = f"NDims = 3\nDimSize = 3 4 5\nElementType = MET_UCHAR\nElementDataFile = {name}\n"
    nrrd = f"NRRD0004\ntype: uint8\ndimension: 3\nsizes: 3 4 5\nencoding: raw\ndata file: {name}\n\n"
    for file, text in {"a.mha": meta, "a.mhd": meta, "a.nrrd": nrrd, "a.nhdr": nrrd}.items():
        (folder / file).write_text(text)
        for function in (read_itk, files_of):
            with pytest.raises(DataError, match=r"is not a file in the same folder; put both files"):
                function(folder / file)


def test_files_of_a_separate_header(tmp_path):
    image = itk_image(ramp())
    assert files_of(save(tmp_path / "a.mha", image)) == [tmp_path / "a.mha"]
    assert files_of(save(tmp_path / "b.mhd", image)) == [tmp_path / "b.mhd", tmp_path / "b.raw"]
    assert files_of(save(tmp_path / "c.nhdr", image)) == [tmp_path / "c.nhdr", tmp_path / "c.raw"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_other_files_and_missing_files_are_rejected(tmp_path, suffix):
    with pytest.raises(DataError, match="does not exist; check the name"):
        read_itk(tmp_path / f"none.{suffix}")
    for content in (b"nothing", b"PNG\n\x00\xff", gzip.compress(b"0" * 99), zlib.compress(b"1" * 99)):
        (tmp_path / f"a.{suffix}").write_bytes(content)
        with pytest.raises(DataError, match=r"cannot be read as (NRRD|MetaImage) .*; copy or convert it again"):
            read_itk(tmp_path / f"a.{suffix}")

"""Pictures: types of pixels, pages and EXIF orientation."""

import numpy as np
import pytest
import SimpleITK
from PIL import Image

from phiseg.core.errors import DataError
from phiseg.imaging.pictures import read_mask, read_picture, read_picture_header
from phiseg.imaging.png import read_png

TURNED = {1: lambda a: a, 2: np.fliplr, 3: lambda a: np.rot90(a, 2), 6: lambda a: np.rot90(a, -1), 8: np.rot90}
"""How to turn the stored pixels upright, by EXIF orientation."""


def save(path, pixels, *, orientation=None, **options):
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    Image.fromarray(pixels).save(path, exif=exif, **options)
    return path


# Types


@pytest.mark.parametrize("dtype", ["int16", "int32"])
def test_signed_pixels_keep_their_values(tmp_path, dtype):
    pixels = np.array([[-1000, 0, 3000]], dtype=dtype)
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(pixels), tmp_path / "a.tif")
    np.testing.assert_array_equal(read_picture(tmp_path / "a.tif"), pixels[None])


def test_large_pixels_keep_their_values(tmp_path):
    pixels = np.array([[0, 65535, 65536, 70000]], dtype=np.int32)
    np.testing.assert_array_equal(read_picture(save(tmp_path / "a.tif", pixels)), pixels[None])


def test_pixel_type_depends_on_the_file_type_only(tmp_path):
    for name, value in (("small.tif", 7), ("large.tif", 70000)):
        assert read_picture(save(tmp_path / name, np.full((2, 2), value, np.int32))).dtype == np.int32
    for name in ("deep.tif", "deep.png"):
        assert read_picture(save(tmp_path / name, np.full((2, 2), 7, np.uint16))).dtype == np.uint16


@pytest.mark.parametrize("value", [-1, 65536, 65537])
def test_mask_values_outside_16_bits_are_rejected(tmp_path, value):
    path = save(tmp_path / "a.tif", np.array([[0, 1, value]], dtype=np.int32))
    with pytest.raises(DataError, match=r"a\.tif has fractions or values outside 0 to 65535"):
        read_mask(path)
    good = read_mask(save(tmp_path / "b.tif", np.array([[0, 1, 65535]], dtype=np.int32)))
    assert (good.dtype, good.tolist()) == (np.uint16, [[0, 1, 65535]])


# Pages


def test_several_pages_are_rejected(tmp_path):
    pages = [Image.fromarray(np.full((3, 4), page, np.uint8)) for page in range(3)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    for read in (read_picture, read_mask, read_picture_header):
        with pytest.raises(DataError, match=r"a\.tif has several pages; save each page as its own file"):
            read(tmp_path / "a.tif")


def test_jpeg_with_preview_is_one_picture(tmp_path):
    pages = [Image.fromarray(np.full((8, 8), page, np.uint8)) for page in (100, 0)]
    pages[0].save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=pages[1:])
    np.testing.assert_allclose(read_picture(tmp_path / "a.jpg"), 100, atol=2)


# Orientation


@pytest.mark.parametrize("orientation", TURNED)
@pytest.mark.parametrize(
    ("suffix", "options"),
    [("png", {}), ("jpg", {"quality": 100}), ("tif", {}), ("tif", {"compression": "tiff_lzw"})],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_turned_upright(tmp_path, suffix, options, orientation, channels):
    stored = np.kron(np.arange(6).reshape(2, 3) * 40, np.ones((8, 8))).astype(np.uint8)
    pixels = stored if channels == 1 else np.repeat(stored[..., None], 3, axis=2)
    path = save(tmp_path / f"a.{suffix}", pixels, orientation=orientation, **options)
    expected = TURNED[orientation](stored)
    header = read_picture_header(path)
    assert header == (*expected.shape, channels)
    np.testing.assert_allclose(read_picture(path), np.broadcast_to(expected, (channels, *expected.shape)), atol=2)
    np.testing.assert_allclose(read_mask(path), expected, atol=2)
    if suffix == "png" and channels == 1:
        np.testing.assert_array_equal(read_png(path), expected)


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_deep_grey_tiff_is_turned_upright(tmp_path, dtype):
    stored = np.arange(12).reshape(3, 4).astype(dtype)
    path = save(tmp_path / "a.tif", stored, orientation=6)
    np.testing.assert_array_equal(read_picture(path)[0], np.rot90(stored, -1))


def test_palette_mask_is_turned_upright(tmp_path):
    classes = np.arange(12).reshape(3, 4).astype(np.uint8) % 3
    image = Image.fromarray(classes, mode="P")
    image.putpalette([0, 0, 0, 200, 0, 0, 0, 200, 0])
    exif = Image.Exif()
    exif[0x0112] = 8
    image.save(tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(read_mask(tmp_path / "a.png"), np.rot90(classes))


def test_turned_colours_of_16_bits_are_rejected(tmp_path):
    pixels = np.zeros((6, 8, 3), np.uint16)
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(pixels, isVector=True), tmp_path / "a.tif")
    content = (tmp_path / "a.tif").read_bytes()
    entry = b"\x12\x01\x03\x00\x01\x00\x00\x00"  # tag, type and number of values of the orientation
    assert content.count(entry + b"\x01") == 1
    (tmp_path / "a.tif").write_bytes(content.replace(entry + b"\x01", entry + b"\x06"))
    with pytest.raises(DataError, match=r"a\.tif has 16-bit colours and is turned by its EXIF orientation"):
        read_picture(tmp_path / "a.tif")


def test_unreadable_exif_data_are_ignored(tmp_path):
    pixels = np.full((8, 8), 100, np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.jpg", exif=b"Exif\0\0nonsense")
    np.testing.assert_allclose(read_picture(tmp_path / "a.jpg")[0], 100, atol=2)

"""`phiseg prepare images`, on small copies of the layouts of public datasets."""

import numpy as np
import pytest
import SimpleITK
from PIL import Image

from phiseg.core.errors import ConfigError, DataError
from phiseg.data.prepare.fixed_size_source import FixedSizeOptions
from phiseg.data.prepare.images import prepare_images, preview_images
from phiseg.data.prepare.patterns import FilePatterns
from phiseg.data.store import Dataset
from phiseg.imaging.pictures import fitted, read_mask, read_picture
from phiseg.plotting.contact_sheet import contact_sheet


def colours(seed, shape=(24, 30)):
    return np.random.default_rng(seed).integers(0, 256, (*shape, 3)).astype(np.uint8)


def disc_and_cup(seed, shape=(24, 30)):
    """Grey values 0, 128 and 255."""
    rows, columns = np.indices(shape)
    distance = np.hypot(rows - shape[0] / 2, columns - shape[1] / 2 - seed % 3)
    return np.where(distance < 4, 255, np.where(distance < 8, 128, 0)).astype(np.uint8)


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def riga(tmp_path):
    """Fundus images with one mask file per rater, as TIFF."""
    for case in (1, 2, 10):
        save(tmp_path / "RIGA" / "MESSIDOR" / f"image{case}prime.tif", colours(case))
        for rater in range(1, 7):
            save(tmp_path / "RIGA" / "MESSIDOR" / f"image{case}-{rater}.tif", disc_and_cup(rater))
    return tmp_path / "RIGA"


@pytest.fixture
def refuge(tmp_path):
    """Fundus images with one folder per rater; rater B has no mask of case 3."""
    for case in (1, 2, 3):
        save(tmp_path / "REFUGE" / "images" / f"T{case}.bmp", colours(case))
        for rater in "AB":
            if (case, rater) != (3, "B"):
                save(tmp_path / "REFUGE" / f"rater{rater}" / f"T{case}.png", disc_and_cup(case + ord(rater)))
    return tmp_path / "REFUGE"


def test_riga_masks_of_six_raters_become_classes(riga, tmp_path, cli):
    words = ["--image", "{case}prime.tif", "--rater", "{case}-{rater}.tif"]
    words += ["--values", "0:0", "128:1", "255:2", "--classes", "background", "disc", "cup"]
    code, out, err = cli("prepare", "images", riga, tmp_path / "data", *words)
    assert code == 0, err
    assert "annotators: 1, 2, 3, 4, 5, 6" in out
    dataset = Dataset.open(tmp_path / "data")
    assert [case["case"] for case in dataset.cases] == ["image1", "image2", "image10"]
    assert dataset.info.image_channels == 3
    assert dataset.info.classes == ("background", "disc", "cup")
    assert (dataset.info.intensity.low, dataset.info.intensity.high) == (0, 255)
    assert dataset.info.modality is None
    np.testing.assert_array_equal(dataset.images[2], np.moveaxis(colours(10), 2, 0))
    expected = np.digitize(disc_and_cup(5), [1, 200])
    np.testing.assert_array_equal(dataset.labels[2, 4], expected)


def test_riga_without_patterns_suggests_them(riga, tmp_path, cli):
    save(riga / "BinRushed1" / "image1prime.tif", colours(1))
    save(riga / "BinRushed1" / "image1-1.tif", disc_and_cup(1))
    code, _, err = cli("prepare", "images", riga, tmp_path / "data")
    assert code == 2
    assert err.endswith("such as --image '{case}prime.tif' --rater 'image*-{rater}.tif'\n")


def test_refuge_folders_of_raters_need_no_pattern(refuge, tmp_path):
    dataset = prepare_images(refuge, tmp_path / "data", values={0: 0, 128: 1, 255: 2}, progress=False)
    assert dataset.annotator_names == ["raterA", "raterB"]
    assert dataset.valid.tolist() == [[True, True], [True, True], [True, False]]


def test_isic_files_with_hashes_are_matched(tmp_path, cli):
    shapes = {"ISIC_0000001": (24, 30), "ISIC_0000010": (40, 20)}
    for number, (case, shape) in enumerate(shapes.items()):
        save(tmp_path / "ISIC" / "images" / f"{case}.JPG", colours(number, shape))
        for rater in (2, 11):
            mask = (disc_and_cup(rater, shape) > 0).astype(np.uint8) * 255
            save(tmp_path / "ISIC" / "segs" / f"{case}_A{rater}_T1_S2_{'ab12' * 4}.png", mask)
    words = ["--image", "images/{case}.JPG", "--rater", r"(?P<case>ISIC_\d+)_A(?P<rater>\d+)_.*\.png"]
    code, _, err = cli("prepare", "images", tmp_path / "ISIC", tmp_path / "data", *words)
    assert code == 2
    assert "2 sizes, from 24 x 30 to 40 x 20 pixels" in err
    code, out, err = cli("prepare", "images", tmp_path / "ISIC", tmp_path / "data", *words, "--size", "16")
    assert code == 0, err
    assert "annotators: 2, 11" in out
    assert "mask value 0 is background and 255 is class 1" in err
    dataset = Dataset.open(tmp_path / "data")
    assert dataset.images.shape == (2, 3, 16, 16)
    wide, tall = dataset.cases
    assert (wide["pad_row"], wide["pad_column"]) == ("1", "0")  # 24 x 30 becomes 13 x 16
    assert (tall["pad_row"], tall["pad_column"]) == ("0", "4")  # 40 x 20 becomes 16 x 8
    assert not dataset.labels[1, :, :, :4].any()
    assert dataset.labels[1, :, :, 4:12].any(axis=(1, 2)).all()


def test_case_folders_with_grey_images_of_16_bits(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 60000, (12, 14)).astype(np.uint16)
    for case in "abc":
        save(tmp_path / "src" / case / "image.png", pixels)
        save(tmp_path / "src" / case / "rater-x.png", np.eye(12, 14, dtype=np.uint8))
    dataset = prepare_images(tmp_path / "src", tmp_path / "data", progress=False)
    assert dataset.images.dtype == np.uint16
    np.testing.assert_array_equal(dataset.images[0, 0], pixels)
    np.testing.assert_array_equal(dataset.labels[0, 0], np.eye(12, 14))


def test_dry_run_lists_pictures_and_writes_nothing(refuge, tmp_path, cli):
    words = ["--values", "0:0", "128:1", "255:2", "--size", "16", "--dry-run"]
    code, out, _ = cli("prepare", "images", refuge, tmp_path / "data", *words)
    assert code == 0
    assert not (tmp_path / "data").exists()
    assert "T3: 24 x 30 pixels, 1 annotator (no label of raterB)" in out
    assert "images:     16 x 16 pixels, 3 channels" in out
    assert "classes:    0 background, 1 class 1, 2 class 2" in out


def test_tiny_size_is_rejected(refuge, tmp_path, cli):
    code, _, err = cli("prepare", "images", refuge, tmp_path / "data", "--size", "4")
    assert code == 2
    assert "size 4 x 4 is out of range; use 16 to 8192 pixels" in err


def test_masks_with_several_values_need_a_map(refuge):
    with pytest.raises(ConfigError, match="--values 0:0 128:1 255:2"):
        preview_images(refuge, progress=False)


def test_values_must_be_classes_without_gaps(refuge):
    with pytest.raises(ConfigError, match="0 to K-1"):
        preview_images(refuge, values={0: 0, 128: 1, 255: 3}, progress=False)


def test_unusable_pictures_are_skipped_and_counted(refuge, tmp_path, cli):
    (refuge / "images" / "T1.bmp").write_bytes((refuge / "images" / "T1.bmp").read_bytes()[:200])
    save(refuge / "raterA" / "T2.png", disc_and_cup(0, (10, 10)))
    code, _, err = cli("prepare", "images", refuge, tmp_path / "data", "--values", "0:0", "128:1", "255:2")
    assert code == 0, err
    assert "2 of 3 cases skipped" in err
    assert "has 10 x 10 pixels" in err
    assert [case["case"] for case in Dataset.open(tmp_path / "data").cases] == ["T3"]
    with pytest.raises(DataError, match="10 x 10"):
        prepare_images(refuge, tmp_path / "other", values={0: 0, 128: 1, 255: 2}, strict=True, progress=False)


def test_value_without_class_skips_the_case(refuge, tmp_path, cli):
    save(refuge / "raterA" / "T2.png", np.full((24, 30), 7, dtype=np.uint8))
    code, _, err = cli("prepare", "images", refuge, tmp_path / "data", "--values", "0:0", "128:1", "255:2")
    assert code == 0, err
    assert "T2.png has the value 7" in err


@pytest.mark.parametrize("words", [[], ["--dry-run"]])
def test_value_without_class_in_most_masks_is_one_error(refuge, tmp_path, cli, words):
    code, _, err = cli("prepare", "images", refuge, tmp_path / "data", "--values", "0:0", "128:1", *words)
    assert code == 2
    assert "skipped" not in err
    assert "values without a class: 255; give the class of each, such as --values 0:0 128:1 255:2" in err


def test_jpeg_masks_take_the_nearest_value(tmp_path):
    mask = np.zeros((32, 32), dtype=np.uint8)
    mask[8:24, 8:24] = 255
    for case in "ab":
        save(tmp_path / "src" / "images" / f"{case}.png", colours(0, (32, 32)))
        save(tmp_path / "src" / "r1" / f"{case}.jpg", mask)
    with pytest.raises(ConfigError, match="JPEG"):
        preview_images(tmp_path / "src", progress=False)
    dataset = prepare_images(tmp_path / "src", tmp_path / "data", values={0: 0, 255: 1}, progress=False)
    np.testing.assert_array_equal(dataset.labels[0, 0], mask > 0)


def test_grey_and_colour_pictures_together_need_an_option(refuge, tmp_path):
    save(refuge / "images" / "T1.bmp", colours(1)[..., 0])
    options = {"values": {0: 0, 128: 1, 255: 2}, "progress": False}
    with pytest.raises(ConfigError, match="--grey"):
        prepare_images(refuge, tmp_path / "data", **options)
    assert prepare_images(refuge, tmp_path / "data", grey=True, **options).info.image_channels == 1


def test_splits_in_the_path_are_kept(tmp_path):
    for split, case in (("train", "a"), ("val", "b"), ("test", "c")):
        save(tmp_path / "src" / split / "img" / f"{case}.png", colours(0))
        save(tmp_path / "src" / split / "seg1" / f"{case}.png", disc_and_cup(0))
    patterns = FilePatterns(images=("{split}/img/{case}.png",), rater="seg{rater}/{case}.png")
    options = {"patterns": patterns, "values": {0: 0, 128: 1, 255: 1}, "progress": False}
    dataset = prepare_images(tmp_path / "src", tmp_path / "data", FixedSizeOptions(name="eyes"), **options)
    assert dataset.splits == {"train": ["a"], "val": ["b"], "test": ["c"]}
    assert dataset.info.name == "eyes"


def test_colour_pictures_train_a_model_and_are_drawn(tmp_path, cli):
    for case in range(10):
        save(tmp_path / "src" / "images" / f"{case}.png", colours(case, (16, 16)))
        for rater in "ab":
            save(tmp_path / "src" / rater / f"{case}.png", disc_and_cup(case, (16, 16)))
    values = {0: 0, 128: 1, 255: 2}
    prepare_images(tmp_path / "src", tmp_path / "data", values=values, progress=False)
    words = ["--train.steps", "2", "--train.batch_size", "2", "--train.validate_every", "2"]
    words += ["--model.channels", "[4, 4, 8]", "--model.num_levels", "2"]
    code, _, err = cli("train", "phiseg-small", "--data", tmp_path / "data", "--out", tmp_path / "run", *words)
    assert code == 0, err
    assert cli("data", "show", tmp_path / "data", "--out", tmp_path / "sheet.png").code == 0


def test_contact_sheet_shows_colours(refuge, tmp_path):
    dataset = prepare_images(refuge, tmp_path / "data", values={0: 0, 128: 1, 255: 2}, progress=False)
    shown = contact_sheet(dataset, [1]).axes[0].images[0].get_array()
    np.testing.assert_allclose(shown, colours(2) / 255, atol=1e-6)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_colours_of_16_bits_are_kept(tmp_path, suffix):
    pixels = np.random.default_rng(0).integers(0, 65536, (6, 8, 3)).astype(np.uint16)
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(pixels, isVector=True), tmp_path / f"deep{suffix}")
    np.testing.assert_array_equal(read_picture(tmp_path / f"deep{suffix}"), np.moveaxis(pixels, 2, 0))


def test_masks_with_palette_or_equal_colours_are_read(tmp_path):
    classes = np.arange(12).reshape(3, 4).astype(np.uint8) % 3
    palette = Image.fromarray(classes, mode="P")
    palette.putpalette([0, 0, 0, 200, 0, 0, 0, 200, 0])
    palette.save(tmp_path / "palette.png")
    np.testing.assert_array_equal(read_mask(tmp_path / "palette.png"), classes)
    save(tmp_path / "grey.png", np.repeat(classes[..., None] * 100, 3, axis=2))
    np.testing.assert_array_equal(read_mask(tmp_path / "grey.png"), classes * 100)
    save(tmp_path / "float.tif", classes.astype(np.float32))
    np.testing.assert_array_equal(read_mask(tmp_path / "float.tif"), classes)
    save(tmp_path / "soft.tif", classes.astype(np.float32) / 2)
    with pytest.raises(DataError, match="has fractions"):
        read_mask(tmp_path / "soft.tif")
    save(tmp_path / "colours.png", colours(0))
    with pytest.raises(DataError, match="has colours"):
        read_mask(tmp_path / "colours.png")


def test_resizing_keeps_the_aspect_and_averages():
    pixels = np.zeros((1, 4, 8), dtype=np.uint8)
    pixels[:, :, :4] = 200
    small = fitted(pixels, (4, 4))
    assert not small[:, [0, 3]].any()  # 4 x 8 becomes 2 x 4, in the middle
    assert small[0, 1, 0] == 200
    assert small[0, 1, 3] == 0
    labels = fitted(pixels // 200, (8, 8), labels=True)
    np.testing.assert_array_equal(labels[0, 2:6], np.repeat([[1] * 4 + [0] * 4], 4, axis=0))

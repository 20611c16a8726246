"""`phiseg prepare arrays`: exact values, row by row, and errors for damaged files."""

import io
import tracemalloc
import zipfile
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from phiseg.core.errors import ConfigError, DataError, OutputError
from phiseg.data.prepare import arrays_npz
from phiseg.data.prepare.arrays import prepare_arrays
from phiseg.data.prepare.fixed_size_source import FixedSizeOptions
from phiseg.data.store import Dataset
from phiseg.inference.preprocessing import Preprocessing

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


def some_arrays(num_rows=6, annotators=3, size=(8, 10), seed=0):
    random = np.random.default_rng(seed)
    return {
        "images": random.integers(-1000, 400, (num_rows, *size)).astype(np.int16),
        "masks": random.integers(0, 2, (num_rows, annotators, *size)).astype(np.uint8),
    }


@pytest.fixture
def prepare(tmp_path):
    """Return a function that saves arrays and prepares them."""

    def run(arrays, **options):
        path = tmp_path / "source.npz"
        np.savez_compressed(path, **arrays)
        return prepare_arrays(path, tmp_path / "out", FixedSizeOptions(**options), progress=False, overwrite=True)

    return run


@given(
    images=hnp.arrays(
        st.sampled_from([np.uint8, np.int16, np.uint16, np.float16, np.float32, ">i2", ">f4"]),
        hnp.array_shapes(min_dims=3, max_dims=4, max_side=5),
        elements={"allow_nan": False, "allow_infinity": False},
    ),
    annotators=st.integers(1, 4),
    data=st.data(),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_are_unchanged(prepare, images, annotators, data):
    num_rows, height, width = images.shape[:3]
    masks = data.draw(hnp.arrays(np.uint8, (num_rows, annotators, height, width), elements=st.integers(0, 4)))
    valid = data.draw(hnp.arrays(np.bool_, (num_rows, annotators)))
    valid[0, 0] = True
    dataset = prepare({"images": images, "masks": masks, "valid": valid}, window=(0, 1))
    kept = np.flatnonzero(valid.any(axis=1))
    assert [case["case"] for case in dataset.cases] == [f"row-{row:05d}" for row in kept]
    assert dataset.images.dtype == images.dtype.newbyteorder("=")
    for place, row in enumerate(kept):
        expected = images[row].transpose(2, 0, 1) if images.ndim == 4 else images[row][None]
        np.testing.assert_array_equal(dataset.images[place], expected)
        np.testing.assert_array_equal(dataset.annotations(place), masks[row][valid[row]])
    largest = max(int(masks[row][valid[row]].max()) for row in kept)
    assert len(dataset.info.classes) == max(largest, 1) + 1


def test_patients_splits_spacing_and_columns_are_kept(prepare):
    arrays = some_arrays() | {
        "case_ids": np.array(["b", "a", "a", "c", "b", "c"]),
        "split": np.array(["val", "train", "train", "train", "val", "train"]),
        "pixel_spacing_mm": np.array([0.7, 0.8, 0.8, 0.7, 0.7, 0.6], dtype=np.float32),
        "slice_z": np.arange(6) * 2.5,
        "origin": np.arange(12).reshape(6, 2),
    }
    options = {"classes": ("background", "nodule"), "name": "mine", "centred_on": "nodule", "modality": "PT"}
    dataset = prepare(arrays, window=(-1000, 400), **options)
    assert dataset.splits == {"train": ["a", "c"], "val": ["b"]}
    assert [case["patient"] for case in dataset.cases] == [*arrays["case_ids"]]
    assert [case["spacing_mm"] for case in dataset.cases] == ["0.7", "0.8", "0.8", "0.7", "0.7", "0.6"]
    assert [float(case["slice_z"]) for case in dataset.cases] == [*arrays["slice_z"]]
    assert [case["origin_1"] for case in dataset.cases] == ["1", "3", "5", "7", "9", "11"]
    assert (dataset.info.name, dataset.info.classes) == ("mine", ("background", "nodule"))
    assert dataset.info.spacing_mm is None
    assert dataset.info.centred_on == "nodule"
    assert Preprocessing.of_dataset(dataset).centred_on == "nodule"
    assert (dataset.info.modality, Preprocessing.of_dataset(dataset).modality) == ("PT", "PT")


@pytest.mark.parametrize(
    ("spacing", "shared"), [(0.5, (0.5, 0.5)), ([0.5] * 6, (0.5, 0.5)), ([[0.5, 2]] * 6, (0.5, 2.0))]
)
def test_common_spacing_is_stored_in_manifest(prepare, spacing, shared):
    dataset = prepare(some_arrays() | {"pixel_spacing_mm": np.array(spacing)}, window=(0, 1))
    assert dataset.info.spacing_mm == shared


def test_masks_without_annotator_axis_have_one_annotator(prepare):
    arrays = some_arrays(annotators=1)
    dataset = prepare(arrays | {"masks": arrays["masks"][:, 0]}, window=(0, 1))
    np.testing.assert_array_equal(dataset.labels, arrays["masks"])


def test_patients_are_split_by_seed_without_splits(prepare):
    arrays = some_arrays(num_rows=20) | {"case_ids": np.arange(20) // 2}
    first = prepare(arrays, window=(0, 1), seed=1, fractions=(0.6, 0.2, 0.2)).splits
    assert {name: len(part) for name, part in first.items()} == {"train": 6, "val": 2, "test": 2}
    assert prepare(arrays, window=(0, 1), seed=1, fractions=(0.6, 0.2, 0.2)).splits == first
    assert prepare(arrays, window=(0, 1), seed=2, fractions=(0.6, 0.2, 0.2)).splits != first


def test_patient_in_two_splits_is_rejected_without_resplit(prepare):
    arrays = some_arrays(num_rows=4)
    arrays |= {"case_ids": np.array(["a", "b", "b", "c"]), "split": np.array(["train", "train", "val", "test"])}
    with pytest.raises(DataError, match=r"patient 'b' is in split 'train' and in 'val'.*--resplit"):
        prepare(arrays)
    dataset = prepare(arrays, resplit=True, fractions=(0.6, 0.2, 0.2))
    assert sorted(chain(*dataset.splits.values())) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("images", "low", "high", "stored"),
    [
        (np.full((2, 4, 4), 9, dtype=np.uint8), 0, 255, np.uint8),
        (np.linspace(0, 1, 32).reshape(2, 4, 4), 0, 1, np.float32),
        (np.linspace(-0.5, 0.5, 32).reshape(2, 4, 4), -0.5, 0.5, np.float32),
        (np.eye(4, dtype=bool)[None].repeat(2, 0), 0, 1, np.uint8),
    ],
)
def test_default_window_follows_from_type_and_range(prepare, capfd, images, low, high, stored):
    dataset = prepare({"images": images, "masks": np.zeros((2, 1, 4, 4), dtype=bool)})
    assert (dataset.info.intensity.low, dataset.info.intensity.high) == (low, high)
    assert dataset.images.dtype == stored
    np.testing.assert_array_equal(dataset.images[:, 0], images.astype(stored))
    assert "chose" not in capfd.readouterr().err


def test_default_window_of_other_images_is_percentiles_of_training_rows(prepare, capfd):
    arrays = some_arrays(num_rows=40, size=(16, 16))
    arrays["images"][::2] = 30000
    arrays["split"] = np.array(["val", "train"] * 20)
    dataset = prepare(arrays)
    low, high = np.percentile(arrays["images"][1::2], [0.5, 99.5])
    assert dataset.info.intensity.low == pytest.approx(low, rel=1e-4)
    assert dataset.info.intensity.high == pytest.approx(high, rel=1e-4)
    assert f"chose --window {dataset.info.intensity.low:g}" in capfd.readouterr().err


def test_zscore_normalises_every_image_and_channel(prepare):
    random = np.random.default_rng(0)
    images = random.normal(300, 40, (3, 8, 8, 2)).astype(np.float32)
    images[2, ..., 1] = 7
    dataset = prepare({"images": images, "masks": np.zeros((3, 1, 8, 8), dtype=np.uint8)}, zscore=True)
    flat = dataset.images.reshape(6, -1)
    np.testing.assert_allclose(flat.mean(axis=1), 0, atol=1e-5)
    np.testing.assert_allclose(flat[:5].std(axis=1), 1, rtol=1e-5)
    assert (flat[5] == 0).all()
    assert dataset.info.intensity.kind == "image_zscore"


@pytest.mark.parametrize("size", [4, 5, 12, 9])
def test_size_crops_and_pads_around_the_centre(prepare, size):
    arrays = some_arrays(size=(8, 10))
    dataset = prepare(arrays, window=(-1000, 400), size=size)
    big = 40
    image = np.full((6, big, big), -1000, dtype=np.int16)
    masks = np.zeros((6, 3, big, big), dtype=np.uint8)
    image[:, 16:24, 15:25], masks[:, :, 16:24, 15:25] = arrays["images"], arrays["masks"]
    start = (big - size) // 2
    part = slice(start, start + size)
    np.testing.assert_array_equal(dataset.images[:, 0], image[:, part, part])
    np.testing.assert_array_equal(dataset.labels, masks[:, :, part, part])


def test_arrays_that_are_not_columns_are_ignored_and_reported(prepare, capfd):
    arrays = some_arrays() | {"volume": np.zeros((6, 8, 10)), "patient": np.arange(6), "note": np.array(["x"])}
    arrays["objects"] = np.array([{}] * 6, dtype=object)
    dataset = prepare(arrays, window=(0, 1))
    said = capfd.readouterr().err
    assert "ignored 'note', 'objects', 'volume', not a column with one value per row" in said
    assert "ignored 'patient', because cases.csv already has a column of this name; use 'case_ids'" in said
    assert list(dataset.cases[0]) == ["case", "patient"]


def test_rows_without_annotator_are_skipped_and_counted(prepare, capfd):
    valid = np.ones((6, 3), dtype=np.uint8)
    valid[[1, 4]] = 0
    dataset = prepare(some_arrays() | {"valid": valid}, window=(0, 1))
    assert dataset.num_cases == 4
    assert "skipped 2 images without annotations" in capfd.readouterr().err
    with pytest.raises(DataError, match="has no annotated case"):
        prepare(some_arrays() | {"valid": valid * 0})


def with_pixel(value):
    arrays = some_arrays()
    arrays["images"] = arrays["images"].astype(np.float64)
    arrays["images"][2, 3, 3] = value
    return arrays


BAD = {
    "no images": ({"masks": np.zeros((2, 1, 3, 3))}, "no array 'images' \\(found: masks\\)"),
    "no masks": ({"images": np.zeros((2, 3, 3))}, "no array 'masks'"),
    "flat images": (some_arrays() | {"images": np.zeros((6, 8))}, "'images' has shape \\(6, 8\\)"),
    "no rows": (some_arrays() | {"images": np.zeros((0, 8, 10))}, "'images' has shape \\(0, 8, 10\\)"),
    "other rows": (some_arrays() | {"masks": np.zeros((5, 3, 8, 10))}, "'masks' has shape \\(5, 3, 8, 10\\)"),
    "other size": (some_arrays() | {"masks": np.zeros((6, 3, 10, 8))}, "'masks' has shape \\(6, 3, 10, 8\\)"),
    "no annotator": (some_arrays() | {"masks": np.zeros((6, 0, 8, 10))}, "at least one annotator"),
    "valid of another shape": (some_arrays() | {"valid": np.ones((6, 2))}, "'valid' has shape \\(6, 2\\)"),
    "valid of other values": (some_arrays() | {"valid": np.full((6, 3), 2)}, "'valid' must contain only 0 and 1"),
    "too few patients": (some_arrays() | {"case_ids": np.arange(5)}, "'case_ids' has shape \\(5,\\)"),
    "patients as fractions": (some_arrays() | {"case_ids": np.arange(6) / 2}, "'case_ids' has type float64"),
    "empty split": (some_arrays() | {"split": np.array([""] * 6)}, "'split' contains an empty name"),
    "unprintable patient": (some_arrays() | {"case_ids": np.array(["a\nb"] * 6)}, "unprintable characters"),
    "no Unicode": (
        some_arrays() | {"note": np.full(6, 2**31, dtype=np.uint32).view("<U1")},
        "its text is not Unicode",
    ),
    "surrogate": (some_arrays() | {"note": np.array(["\udc80"] * 6)}, "unprintable characters"),
    "spacing 0": (some_arrays() | {"pixel_spacing_mm": np.array(0.0)}, "finite positive numbers"),
    "objects": (some_arrays() | {"images": np.array([None] * 6)}, "'images' contains Python objects"),
    "text": (some_arrays() | {"images": np.full((6, 8, 10), "x")}, "pixels are <U1"),
    "NaN": (with_pixel(np.nan), "case 'row-00002': the image has NaN or infinite pixels"),
    "too large for float32": (
        with_pixel(1e300),
        "case 'row-00002': the image has NaN or infinite pixels as float32",
    ),
    "label 255": (some_arrays() | {"masks": np.full((6, 1, 8, 10), 255)}, "label 255 is not a class"),
    "label -1": (some_arrays() | {"masks": np.full((6, 1, 8, 10), -1)}, "label -1 is not a class"),
    "half a label": (some_arrays() | {"masks": np.full((6, 1, 8, 10), 0.5)}, "masks contain NaN or fractions"),
    "Fortran order": (some_arrays() | {"images": np.asfortranarray(np.zeros((6, 8, 10)))}, "ascontiguousarray"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_arrays_give_one_line_error(prepare, tmp_path, name):
    arrays, cause = BAD[name]
    with pytest.raises(DataError, match=cause) as caught:
        prepare(arrays)
    assert str(tmp_path / "source.npz") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_label_outside_classes_names_the_case(prepare):
    arrays = some_arrays()
    arrays["masks"][3, 1, 0, 0] = 2
    with pytest.raises(DataError, match=r"case 'row-00003'.*label 2 is not one of the classes \(0 bg, 1 cell\)"):
        prepare(arrays, classes=("bg", "cell"))


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"window": (0, 1), "zscore": True}, "cannot be used together"),
        ({"window": (1, 0)}, "the lower one first"),
        ({"size": 0}, "size 0 is out of range"),
        ({"classes": ("a", "a")}, "at least two different names"),
        ({"fractions": (1, 1, 1)}, "split fractions"),
        ({"rescale": (0, 1)}, "nonzero slope"),
        ({"rescale": (1, float("nan"))}, "nonzero slope"),
        ({"rescale": (1, 0), "zscore": True}, "--rescale has no effect with --zscore"),
    ],
)
def test_invalid_options_are_rejected(prepare, options, cause):
    with pytest.raises(ConfigError, match=cause):
        prepare(some_arrays(), **options)


def npz_with_header(path, shape, descr="'<i2'", payload=b"\0" * 960):
    """Write a file whose `images` claim a shape."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    good = io.BytesIO()
    np.save(good, some_arrays()["masks"])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("images.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + payload)
        file.writestr("masks.npy", good.getvalue())


@pytest.mark.parametrize("shape", ["(6, 8000000, 10000000)", "(6, 8, 9)", "(-6, 8, 10)", "(10**9,)", "(6, 8, 'a')"])
def test_wrong_header_needs_no_memory(tmp_path, shape):
    npz_with_header(tmp_path / "lie.npz", shape)
    tracemalloc.start()
    with pytest.raises(DataError, match="images"):
        prepare_arrays(tmp_path / "lie.npz", tmp_path / "out", progress=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6


def test_row_larger_than_memory_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays_npz, "MAX_ROW_BYTES", 2**12)
    images = np.zeros((1, 2**6, 2**6 + 1), dtype=np.uint8)
    np.savez_compressed(tmp_path / "bomb.npz", images=images, masks=images)
    with pytest.raises(DataError, match="larger than 1 GiB"):
        prepare_arrays(tmp_path / "bomb.npz", tmp_path / "out", progress=False)


def test_memory_is_independent_of_file_size(tmp_path):
    np.savez_compressed(
        tmp_path / "long.npz",
        images=np.zeros((1000, 64, 64), dtype=np.float32),  # 16 MB
        masks=np.zeros((1000, 4, 64, 64), dtype=np.uint8),  # 16 MB
    )
    tracemalloc.start()
    prepare_arrays(tmp_path / "long.npz", tmp_path / "out", progress=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6


def whole_npz():
    file = io.BytesIO()
    np.savez_compressed(file, **some_arrays(), case_ids=np.array([*"aabbcc"]), split=np.array(["train"] * 6))
    return file.getvalue()


WHOLE = whole_npz()


@given(
    damage=st.one_of(
        st.integers(0, len(WHOLE) - 1).map(lambda end: WHOLE[:end]),
        st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=8).map(
            lambda changes: bytes(dict(changes).get(place, byte) for place, byte in enumerate(WHOLE))
        ),
        st.binary(max_size=100),
    )
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_npz_gives_dataset_or_one_line_error(tmp_path, damage):
    path = tmp_path / "damaged.npz"
    path.write_bytes(damage)
    complaint = str(path)
    try:
        prepare_arrays(path, tmp_path / "out", progress=False, overwrite=True)
    except DataError as error:
        complaint = str(error)
    assert str(path) in complaint
    assert "\n" not in complaint


def test_encrypted_zip_gives_one_line_error(tmp_path):
    data = bytearray(WHOLE)
    for signature, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = data.find(signature)
        while start >= 0:
            data[start + place] |= 1
            start = data.find(signature, start + 1)
    (tmp_path / "secret.npz").write_bytes(data)
    with pytest.raises(DataError, match="encrypted"):
        prepare_arrays(tmp_path / "secret.npz", tmp_path / "out", progress=False)


def test_file_that_is_not_npz_is_rejected(tmp_path):
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(DataError, match=r"not a readable \.npz file"):
        prepare_arrays(tmp_path / "text.npz", tmp_path / "out", progress=False)
    with pytest.raises(DataError, match="does not exist"):
        prepare_arrays(tmp_path / "nowhere.npz", tmp_path / "out", progress=False)
    with pytest.raises(DataError, match="directory"):
        prepare_arrays(tmp_path, tmp_path / "out", progress=False)


def test_existing_folder_is_kept_without_overwrite(prepare, tmp_path):
    prepare(some_arrays(), window=(0, 1))
    before = (tmp_path / "out" / "dataset.json").read_bytes()
    with pytest.raises(OutputError, match="--overwrite"):
        prepare_arrays(tmp_path / "source.npz", tmp_path / "out", progress=False)
    assert (tmp_path / "out" / "dataset.json").read_bytes() == before


def test_command_prepares_dataset_and_prints_summary(cli, tmp_path):
    np.savez(tmp_path / "a.npz", **some_arrays(num_rows=10))
    words = ["--modality", "MR", "--plane", "coronal", "--classes", "background", "cell"]
    result = cli("prepare", "arrays", tmp_path / "a.npz", tmp_path / "out", *words)
    assert result.code == 0, result.err
    assert "10 cases of 10 patients" in result.out
    assert "chose --window" in result.err
    info = Dataset.open(tmp_path / "out").info
    assert "--classes background cell" in info.command
    assert (info.modality, info.plane) == ("MR", "coronal")
    wrong = cli("prepare", "arrays", tmp_path / "a.npz", tmp_path / "other", "--modality", "CAT")
    assert wrong.code == 2
    assert "CAT" in wrong.err


def shared_file(name):
    if not (SHARED / name).is_file():
        pytest.skip(f"../shared/data/{name} is not there")
    return SHARED / name


def test_lung_crops_keep_pixels_splits_and_provenance(tmp_path):
    path = shared_file("lidc_maxslice71.npz")
    options = FixedSizeOptions(window=(-1000, 400), classes=("background", "nodule"))
    dataset = prepare_arrays(path, tmp_path / "out", options, progress=False)
    with np.load(path) as source:
        np.testing.assert_array_equal(dataset.images[:, 0], source["images"])
        np.testing.assert_array_equal(dataset.labels, source["masks"])
        assert dataset.images.dtype == np.int16
        for name in ("train", "val"):
            np.testing.assert_array_equal(dataset.rows(name), np.flatnonzero(source["split"] == name))
        assert [case["series_uid"] for case in dataset.cases] == [*source["series_uid"]]
        origins = [[int(case["crop_origin_xy_0"]), int(case["crop_origin_xy_1"])] for case in dataset.cases]
        np.testing.assert_array_equal(origins, source["crop_origin_xy"])
    assert list(dataset.splits) == ["train", "val"]
    assert dataset.valid.all()


def test_cells_keep_missing_annotators(tmp_path):
    path = shared_file("bubil_cells128.npz")
    dataset = prepare_arrays(path, tmp_path / "out", progress=False)
    with np.load(path) as source:
        np.testing.assert_array_equal(dataset.valid, source["valid"] == 1)
        np.testing.assert_array_equal(dataset.labels[dataset.valid], source["masks"][source["valid"] == 1])
    assert not dataset.valid.all()
    assert (dataset.info.intensity.low, dataset.info.intensity.high) == (0, 1)


def test_crop_position_is_in_cases_csv(prepare):
    dataset = prepare(some_arrays(), size=6)
    assert (dataset.cases[0]["cut_row"], dataset.cases[0]["cut_column"]) == ("1", "2")
    larger = prepare(some_arrays(), size=12)
    assert (larger.cases[0]["cut_row"], larger.cases[0]["cut_column"]) == ("-2", "-1")


def nodule_slices():
    """Two patients: one with nodules of 2 and 1 slices, the other with one nodule of 3."""
    return some_arrays() | {
        "case_ids": np.array(["p1", "p1", "p1", "p2", "p2", "p2"]),
        "nodule": np.array([0, 0, 1, 0, 0, 0], dtype=np.int16),
        "slice": np.array([0, 1, 0, 0, 1, 2], dtype=np.int16),
    }


def test_nodule_and_slice_are_columns_and_in_case_names(prepare):
    dataset = prepare(nodule_slices(), window=(0, 1), fractions=(0.5, 0.5, 0))
    assert [case["nodule"] for case in dataset.cases] == ["0", "0", "1", "0", "0", "0"]
    assert [case["slice"] for case in dataset.cases] == ["0", "1", "0", "0", "1", "2"]
    assert dataset.cases[2]["case"] == "p1-nodule-1-slice-0"
    assert sorted(chain(*dataset.splits.values())) == ["p1", "p2"]
    for split in ("train", "val"):
        assert len({dataset.cases[row]["patient"] for row in dataset.rows(split)}) == 1


def test_case_names_use_rows_if_nodule_and_slice_repeat(prepare):
    arrays = nodule_slices()
    arrays["slice"][1] = 0
    dataset = prepare(arrays, window=(0, 1))
    assert [case["case"] for case in dataset.cases][:2] == ["p1-00000", "p1-00001"]
    assert [case["slice"] for case in dataset.cases][:2] == ["0", "0"]


def test_rescale_gives_hounsfield_units_as_int16(prepare):
    images = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)
    arrays = {"images": images, "masks": np.zeros((4, 1, 8, 8), dtype=np.uint8)}
    dataset = prepare(arrays, rescale=(5.490196, -1000), window=(-1000, 400), size=10)
    assert dataset.images.dtype == np.int16
    inner = dataset.images[:, 0, 1:-1, 1:-1].ravel()
    assert inner.tolist() == [round(value * 1400 / 255 - 1000) for value in range(256)]
    assert (dataset.images[:, 0, 0] == -1000).all(), "padded with the window's lower end"
    assert dataset.info.source["rescale"] == [5.490196, -1000]
    np.testing.assert_allclose(dataset.image(3)[0, -2, -2], 0.5, atol=1e-3)


@pytest.mark.parametrize(
    ("images", "rescale", "expected"),
    [
        (np.array([0, 51], dtype=np.uint8), (1 / 255, 0), [0, 0.2]),
        (np.array([0, 60000], dtype=np.uint16), (1, -1024), [-1024, 58976]),
        (np.array([0.25, 0.75], dtype=np.float64), (2, -1), [-0.5, 0.5]),
    ],
    ids=["slope below 1", "beyond int16", "fractions"],
)
def test_rescale_uses_float32_if_int16_would_change_values(prepare, images, rescale, expected):
    arrays = {"images": images[:, None, None], "masks": np.zeros((2, 1, 1, 1))}
    dataset = prepare(arrays, rescale=rescale, window=(0, 1))
    assert dataset.images.dtype == np.float32
    np.testing.assert_allclose(dataset.images.ravel(), expected, rtol=1e-6)


def test_percentile_window_uses_rescaled_values(prepare, capfd):
    arrays = some_arrays(num_rows=40, size=(16, 16))
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16)).astype(np.uint8)
    dataset = prepare(arrays | {"images": images}, rescale=(2, -100))
    low, high = np.percentile(images.astype(int) * 2 - 100, [0.5, 99.5])
    assert dataset.info.intensity.low == pytest.approx(low, abs=2)
    assert dataset.info.intensity.high == pytest.approx(high, abs=2)
    assert "chose --window" in capfd.readouterr().err

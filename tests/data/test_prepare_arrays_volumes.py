"""Volumes in .npz files: one array per volume, or slices that form volumes."""

import tracemalloc

import numpy as np
import pytest

from phiseg.core.errors import ConfigError, DataError
from phiseg.data.prepare.arrays import prepare_arrays
from phiseg.data.prepare.fixed_size_source import FixedSizeOptions

DEPTHS = (3, 5, 2, 4)
NUM_ANNOTATORS, SIZE = 2, (6, 7)
PATIENTS = np.array(["a", "a", "b", "c"])


def volume(number, channels=None):
    rng = np.random.default_rng(number)
    shape = (DEPTHS[number], *SIZE)
    image = rng.integers(0, 255, shape if channels is None else (*shape, channels)).astype(np.uint8)
    return image, rng.integers(0, 2, (NUM_ANNOTATORS, *shape)).astype(np.uint8)


def listed(**changes):
    """Return the arrays of a file with one array per volume."""
    arrays = {}
    for number in range(4):
        arrays[f"image_{number:03d}"], arrays[f"masks_{number:03d}"] = volume(number)
    tables = {
        "case_ids": PATIENTS,
        "nodule": np.array([0, 1, 0, 0]),
        "pixel_spacing_mm": np.array([0.7, 0.7, 0.5, 0.6]),
        "slice_spacing_mm": np.array([2.5, 2.5, 1.25, 1.0]),
        "split": np.array(["train", "train", "val", "test"]),
    }
    return {key: value for key, value in {**arrays, **tables, **changes}.items() if value is not None}


def stacked(**changes):
    """Return the arrays of a file with the slices of the same volumes."""
    tables = listed()
    owner = np.repeat(np.arange(4), DEPTHS)
    arrays = {
        "images": np.concatenate([volume(number)[0] for number in range(4)]),
        "masks": np.concatenate([volume(number)[1].swapaxes(0, 1) for number in range(4)]),
        "slice": np.concatenate([np.arange(depth) for depth in DEPTHS]),
        "hu_steps": np.arange(sum(DEPTHS)),
        **{key: tables[key][owner] for key in ("case_ids", "nodule", "pixel_spacing_mm", "split")},
        "slice_thickness_mm": tables["slice_spacing_mm"][owner],
    }
    return {key: value for key, value in {**arrays, **changes}.items() if value is not None}


def prepare(tmp_path, arrays, **options):
    np.savez_compressed(tmp_path / "volumes.npz", **arrays)
    return prepare_arrays(
        tmp_path / "volumes.npz", tmp_path / "data", FixedSizeOptions(**options), volumes=True, progress=False
    )


@pytest.mark.parametrize("layout", [listed, stacked])
def test_volumes_are_read_in_both_layouts(layout, tmp_path, capsys):
    dataset = prepare(tmp_path, layout())
    assert dataset.dims == 3
    assert [case["case"] for case in dataset.cases] == ["a-nodule-0", "a-nodule-1", "b-nodule-0", "c-nodule-0"]
    assert dataset.splits == {"train": ["a"], "val": ["b"], "test": ["c"]}
    for row in range(4):
        image, masks = volume(row)
        np.testing.assert_array_equal(dataset.stored_image(row)[0], image)
        np.testing.assert_array_equal(dataset.annotations(row), masks)
    assert dataset.voxel_spacing_mm(2) == (1.25, 0.5, 0.5)
    assert "slice" not in dataset.cases[0]
    assert "hu_steps" not in dataset.cases[0]
    assert ("'slice_thickness_mm' is used" in capsys.readouterr().err) == (layout is stacked)


def test_channels_and_options_apply_to_volumes(tmp_path):
    arrays = listed(**{f"image_{number:03d}": volume(number, channels=3)[0] for number in range(4)})
    dataset = prepare(tmp_path, arrays, size=4, rescale=(2, -10), window=(0, 100))
    assert dataset.stored_image(1).shape == (3, 5, 4, 4)
    expected = 2.0 * volume(1, channels=3)[0][:, 1:5, 1:5].transpose(3, 0, 1, 2) - 10
    np.testing.assert_array_equal(dataset.stored_image(1), expected)
    np.testing.assert_array_equal(dataset.annotations(1), volume(1)[1][..., 1:5, 1:5])


def test_zscore_is_computed_over_the_volume(tmp_path):
    dataset = prepare(tmp_path, listed(), zscore=True)
    assert dataset.info.intensity.kind == "zscore"
    for row in range(4):
        assert dataset.image(row).mean() == pytest.approx(0, abs=1e-5)
        assert dataset.image(row).std() == pytest.approx(1, abs=1e-5)
        assert abs(dataset.image(row)[:, 0].mean()) > 1e-3  # of a slice


def test_zscored_volumes_are_padded_with_zeros(tmp_path):
    """As `PreparedStack.images` and a MONAI bundle do."""
    image = prepare(tmp_path, listed(), zscore=True, size=9).image(0)
    assert (image[..., 0, :] == 0).all()
    assert (image[..., :, -1] == 0).all()


def test_zscore_of_volume_crops_is_rejected(tmp_path):
    """Predict has the mean and standard deviation of the whole scan only."""
    with pytest.raises(ConfigError, match=r"--zscore.*--centred-on.*--window LOW HIGH"):
        prepare(tmp_path, listed(), zscore=True, centred_on="nodule")


def test_annotator_missing_in_a_slice_is_missing_in_the_volume(tmp_path):
    valid = np.ones((sum(DEPTHS), NUM_ANNOTATORS))
    valid[4, 1] = 0
    assert prepare(tmp_path, stacked(valid=valid)).valid.tolist() == [[1, 1], [1, 0], [1, 1], [1, 1]]


def test_annotators_may_be_missing_in_listed_volumes(tmp_path):
    valid = np.array([[1, 1], [0, 1], [1, 1], [1, 0]])
    np.testing.assert_array_equal(prepare(tmp_path, listed(valid=valid)).valid, valid)


TURNED = {f"image_{number:03d}": np.moveaxis(volume(number)[0], 0, -1) for number in range(4)}
TURNED |= {f"masks_{number:03d}": np.moveaxis(volume(number)[1], 1, -1) for number in range(4)}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (listed(slice_spacing_mm=None), r"volumes need 'slice_spacing_mm' \(4,\)"),
        (listed(pixel_spacing_mm=None), "volumes need 'pixel_spacing_mm'"),
        (listed(slice_spacing_mm=np.array([1, 2, 0, 1])), "'slice_spacing_mm' must contain finite positive"),
        (listed(masks_001=None), "has no array 'masks_001'"),
        (listed(masks_001=volume(1)[1].swapaxes(0, 1)), r"'masks_001' has shape \(5, 2, 6, 7\), expected \(ann"),
        (listed(masks_001=np.zeros((3, 5, *SIZE), np.uint8)), "has 2 annotators, but 'masks_001' has 3"),
        (listed(image_002=np.zeros((6, 7))), r"'image_002' has shape \(6, 7\), expected \(slices, height, width\)"),
        (listed(**TURNED), r"image \(1, 6, 7, 5\).* in the order slices, height, width"),
        (
            listed(image_001=np.moveaxis(volume(1)[0], 0, -1)),
            r"'masks_001' has .*, expected \(annotators, 6, 7, 5\) .* both in the order slices, height, width",
        ),
        (stacked(slice=None), "--volumes needs 'slice'"),
        (stacked(slice=np.r_[0, 2, 3, np.arange(11)]), r"row 1 \(slice 2\) does not follow row 0"),
        (stacked(case_ids=None, nodule=None), "--volumes needs 'case_ids'"),
        (stacked(slice_thickness_mm=np.arange(1.0, 15)), "differs between slices of one volume"),
        ({"x": np.zeros(3)}, "has no volumes; save arrays image_000"),
    ],
)  # fmt: skip
def test_unsuitable_file_is_rejected(arrays, message, tmp_path):
    with pytest.raises(DataError, match=message):
        prepare(tmp_path, arrays)
    assert not (tmp_path / "data").exists()


def test_square_slices_along_the_last_axis_are_rejected(tmp_path):
    """With a size, slices may have different widths."""
    arrays = {
        f"{kind}_{number:03d}": np.zeros((*annotators, 6, 6, DEPTHS[number]), np.uint8)
        for kind, annotators in (("image", ()), ("masks", (NUM_ANNOTATORS,)))
        for number in range(4)
    }
    with pytest.raises(DataError, match=r"'image_000' would have 6 slices of 6 x 3 pixels; .* in the order slices"):
        prepare(tmp_path, listed(**arrays), size=4)


@pytest.mark.parametrize("layout", ["listed", "stacked"])
def test_memory_does_not_grow_with_the_number_of_volumes(layout, tmp_path):
    image, masks = np.zeros((40, 64, 64), np.uint8), np.zeros((4, 40, 64, 64), np.uint8)
    image[20], masks[:, 20, 30, 30] = 100, 1
    size = image.nbytes + masks.nbytes
    tables = {"pixel_spacing_mm": np.array(0.7)}
    if layout == "listed":
        tables |= {f"image_{number}": image for number in range(30)}
        tables |= {f"masks_{number}": masks for number in range(30)}
        rows = np.arange(30)
    else:
        tables |= {"images": np.tile(image, (30, 1, 1)), "masks": np.tile(masks.swapaxes(0, 1), (30, 1, 1, 1))}
        tables["slice"] = np.tile(np.arange(40), 30)
        rows = np.repeat(np.arange(30), 40)
    np.savez_compressed(tmp_path / "volumes.npz", **tables, case_ids=rows, slice_spacing_mm=np.full(len(rows), 2.0))
    del tables
    tracemalloc.start()
    try:
        dataset = prepare_arrays(tmp_path / "volumes.npz", tmp_path / "data", volumes=True, progress=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert dataset.num_cases == 30
    assert peak < 8 * size  # of 30 volumes


def test_command_writes_volumes(tmp_path, cli):
    np.savez(tmp_path / "volumes.npz", **listed())
    result = cli("prepare", "arrays", tmp_path / "volumes.npz", tmp_path / "data", "--volumes")
    assert result.code == 0
    assert "4 cases of 3 patients" in result.out
    assert "2 to 5 slices of 6 x 7 pixels" in result.out
    assert "phiseg train phiseg3d-small" in result.out


def test_lidc_volumes_are_read(shared_data, tmp_path):
    path = shared_data("lidc_volumes.npz")
    options = FixedSizeOptions(rescale=(1400 / 255, -1000), window=(-1000, 400), classes=("background", "nodule"))
    dataset = prepare_arrays(path, tmp_path / "data", options, volumes=True, progress=False)
    assert dataset.num_cases == 32
    with np.load(path) as source:
        for row in (0, 17, 31):
            name = f"{source['case_ids'][row]}-nodule-{source['nodule'][row]}"
            assert dataset.cases[row]["case"] == name
            np.testing.assert_array_equal(dataset.annotations(row), source[f"masks_{row:03d}"])
            hounsfield = source[f"image_{row:03d}"] * (1400 / 255) - 1000
            np.testing.assert_allclose(dataset.stored_image(row)[0], hounsfield, atol=0.51)
            assert dataset.voxel_spacing_mm(row)[0] == source["slice_spacing_mm"][row]


def test_volumes_without_the_option_are_rejected(tmp_path):
    np.savez(tmp_path / "volumes.npz", **listed())
    with pytest.raises(DataError, match=r"contains volumes .*; pass --volumes \(in Python: volumes=True\)"):
        prepare_arrays(tmp_path / "volumes.npz", tmp_path / "data", progress=False)

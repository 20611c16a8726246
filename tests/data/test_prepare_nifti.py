"""`phiseg prepare nifti`: from volumes with several annotators to slices, and back to world coordinates."""

import csv
import json

import nibabel
import numpy as np
import pytest

from phiseg.core.errors import ConfigError, DataError, OutputError
from phiseg.data.intensity import normalise
from phiseg.data.prepare.nifti import prepare_nifti
from phiseg.data.prepare.nifti_slices import Slicing
from phiseg.data.store import Dataset
from phiseg.imaging.nifti_files import write_nifti
from phiseg.imaging.volume import Volume

SHAPE = (12, 10, 6)
PLAIN = np.diag([-1.0, -1.0, 3.0, 1.0])  # L, P, S: an axial slice is values[:, :, k].T


def oblique(spacing=(0.8, 1.1, 2.5), angle=0.3):
    """Axes about P, S and R, turned twice."""
    c, s = np.cos(angle), np.sin(angle)
    turn = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]) @ np.array([[1, 0, 0], [0, c, -s], [0, s, c]])
    affine = np.eye(4)
    affine[:3, :3] = turn @ np.array([[0, 0, 1], [-1, 0, 0], [0, 1, 0]]) * spacing
    affine[:3, 3] = (-20.0, 35.0, 4.0)
    return affine


def world(shape, affine):
    """Place of every voxel, (I, J, K, 3)."""
    return np.stack(np.indices(shape), axis=-1) @ affine[:3, :3].T + affine[:3, 3]


def some_image(shape=SHAPE, seed=0):
    return np.random.default_rng(seed).normal(100, 20, shape).astype(np.float32)


def some_labels(shape=SHAPE, classes=3, seed=0):
    return np.random.default_rng(seed).integers(0, classes, shape).astype(np.uint8)


def write(path, values, affine=PLAIN):
    write_nifti(path, Volume(values, affine))
    return path


@pytest.fixture
def source(tmp_path):
    """Three cases with raters bo and al, case folders."""
    for seed, case in enumerate(("p1", "p2", "p3")):
        write(tmp_path / "src" / case / "image.nii.gz", some_image(seed=seed))
        for shift, rater in enumerate(("bo", "al")):
            write(tmp_path / "src" / case / f"rater-{rater}.nii.gz", some_labels(seed=10 * seed + shift))
    return tmp_path / "src"


@pytest.fixture
def nnunet(tmp_path):
    """Two cases of two channels, in nnU-Net's layout, with raters a and b and three labels."""
    for seed, case in enumerate(("c_1", "c_2")):
        for channel in range(2):
            write(
                tmp_path / "raw" / "imagesTr" / f"{case}_{channel:04d}.nii.gz", some_image(seed=seed + 5 * channel)
            )
        for shift, rater in enumerate("ab"):
            labels = some_labels(classes=4, seed=seed + 7 * shift)
            write(tmp_path / "raw" / f"labelsTr_{rater}" / f"{case}.nii.gz", labels)
    names = {"background": 0, "tz": 1, "pz": 2, "lesion": 3}
    (tmp_path / "raw" / "dataset.json").write_text(json.dumps({"labels": names}))
    return tmp_path / "raw"


def prepare(source, out=None, **options):
    return prepare_nifti(source, out or source.parent / "out", progress=False, **options)


def table(dataset):
    with (dataset.path / "cases.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_case_folders_are_sliced_with_all_raters(source):
    dataset = prepare(source)
    assert dataset.images.shape == (18, 1, 10, 12)
    assert dataset.images.dtype == np.float32
    assert dataset.info.classes == ("background", "class 1", "class 2")
    assert dataset.info.source["raters"] == ["al", "bo"]
    assert dataset.info.spacing_mm == (1, 1)
    assert {row["patient"] for row in dataset.cases} == {"p1", "p2", "p3"}
    assert sorted(map(len, dataset.splits.values())) == [1, 1, 1]
    assert dataset.valid.all()
    row = next(i for i, case in enumerate(dataset.cases) if (case["scan"], case["slice"]) == ("p2", "4"))
    image = some_image(seed=1)
    expected = (image - image.mean()) / image.std()
    np.testing.assert_allclose(dataset.images[row, 0], expected[:, :, 4].T, atol=1e-5)
    np.testing.assert_array_equal(dataset.labels[row, 0], some_labels(seed=11)[:, :, 4].T)  # al
    np.testing.assert_array_equal(dataset.labels[row, 1], some_labels(seed=10)[:, :, 4].T)  # bo


def test_nnunet_layout_has_channels_and_class_names(nnunet):
    dataset = prepare(nnunet, merge={3: 0})
    assert dataset.images.shape == (12, 2, 10, 12)
    assert dataset.info.classes == ("background", "tz", "pz")
    assert dataset.info.source["raters"] == ["a", "b"]
    for channel in range(2):
        image = some_image(seed=1 + 5 * channel)
        expected = (image - image.mean()) / image.std()
        np.testing.assert_allclose(dataset.images[6, channel], expected[:, :, 0].T, atol=1e-5)
    labels = some_labels(classes=4, seed=8)[:, :, 0].T
    np.testing.assert_array_equal(dataset.labels[6, 1], np.where(labels == 3, 0, labels))


def test_nnunet_layout_supports_older_variants(nnunet):
    (nnunet / "dataset.json").write_text(json.dumps({"labels": {"0": "bg", "1": "a", "2": "b", "3": "c"}}))
    (nnunet / "labelsTr_a").rename(nnunet / "labelsTr")
    compressed = nnunet / "labelsTr" / "c_1.nii.gz"
    nibabel.save(nibabel.load(compressed), nnunet / "labelsTr" / "c_1.nii")
    compressed.unlink()
    dataset = prepare(nnunet, strict=True)
    assert dataset.info.classes == ("bg", "a", "b", "c")
    assert dataset.info.source["raters"] == ["b", "labelsTr"]
    np.testing.assert_array_equal(dataset.labels[0, 1], some_labels(classes=4, seed=0)[:, :, 0].T)


@pytest.mark.parametrize(
    ("merge", "names"),
    [
        ({2: 1, 3: 2}, ("background", "tz", "lesion")),
        ({1: 2, 2: 1}, ("background", "pz", "tz", "lesion")),
        ({1: 0, 2: 0, 3: 1}, ("background", "lesion")),
    ],
)
def test_merge_renumbers_labels_at_once_with_names(nnunet, merge, names):
    dataset = prepare(nnunet, merge=merge)
    assert dataset.info.classes == names
    before = some_labels(classes=4, seed=0)[:, :, 0].T
    np.testing.assert_array_equal(dataset.labels[0, 0], np.vectorize(lambda label: merge.get(label, label))(before))


def test_fourth_dimension_holds_channels(source):
    for seed, case in enumerate(("p1", "p2")):
        write(source / case / "image.nii.gz", some_image((*SHAPE, 3), seed=seed))
    dataset = prepare(source)
    assert dataset.images.shape == (12, 3, 10, 12)
    (reason,) = dataset.info.source["left_out"]  # it has one channel
    assert "case 'p3'" in reason
    image = some_image((*SHAPE, 3), seed=0)[..., 2]
    expected = (image - image.mean()) / image.std()
    np.testing.assert_allclose(dataset.images[1, 2], expected[:, :, 1].T, atol=1e-5)


def test_missing_rater_is_marked(source):
    (source / "p2" / "rater-al.nii.gz").unlink()
    dataset = prepare(source)
    missing = [case["scan"] == "p2" for case in dataset.cases]
    np.testing.assert_array_equal(dataset.valid[:, 0], ~np.array(missing))
    assert dataset.valid[:, 1].all()
    assert (dataset.labels[missing, 0] == 255).all()
    np.testing.assert_array_equal(dataset.labels[6, 1], some_labels(seed=10)[:, :, 0].T)


@pytest.mark.parametrize("text", ["case,patient\np1,anna\np3,anna\n", "Case; Patient\np1;anna\np3; anna\n"])
def test_cases_of_a_patient_stay_in_one_split(source, text):
    (source / "patients.csv").write_text(text)
    dataset = prepare(source)
    assert {(row["scan"], row["patient"]) for row in dataset.cases} == {
        ("p1", "anna"),
        ("p2", "p2"),
        ("p3", "anna"),
    }
    assert sorted(patient for part in dataset.splits.values() for patient in part) == ["anna", "p2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("case,patient\np9,anna\n", r"patients\.csv, line 2: unknown case 'p9'"),
        ("case,patient\np1,anna\np1,bob\n", r"patients\.csv, line 3: case 'p1' occurs twice"),
        (
            "scan,patient\np1,anna\n",
            r"patients\.csv, line 2: no case or no patient; the first line must be 'case,patient'",
        ),
    ],
)
def test_invalid_patients_csv_is_rejected(source, text, message):
    (source / "patients.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        prepare(source)


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("affine", [PLAIN, oblique()], ids=["plain", "oblique"])
def test_labels_with_reordered_axes_are_equal(source, order, affine):
    for case in ("p1", "p2", "p3"):
        write(source / case / "image.nii.gz", some_image(), affine)
        for rater in ("al", "bo"):
            write(source / case / f"rater-{rater}.nii.gz", some_labels(), affine)
    turned = np.zeros((4, 4))
    for new, old in enumerate(order):
        turned[old, new] = -1  # every axis backwards
        turned[old, 3] = SHAPE[old] - 1
    turned[3, 3] = 1
    labels = some_labels()[::-1, ::-1, ::-1].transpose(order)
    write(source / "p2" / "rater-al.nii.gz", labels, affine @ turned)
    dataset = prepare(source, strict=True)
    rows = {(case["scan"], case["slice"]): row for row, case in enumerate(dataset.cases)}
    for (scan, index), row in rows.items():
        if scan == "p2":
            np.testing.assert_array_equal(dataset.labels[row], dataset.labels[rows["p1", index]])


@pytest.mark.parametrize("plane", ["axial", "coronal", "sagittal", "auto"])
@pytest.mark.parametrize("spacing", [None, 0.9])
def test_ball_keeps_its_world_position(tmp_path, plane, spacing):
    shape, affine = (28, 24, 12), oblique()
    places = world(shape, affine)
    centre, radius = places[16, 10, 6] + 0.3, 7.0
    ball = np.linalg.norm(places - centre, axis=-1) <= radius
    write(tmp_path / "src" / "a" / "image.nii.gz", ball.astype(np.float32) * 50 + places[..., 0], affine)
    write(tmp_path / "src" / "a" / "rater-one.nii.gz", ball.astype(np.uint8), affine)
    write(tmp_path / "src" / "a" / "rater-two.nii.gz", 1 - ball.astype(np.uint8), affine)
    slicing = Slicing(plane=plane, spacing=spacing, size=(30, 26))
    dataset = prepare(tmp_path / "src", slicing=slicing, classes=("outside", "ball"))
    assert {row["plane"] for row in dataset.cases} == {"sagittal" if plane == "auto" else plane}
    assert (dataset.info.plane, dataset.info.centred_on, dataset.info.modality) == (plane, None, None)
    drawn = np.concatenate(
        [
            places_of_pixels(row, mask.shape)[mask == 1]
            for row, mask in zip(table(dataset), dataset.labels[:, 0], strict=True)
        ]
    )
    if spacing is None:  # pixels are voxels: the very same ones
        np.testing.assert_allclose(np.sort(drawn, axis=0), np.sort(places[ball], axis=0), atol=1e-4)
    reach = radius + (0 if spacing is None else 0.5 * np.hypot(1.1, 2.5))  # to the nearest voxel of a slice
    assert np.linalg.norm(drawn - centre, axis=-1).max() <= reach


@pytest.mark.parametrize("plane", ["axial", "coronal", "sagittal"])
def test_pixel_labels_match_voxels_at_world_position(tmp_path, plane):
    affine, labels = oblique(), some_labels()
    write(tmp_path / "src" / "a" / "image.nii.gz", some_image(), affine)
    write(tmp_path / "src" / "a" / "rater-one.nii.gz", labels, affine)
    dataset = prepare(tmp_path / "src", slicing=Slicing(plane=plane, spacing=0.93, size=(31, 38)))
    inside = 0
    for row, found in zip(table(dataset), dataset.labels[:, 0], strict=True):
        voxels = (places_of_pixels(row, found.shape) - affine[:3, 3]) @ np.linalg.inv(affine[:3, :3]).T
        nearest = np.rint(voxels).astype(int)
        clear = (np.abs(np.abs(voxels - nearest) - 0.5) > 1e-3).all(axis=-1)  # not between two voxels
        within = ((nearest >= 0) & (nearest < SHAPE)).all(axis=-1)
        expected = np.where(within, labels[tuple(np.clip(nearest, 0, np.array(SHAPE) - 1).T)].T, 0)
        np.testing.assert_array_equal(found[clear], expected[clear])
        inside += within.sum()
    assert inside > 500


def places_of_pixels(row, size):
    """World coordinates of a stored image's pixels (H, W, 3), from the columns of cases.csv alone."""
    corner, down, over = (
        np.array([float(row[column.format(axis)]) for axis in "xyz"]) for column in ("{}_mm", "row_{}", "column_{}")
    )
    down, over = down * float(row["row_spacing_mm"]), over * float(row["column_spacing_mm"])
    r, c = np.indices(size)
    return corner + r[..., None] * down + c[..., None] * over


def test_origin_is_the_corner_in_the_full_slice(source):
    wide = prepare(source, slicing=Slicing(size=(16, 4)))
    assert {(row["origin_row"], row["origin_column"]) for row in table(wide)} == {("-3.0", "4.0")}
    np.testing.assert_array_equal(wide.labels[0, 1][3:13], some_labels(seed=0)[4:8, :, 0].T)
    assert not wide.labels[0, 1][:3].any()
    assert not wide.images[0, 0][:3].any()


def test_prostate_protocol_is_one_command(tmp_path, cli):
    affine = np.diag([-0.625, -0.625, 3.6, 1])
    for seed in range(5):
        folder = tmp_path / "src" / f"patient{seed}"
        write(folder / "image.nii.gz", some_image((64, 64, 3), seed), affine)
        for rater in range(6):
            write(folder / f"rater-{rater}.nii.gz", some_labels((64, 64, 3), 4, seed + rater), affine)
    words = [
        "--spacing",
        "0.6",
        "--size",
        "192",
        "--merge",
        "3:0",
        "--classes",
        "background",
        "tz",
        "pz",
        "--fractions",
        "60,20,20",
        "--modality",
        "MR",
    ]
    done = cli("prepare", "nifti", tmp_path / "src", tmp_path / "out", *words)
    assert done.code == 0, done.err
    dataset = Dataset.open(tmp_path / "out")
    assert dataset.images.shape == (15, 1, 192, 192)
    assert dataset.labels.shape == (15, 6, 192, 192)
    assert dataset.info.spacing_mm == pytest.approx((0.6, 0.6))
    assert (dataset.info.intensity.kind, dataset.info.modality) == ("zscore", "MR")
    assert {name: len(part) for name, part in dataset.splits.items()} == {"train": 3, "val": 1, "test": 1}
    assert dataset.labels.max() == 2
    rows, columns = np.nonzero(dataset.images[0, 0])
    assert np.ptp(rows) == np.ptp(columns) == 65  # 40 mm hold the middles of 66 pixels of 0.6 mm
    assert "annotators: 0, 1, 2, 3, 4, 5" in done.out
    assert "--merge 3:0" in dataset.info.command


def test_native_non_square_pixels_are_unchanged(source):
    affine = np.diag([-0.5, -0.8, 3, 1])
    for case in ("p1", "p2", "p3"):
        for path in (source / case).iterdir():
            nibabel.save(nibabel.Nifti1Image(np.asarray(nibabel.load(path).dataobj), affine), path)
    dataset = prepare(source)
    assert dataset.info.spacing_mm == pytest.approx((0.8, 0.5))
    assert {(row["row_spacing_mm"], row["column_spacing_mm"]) for row in table(dataset)} == {("0.8", "0.5")}
    np.testing.assert_array_equal(dataset.labels[0, 1], some_labels(seed=0)[:, :, 0].T)


def test_spacing_equal_up_to_rounding_copies_pixels(source):
    dataset = prepare(source, slicing=Slicing(spacing=1.00003))
    np.testing.assert_array_equal(dataset.labels[0, 1], some_labels(seed=0)[:, :, 0].T)


def test_smaller_images_are_padded_to_the_largest(source):
    write(source / "p2" / "image.nii.gz", some_image((8, 14, 2)))
    for rater in ("al", "bo"):
        write(source / "p2" / f"rater-{rater}.nii.gz", some_labels((8, 14, 2)))
    dataset = prepare(source)
    assert dataset.images.shape == (14, 1, 14, 12)
    np.testing.assert_array_equal(dataset.labels[0, 1, 2:12], some_labels(seed=0)[:, :, 0].T)


@pytest.mark.parametrize(
    ("image", "window", "dtype"),
    [
        (np.int16, (-1000.0, 400.0), np.int16),
        (np.uint8, (-1000.5, 400.0), np.int16),
        (np.uint16, (-1000.0, 400.0), np.float32),
        (np.float32, (-1000.0, 400.0), np.float32),
        (np.int16, (-100000.0, 400.0), np.float32),
        (np.int16, (40000.0, 50000.0), np.float32),
    ],
)
def test_window_keeps_values_and_pads_with_lower_end(source, image, window, dtype):
    for case in ("p1", "p2", "p3"):
        write(source / case / "image.nii.gz", some_image().astype(image))
    dataset = prepare(source, slicing=Slicing(window=window, size=(12, 12)))
    assert dataset.images.dtype == dtype
    np.testing.assert_array_equal(dataset.images[0, 0, 1:11], some_image().astype(image)[:, :, 0].T)
    assert (normalise(dataset.images[0, 0, 0], dataset.info.intensity) == -0.5).all()


def test_annotated_slices_option_skips_empty_slices(source):
    for case in ("p1", "p2", "p3"):
        for rater, index in (("al", 1), ("bo", 4)):
            labels = np.zeros(SHAPE, np.uint8)
            labels[5, 5, index] = 1
            write(source / case / f"rater-{rater}.nii.gz", labels)
    write(source / "p3" / "rater-al.nii.gz", np.zeros(SHAPE, np.uint8))
    dataset = prepare(source, slicing=Slicing(slices="annotated"))
    kept = [(row["scan"], row["slice"]) for row in dataset.cases]
    assert kept == [("p1", "1"), ("p1", "4"), ("p2", "1"), ("p2", "4"), ("p3", "4")]


def test_result_is_independent_of_workers(source, tmp_path):
    damage_voxels(source)
    alone = prepare(source, tmp_path / "alone")
    together = prepare(source, tmp_path / "together", workers=2)
    assert together.info.arrays == alone.info.arrays
    assert together.cases == alone.cases
    assert together.info.source == alone.info.source


def damage_geometry(source):
    write(source / "p2" / "rater-al.nii.gz", some_labels(), PLAIN + np.outer([0, 0, 1, 0], [0, 0, 0, 5.0]))


def damage_shape(source):
    write(source / "p2" / "rater-al.nii.gz", some_labels((12, 10, 5)))


def damage_voxels(source):
    image = some_image()
    image[3, 3, 3] = np.nan
    write(source / "p2" / "image.nii.gz", image)


def damage_bytes(source):
    path = source / "p2" / "image.nii.gz"
    path.write_bytes(path.read_bytes()[:700])


def damage_labels(source):
    write(source / "p2" / "rater-bo.nii.gz", some_labels() * np.float32(0.5))


def damage_time(source):
    write(source / "p2" / "rater-bo.nii.gz", some_labels((*SHAPE, 2)))


def damage_contrast(source):
    write(source / "p2" / "image.nii.gz", np.full(SHAPE, 7, np.int16))


def remove_image(source):
    (source / "p2" / "image.nii.gz").unlink()


def remove_raters(source):
    for path in (source / "p2").glob("rater-*"):
        path.unlink()


def double_image(source):
    write(source / "p2" / "image.nii", some_image())


BAD = {
    damage_geometry: r"image\.nii\.gz and .*rater-al\.nii\.gz are not on the same grid \(voxels up to 5 mm apart",
    damage_shape: r"rater-al\.nii\.gz are not on the same grid \(12 x 10 x 6 against 12 x 10 x 5 voxels\)",
    damage_voxels: r"p2/image\.nii\.gz has NaN or infinite voxels",
    damage_bytes: r"p2/image\.nii\.gz cannot be read as NIfTI",
    damage_labels: r"rater-bo\.nii\.gz contains 0\.5, which is not a class index",
    damage_time: r"rater-bo\.nii\.gz has 4 dimensions",
    damage_contrast: r"p2/image\.nii\.gz: all voxels have the same value",
    remove_image: r"p2/rater-al\.nii\.gz has no image; add .*p2/image\.nii\.gz",
    remove_raters: r"p2/image\.nii\.gz has no labels",
    double_image: r"image\.nii and image\.nii\.gz both exist",
}


@pytest.mark.parametrize("damage", BAD, ids=lambda damage: damage.__name__)
def test_unusable_case_is_reported_skipped_and_counted(source, cli, damage):
    damage(source)
    with pytest.raises(DataError, match=BAD[damage]):
        prepare(source, strict=True)
    done = cli("prepare", "nifti", source, source.parent / "out")
    assert done.code == 0
    dataset = Dataset.open(source.parent / "out")
    assert {row["scan"] for row in dataset.cases} == {"p1", "p3"}
    (reason,) = dataset.info.source["left_out"]
    assert "case 'p2'" in reason
    assert "skipped: case 'p2': " in done.err
    assert "phiseg: 1 of 3 cases skipped" in done.err
    assert "Traceback" not in done.err


def test_unknown_label_skips_the_case_with_given_classes(source):
    labels = some_labels()
    labels[0, 0, 0] = 7
    write(source / "p2" / "rater-bo.nii.gz", labels)
    with pytest.raises(DataError, match=r"rater-bo\.nii\.gz: label 7 is not one of the classes"):
        prepare(source, classes=("a", "b", "c"), strict=True)
    assert prepare(source, classes=("a", "b", "c")).num_cases == 12


def test_labels_with_gaps_error_suggests_merge(source):
    write(source / "p2" / "rater-bo.nii.gz", (some_labels() > 0).astype(np.uint8) * 255)
    with pytest.raises(DataError, match=r"labels are 0, 1, 2, 255, but they must be 0 to K-1.*--merge 255:3"):
        prepare(source)
    assert prepare(source, merge={255: 1}).info.classes == ("background", "class 1", "class 2")


def test_source_without_usable_case_is_rejected(source, cli):
    for case in ("p1", "p2", "p3"):
        (source / case / "image.nii.gz").write_bytes(b"no")
    done = cli("prepare", "nifti", source, source.parent / "out")
    assert done.code == 2
    assert "has no usable case; see the messages above" in done.err
    for case in ("p1", "p2", "p3"):
        write(source / case / "image.nii.gz", np.full(SHAPE, np.nan, np.float32))
    assert "the source has no usable case" in cli("prepare", "nifti", source, source.parent / "out").err
    assert not (source.parent / "out").exists()


def test_folder_without_case_error_shows_both_layouts(tmp_path):
    (tmp_path / "src" / "empty").mkdir(parents=True)
    with pytest.raises(
        ConfigError, match=r"src has no cases; expected <case>/image\.nii\.gz .*or imagesTr/<case>_0000"
    ):
        prepare(tmp_path / "src")
    with pytest.raises(DataError, match=r"nowhere is not a folder"):
        prepare(tmp_path / "nowhere")


def test_incomplete_cases_are_skipped(nnunet, capfd):
    (nnunet / "imagesTr" / "c_1_0000.nii.gz").unlink()
    write(nnunet / "labelsTr_a" / "c_9.nii.gz", some_labels())
    dataset = prepare(nnunet)
    assert {row["scan"] for row in dataset.cases} == {"c_2"}
    told = capfd.readouterr().err
    assert "c_1_0001.nii.gz: the channels are 0001, but must be 0000, 0001 and so on" in told
    assert "labelsTr_a/c_9.nii.gz has no image" in told


def test_channels_on_different_grids_are_rejected(nnunet):
    write(nnunet / "imagesTr" / "c_1_0001.nii.gz", some_image((12, 10, 5)))
    with pytest.raises(DataError, match=r"c_1_0000\.nii\.gz and .*c_1_0001\.nii\.gz are not on the same grid"):
        prepare(nnunet, strict=True)


@pytest.mark.parametrize("text", ["{", '{"labels": {"whole": [1, 2]}}', "[]", '{"labels": {"a": 1, "b": 1}}'])
def test_unreadable_class_names_may_be_given_as_option(nnunet, text):
    (nnunet / "dataset.json").write_text(text)
    with pytest.raises(DataError, match=r'dataset\.json: "labels" must be of the form .*set --classes'):
        prepare(nnunet)
    assert prepare(nnunet, classes=("a", "b", "c", "d")).info.classes == ("a", "b", "c", "d")


def test_single_class_name_is_rejected(nnunet):
    (nnunet / "dataset.json").write_text('{"labels": {"background": 0}}')
    with pytest.raises(ConfigError, match="there are 1 class names; give 2 to 255"):
        prepare(nnunet)


def test_merge_that_leaves_gaps_is_rejected(nnunet):
    with pytest.raises(DataError, match=r"after merging, the labels of dataset\.json are 0, 2, 3, not 0 to K-1"):
        prepare(nnunet, merge={1: 0})


def test_existing_folder_is_kept_without_overwrite(source):
    first = prepare(source)
    with pytest.raises(OutputError, match="already exists"):
        prepare(source)
    assert prepare(source, slicing=Slicing(size=(4, 4)), overwrite=True).images.shape[-1] == 4
    assert first.images.shape[-1] == 12


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--merge", "3-0"], "--merge '3-0' is not of the form OLD:NEW"),
        (["--merge", "3:0", "3:1"], "--merge maps label 3 to both 0 and 1"),
        (["--size", "1x2x3"], "--size '1x2x3' is not a size in pixels"),
        (["--size", "0"], "size 0 x 0 is out of range; use 16 to 8192 pixels"),
        (["--size", "2000x3"], "size 2000 x 3 is out of range; use 16 to 8192 pixels"),
        (["--spacing", "-1"], "spacing -1 is invalid; give a positive number"),
        (["--spacing", "nan"], "spacing nan is invalid; give a positive number"),
        (["--window", "5", "1"], "window (5.0, 1.0) is invalid; give two numbers, the lower one first"),
        (["--fractions", "0,50,50"], "split fractions"),
        (["--classes", "a", "b", "a"], "two of the classes a, b, a have the same name"),
        (["--classes", "one"], "there are 1 class names; give 2 to 255"),
    ],
)
def test_invalid_options_are_rejected_before_reading(source, cli, words, message):
    done = cli("prepare", "nifti", source, source.parent / "out", *words)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1


def test_unknown_plane_is_rejected():
    with pytest.raises(ConfigError, match="unknown plane 'lateral'; use axial, coronal, sagittal or auto"):
        Slicing(plane="lateral")


def test_misspelt_file_name_is_reported(source, cli):
    (source / "p1" / "Rater-3.nii.gz").write_bytes((source / "p1" / "image.nii.gz").read_bytes())
    done = cli("prepare", "nifti", source, source.parent / "out")
    assert done.code == 0
    assert "Rater-3.nii.gz is not named image or rater-<name>" in done.err
    assert "cases skipped" not in done.err


@pytest.mark.parametrize("row", [[1, 1e15, 0, 0], [1e-9, 0, 0, 0]])
def test_invalid_header_skips_only_its_case(source, cli, row):
    image = nibabel.load(source / "p2" / "image.nii.gz")
    affine = image.affine.copy()
    affine[0] = row
    nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj), affine), source / "p2" / "image.nii.gz")
    done = cli("prepare", "nifti", source, source.parent / "out")
    assert done.code == 0, done.err
    assert "no valid position and spacing" in done.err

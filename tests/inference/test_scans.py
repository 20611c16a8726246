"""What is found in folders of scans, how it is called, and how it is read."""

import hashlib
import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
import SimpleITK
from PIL import Image

from helpers.dicom_slices import ORIGIN, SPACING, write_scan
from helpers.known_models import place
from phiseg.core.errors import DataError
from phiseg.imaging.itk_files import write_itk
from phiseg.imaging.nifti_files import write_nifti
from phiseg.imaging.volume import Volume, to_slices
from phiseg.inference.scans import ScanFile, find_scans, read_scan


def nifti(path, *, seed=0, shape=(4, 5, 3), affine=None):
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    write_nifti(path, Volume(values, place("RAS") if affine is None else affine))
    return path


def png(path, pixels=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4) if pixels is None else pixels).save(path)
    return path


def names(*inputs, **options):
    return {scan.name: scan.kind for scan in find_scans(inputs, **options)[0]}


# What is found


def test_all_scan_types_are_found_at_any_depth(tmp_path):
    nifti(tmp_path / "b.nii.gz")
    nifti(tmp_path / "deep" / "er" / "c.v2.nii")
    png(tmp_path / "deep" / "a.PNG")
    write_scan(tmp_path / "series")
    write_scan(tmp_path / "deep" / "other", uid="1.2.9")
    for nothing in ("notes.txt", "table.csv", "deep/a.gif", ".hidden.png", ".cache/d.png"):
        (tmp_path / nothing).parent.mkdir(exist_ok=True)
        (tmp_path / nothing).write_text("nothing")
    found, notes = find_scans([tmp_path])
    assert notes == []
    assert [scan.name for scan in found] == ["a", "b", "c.v2", "other", "series"]
    assert [scan.kind for scan in found] == ["picture", "nifti", "nifti", "dicom", "dicom"]
    assert found[2].path == tmp_path / "deep" / "er" / "c.v2.nii"


def test_itk_files_are_found_and_hashed_with_their_voxels(tmp_path):
    image = SimpleITK.GetImageFromArray(np.arange(24, dtype=np.int16).reshape(2, 3, 4))
    for name in ("a.mha", "b.MHD", "c.nrrd", "d.nhdr"):
        SimpleITK.WriteImage(image, str(tmp_path / name.lower()))
        (tmp_path / name.lower()).rename(tmp_path / name)
    found, _ = find_scans([tmp_path])
    assert {scan.name: scan.kind for scan in found} == dict.fromkeys("abcd", "itk")
    before = [scan.content_hash for scan in found]
    (tmp_path / "b.raw").write_bytes(bytes(48))
    (tmp_path / "d.raw").write_bytes(bytes(48))
    after = [scan.content_hash for scan in find_scans([tmp_path])[0]]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True, False]


def test_read_itk_scan_equals_nifti_scan(tmp_path):
    affine = place("ASL", turn=(10, 0, 5), spacing=(1, 1.5, 2), origin=(1, 2, 3))
    volume = Volume(np.arange(60, dtype=np.int16).reshape(3, 4, 5), affine)
    write_nifti(tmp_path / "a.nii", volume)
    write_itk(tmp_path / "b.mha", volume)
    nifti, meta = (read_scan(scan, channels=1, plane=None) for scan in find_scans([tmp_path])[0])
    np.testing.assert_array_equal(meta.volume.values, nifti.volume.values)
    np.testing.assert_allclose(meta.volume.affine, nifti.volume.affine, atol=1e-5)
    assert (meta.warnings, meta.has_spacing) == ((), True)
    unplaced = b"NRRD0004\ntype: uint8\ndimension: 3\nsizes: 1 1 2\nencoding: raw\n\n\x01\x02"
    (tmp_path / "c.nrrd").write_bytes(unplaced)
    scan = read_scan(find_scans([tmp_path / "c.nrrd"])[0][0], channels=1, plane=None)
    assert not scan.has_spacing
    size, orientation = scan.warnings
    assert "c.nrrd does not state its voxel size; measurements are in pixels, and 1 mm is assumed" in size
    assert "c.nrrd does not state its orientation; assuming the axes left, posterior and superior" in orientation


def test_repeated_inputs_count_once(tmp_path):
    one, other = nifti(tmp_path / "in" / "one.nii"), nifti(tmp_path / "in" / "other.nii")
    assert names(one) == {"one": "nifti"}
    assert names(other, tmp_path / "in", one, tmp_path / "in" / ".." / "in" / "one.nii") == names(tmp_path / "in")


def test_dicom_is_detected_by_content(tmp_path):
    write_scan(tmp_path / "scan")
    for number, path in enumerate(sorted((tmp_path / "scan").iterdir())):
        path.rename(path.with_name(f"IM{number}"))
    (tmp_path / "scan" / "README").write_text("no DICOM")
    assert names(tmp_path) == {"scan": "dicom"}


def test_scans_next_to_dicom_files_are_found(tmp_path):
    write_scan(tmp_path / "p")
    nifti(tmp_path / "p" / "resampled.nii.gz")
    write_scan(tmp_path / "p" / "second", uid="1.2.8")
    assert names(tmp_path) == {"p": "dicom", "resampled": "nifti", "second": "dicom"}


def test_dicomdir_is_not_a_series(tmp_path):
    write_scan(tmp_path / "disc" / "images")
    slices = sorted((tmp_path / "disc" / "images").iterdir())
    (tmp_path / "disc" / "DICOMDIR").write_bytes(slices[0].read_bytes())
    assert names(tmp_path / "disc") == {"images": "dicom"}


def test_series_is_named_after_its_folder(tmp_path, monkeypatch):
    write_scan(tmp_path / "scan")
    (tmp_path / "scan" / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "scan" / "empty")
    assert names(Path("..")) == {"scan": "dicom"}
    monkeypatch.chdir(tmp_path / "scan")
    assert names(Path()) == {"scan": "dicom"}


def test_results_are_not_inputs(tmp_path):
    nifti(tmp_path / "a.nii.gz")
    for kind in ("prediction", "evaluation"):
        nifti(tmp_path / kind / "a" / "samples.nii.gz")
        (tmp_path / kind / "a" / "summary.json").write_text(json.dumps({"format": f"phiseg-{kind}"}))
        assert names(tmp_path, results=tmp_path / "new") == {"a": "nifti"}
    with pytest.raises(DataError, match=r"contains no scan; .* not phiseg output"):
        find_scans([tmp_path / "prediction"])
    for number, summary in enumerate(("{}", "[]", "{", '{"format": "other"}')):  # not ours
        nifti(tmp_path / "more" / f"{number}" / f"s{number}.nii.gz")
        (tmp_path / "more" / f"{number}" / "summary.json").write_text(summary)
    assert set(names(tmp_path / "more")) == {"s0", "s1", "s2", "s3"}
    with pytest.raises(DataError, match="is both an input and the folder for the results"):
        find_scans([tmp_path], results=tmp_path)


@pytest.mark.parametrize("modality", ["SEG", "SR", "RTSTRUCT"])
def test_derived_dicom_is_noted_and_skipped(tmp_path, modality):
    write_scan(tmp_path / "study" / "ct")
    write_scan(tmp_path / "study" / "about", uid="1.2.9", depths=[0], Modality=modality)
    nifti(tmp_path / "study" / "about" / "inside.nii.gz")
    note = f"skipping {tmp_path / 'study' / 'about'}: its DICOM files are not slices of a scan ({modality})"
    scans, notes = find_scans([tmp_path / "study"])
    assert ([scan.name for scan in scans], notes) == (["ct", "inside"], [note])
    (tmp_path / "study" / "about" / "inside.nii.gz").unlink()
    scans, notes = find_scans([tmp_path / "study" / "about", tmp_path / "study" / "ct", tmp_path / "study"])
    assert ([scan.name for scan in scans], notes) == (["ct"], [note])
    with pytest.raises(DataError, match=rf"no scans found: skipping .*about: .*\({modality}\); give"):
        find_scans([tmp_path / "study" / "about"])


def test_derived_dicom_next_to_slices_is_ignored(tmp_path):
    write_scan(tmp_path / "ct", Modality=lambda number: "CT" if number == 3 else "SR")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.dcm").write_bytes(b"nothing")  # told when it is read
    assert names(tmp_path) == {"bad": "dicom", "ct": "dicom"}


# Names


def test_series_are_named_after_patients(tmp_path):
    write_scan(tmp_path / "ct", PatientID="LIDC 7/b")
    write_scan(tmp_path / "nobody", uid="1.2.8", PatientID="")
    write_scan(tmp_path / "hidden", uid="1.2.9", PatientID="..")
    assert set(names(tmp_path)) == {"LIDC_7_b", "nobody", "hidden"}
    write_scan(tmp_path / "later", uid="1.2.10", PatientID="LIDC 7/b")
    assert set(names(tmp_path)) == {"LIDC_7_b-ct", "LIDC_7_b-later", "nobody", "hidden"}


def test_series_is_named_after_the_patient_despite_unreadable_files(tmp_path):
    write_scan(tmp_path / "ct", PatientID="Q7")
    (tmp_path / "ct" / "0.dcm").write_bytes(b"nothing")
    assert names(tmp_path) == {"Q7": "dicom"}
    write_scan(tmp_path / "report", uid="1.2.9", depths=[0], Modality="SR")
    (tmp_path / "report" / "0.dcm").write_bytes(b"nothing")
    assert names(tmp_path) == {"Q7": "dicom"}


def test_name_is_that_of_the_chosen_series(tmp_path):
    write_scan(tmp_path / "both", PatientID="A")
    write_scan(tmp_path / "both", uid="1.2.8", PatientID="B")
    for uid, patient in (("1.2.3", "A"), ("1.2.8", "B")):
        (scan,), _ = find_scans([tmp_path / "both"], series=uid)
        assert (scan.name, scan.series_uid) == (patient, uid)


def test_equal_names_are_prefixed_with_folders(tmp_path):
    for folder in ("a/x", "a/y", "b/x"):
        nifti(tmp_path / folder / "ct.nii.gz")
    nifti(tmp_path / "a" / "mr.nii.gz")
    assert set(names(tmp_path)) == {"a-x-ct", "b-x-ct", "y-ct", "mr"}  # as many as it takes


def test_names_that_differ_only_in_case_are_prefixed_with_folders(tmp_path):
    for path in ("a/CT.nii", "b/ct.nii", "c/mr.nii"):
        nifti(tmp_path / path)
    assert set(names(tmp_path)) == {"a-CT", "b-ct", "mr"}


def test_files_named_image_are_named_after_folders(tmp_path):
    """As in datasets: `phiseg prepare nifti` names the case of case01/image.nii.gz case01."""
    nifti(tmp_path / "a" / "case01" / "image.nii.gz")
    assert names(tmp_path) == {"image": "nifti"}
    nifti(tmp_path / "a" / "case02" / "image.nii.gz")
    assert set(names(tmp_path)) == {"case01", "case02"}
    nifti(tmp_path / "a" / "case02.nii.gz")
    nifti(tmp_path / "b" / "case01" / "image.nii.gz")
    case02 = f"{tmp_path.name}-a-case02"
    assert set(names(tmp_path)) == {"a-case01", "a-case02", "b-case01", case02}


def test_equal_names_in_one_folder_keep_suffixes(tmp_path):
    nifti(tmp_path / "a.nii.gz")
    nifti(tmp_path / "a.nii")
    png(tmp_path / "a.png")
    write_scan(tmp_path / "a")
    png(tmp_path / "b.png")
    assert names(tmp_path) == {
        "a": "dicom",
        "a.nii": "nifti",
        "a.nii.gz": "nifti",
        "a.png": "picture",
        "b": "picture",
    }


def test_prefixed_name_is_unique(tmp_path):
    for path in ("a/ct.nii", "b/ct.nii", "a-ct.nii"):
        nifti(tmp_path / path)
    assert len(names(tmp_path)) == 3


def test_indistinguishable_names_are_rejected(tmp_path):
    for name in ("a.png", "a.nii", "a.png.nii"):
        nifti(tmp_path / name) if name.endswith("nii") else png(tmp_path / name)
    with pytest.raises(DataError, match=r"would have the same name .*a.png, ignoring case; rename one of them"):
        find_scans([tmp_path])


# Links


def test_links_are_followed_and_keep_names(tmp_path):
    nifti(tmp_path / "store" / "123.nii.gz")
    write_scan(tmp_path / "store" / "456", PatientID="")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "anna.nii.gz").symlink_to(tmp_path / "store" / "123.nii.gz")
    (tmp_path / "in" / "bert").symlink_to(tmp_path / "store" / "456")
    assert names(tmp_path / "in") == {"anna": "nifti", "bert": "dicom"}
    assert len(names(tmp_path)) == 2  # the same scans, reached twice


def test_circular_links_are_handled(tmp_path):
    nifti(tmp_path / "a.nii.gz")
    for folder in ("x", "y", "z"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "up").symlink_to(tmp_path)
        (tmp_path / folder / "again").symlink_to(tmp_path)
    assert names(tmp_path) == {"a": "nifti"}


def test_broken_link_cannot_be_read(tmp_path):
    (tmp_path / "a.nii.gz").symlink_to(tmp_path / "gone.nii.gz")
    ((scan,), _) = find_scans([tmp_path])
    with pytest.raises(DataError, match=r"a\.nii\.gz does not exist"):
        read_scan(scan, channels=1, plane=None)
    with pytest.raises(DataError, match=r"a\.nii\.gz cannot be read \(No such file or directory\); check the file"):
        _ = scan.content_hash


# What is refused


def test_inputs_without_scan_are_rejected(tmp_path):
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    (tmp_path / "a.txt").write_text("text")
    for path, reason in (("none", "does not exist"), ("empty", "contains no scan"), ("a.txt", "is not a scan")):
        with pytest.raises(DataError, match=f"{path} {reason}; give a NIfTI, .mha"):
            find_scans([tmp_path / path])
    with pytest.raises(DataError, match="there is no INPUT"):
        find_scans([])


# Reading


def test_nifti_keeps_voxels_and_affine(tmp_path):
    affine = place("ASL", turn=(10, 20, 30), spacing=(1, 2, 3), origin=(4, 5, 6))
    path = nifti(tmp_path / "a.nii.gz", affine=affine)
    scan = read_scan(ScanFile("a", path, "nifti"), channels=1, plane=None)
    np.testing.assert_array_equal(scan.volume.values[..., 0], nibabel.load(path).get_fdata().astype(np.float32))
    np.testing.assert_allclose(scan.volume.affine, affine, atol=1e-5)
    assert (scan.series, scan.has_spacing, scan.warnings) == (None, True, ())


def test_nifti_of_unknown_orientation_gives_warning(tmp_path):
    image = nibabel.Nifti1Image(np.random.default_rng(0).normal(size=(3, 3, 3)), None)
    assert (image.header["sform_code"], image.header["qform_code"]) == (0, 0)
    nibabel.save(image, tmp_path / "a.nii")
    scan = read_scan(ScanFile("a", tmp_path / "a.nii", "nifti"), channels=1, plane=None)
    assert scan.warnings == (
        f"{tmp_path / 'a.nii'} does not state its orientation; assuming the axes left, anterior and superior",
    )
    assert nibabel.aff2axcodes(scan.volume.affine) == ("L", "A", "S")


def test_series_has_one_channel_and_its_files(tmp_path):
    raw = write_scan(tmp_path / "scan")
    scan = read_scan(ScanFile("scan", tmp_path / "scan", "dicom"), channels=1, plane=None)
    np.testing.assert_array_equal(scan.volume.values[..., 0], raw.transpose(2, 1, 0) * 2.0 - 1000)
    np.testing.assert_allclose(scan.volume.affine[:3, 3], (-ORIGIN[0], -ORIGIN[1], ORIGIN[2]))
    assert scan.volume.spacing_mm == pytest.approx((SPACING[1], SPACING[0], 2))
    assert len(scan.series.files) == 5


@pytest.mark.parametrize("plane", [None, "axial", "coronal", "sagittal"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_png_is_one_slice_of_its_plane(tmp_path, plane, dtype):
    pixels = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (3, 5)).astype(dtype)
    scan = read_scan(ScanFile("a", png(tmp_path / "a.png", pixels), "picture"), channels=1, plane=plane)
    assert scan.volume.values.shape == (5, 3, 1, 1)  # columns, rows
    np.testing.assert_array_equal(to_slices(scan.volume, plane or "axial").values[0, :, :, 0], pixels)
    assert scan.volume.values.max() == pixels.max()
    assert not scan.has_spacing
    (warning,) = scan.warnings
    assert warning.startswith(f"{tmp_path / 'a.png'} does not state its pixel size; measurements are in pixels")
    assert warning.endswith("output images assume 1 x 1 mm")


@pytest.mark.parametrize(("plane", "spacing"), [("axial", (2, 3)), ("coronal", (2, 2)), ("sagittal", (0.5, 3))])
def test_png_has_training_spacing(tmp_path, plane, spacing):
    scan = ScanFile("a", png(tmp_path / "a.png"), "picture")
    volume = read_scan(scan, channels=1, plane=plane, spacing_mm=spacing).volume
    assert to_slices(volume, plane).spacing_mm == (1, *spacing)


def test_picture_must_have_the_channels_of_the_model(tmp_path):
    colours = np.random.default_rng(0).integers(0, 255, (3, 5, 3)).astype(np.uint8)
    path = png(tmp_path / "a.png", colours)

    def read(path, channels):
        return (
            read_scan(ScanFile("a", path, "picture"), channels=channels, plane=None)
            .volume.values[:, :, 0]
            .swapaxes(0, 1)
        )

    np.testing.assert_array_equal(read(path, 3), colours)
    with pytest.raises(DataError, match=r"a\.png has colours, but the model takes grey images; convert"):
        read(path, 1)
    with pytest.raises(DataError, match=r"grey\.png has grey values, but the model takes RGB images; use"):
        read(png(tmp_path / "grey.png", colours[..., 0]), 3)
    same = np.repeat(colours[..., :1], 3, axis=2)  # grey values, saved as colours
    np.testing.assert_array_equal(read(png(tmp_path / "same.png", same), 1), colours[..., :1])
    Image.fromarray(colours).convert("RGBA").save(tmp_path / "alpha.png")
    np.testing.assert_array_equal(read(tmp_path / "alpha.png", 3), colours)
    Image.fromarray(colours[..., 0]).convert("P").save(tmp_path / "palette.png")
    np.testing.assert_array_equal(read(tmp_path / "palette.png", 1)[..., 0], colours[..., 0])
    Image.fromarray(colours[..., 0] > 99).save(tmp_path / "bits.png")
    np.testing.assert_array_equal(read(tmp_path / "bits.png", 1)[..., 0], colours[..., 0] > 99)


@pytest.mark.parametrize("suffix", ["jpg", "JPEG", "tif", "tiff", "bmp"])
def test_other_pictures_are_read(tmp_path, suffix):
    rows, columns = np.mgrid[:32, :48]
    colours = np.stack([4 * columns, 6 * rows, 255 - 4 * columns], axis=2).astype(np.uint8)  # smooth, for JPEG
    Image.fromarray(colours).save(tmp_path / f"eye.{suffix}", quality=95)
    ((found,), _) = find_scans([tmp_path])
    assert (found.name, found.kind) == ("eye", "picture")
    values = read_scan(found, channels=3, plane=None).volume.values
    np.testing.assert_allclose(values[:, :, 0].swapaxes(0, 1), colours, atol=12 if "j" in suffix.lower() else 0)


def test_damaged_png_is_rejected(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (20, 20), dtype=np.uint8)
    whole = png(tmp_path / "a.png", pixels).read_bytes()
    damaged = [whole[:length] for length in (0, 5, 20, 45, len(whole) // 2, len(whole) - 30)]
    flipped = [whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :] for at in range(8, len(whole) - 12, 7)]
    reasons = []
    for content in (*damaged, *flipped):
        (tmp_path / "bad.png").write_bytes(content)
        try:
            read_scan(ScanFile("bad", tmp_path / "bad.png", "picture"), channels=1, plane=None)
        except DataError as error:
            reasons.append(str(error))
    assert len(reasons) > len(damaged) + len(flipped) / 2
    assert all(reason.startswith(f"{tmp_path / 'bad.png'} cannot be read as a picture") for reason in reasons)
    assert not any("\n" in reason for reason in reasons)


# Which scan it is


def test_content_hash_depends_on_content_only(tmp_path):
    def digest(path):
        ((scan,), _) = find_scans([path])
        return scan.content_hash

    first = digest(nifti(tmp_path / "a" / "s.nii"))
    assert digest(nifti(tmp_path / "b" / "t.nii")) == first
    assert digest(nifti(tmp_path / "c" / "s.nii", seed=1)) != first
    write_scan(tmp_path / "d", PatientID="P")
    series = digest(tmp_path / "d")
    write_scan(tmp_path / "e", PatientID="P")
    assert digest(tmp_path / "e") == series
    (tmp_path / "e" / "notes.txt").write_text("text")
    assert digest(tmp_path / "e") == series
    next((tmp_path / "e").glob("*.dcm")).unlink()
    assert digest(tmp_path / "e") != series


def test_content_hash_is_computed_once(tmp_path):
    ((scan,), _) = find_scans([nifti(tmp_path / "a.nii")])
    expected = hashlib.sha256(scan.path.read_bytes()).hexdigest()
    assert scan.content_hash == expected
    scan.path.unlink()
    assert scan.content_hash == expected


def test_unreadable_series_has_no_hash(tmp_path):
    write_scan(tmp_path / "gone")
    scan = ScanFile("gone", tmp_path / "gone", "dicom")
    (tmp_path / "gone").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"gone cannot be read \(No such file"):
        _ = scan.content_hash

"""`phiseg prepare lidc`: files of the archive, compared with an independent reader, and synthetic series."""

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.lidc_source import LidcSource, disc
from phiseg.core.errors import ConfigError, DataError, OutputError
from phiseg.data.prepare.lidc import prepare_lidc
from phiseg.data.prepare.lidc_series import LidcOptions
from phiseg.data.store import Dataset
from phiseg.imaging.dicom import read_folder, read_values

SMALL = LidcOptions(size=32)


@pytest.fixture
def lidc_source(tmp_path):
    return LidcSource(tmp_path / "LIDC-IDRI")


@pytest.fixture
def prepare(lidc_source, tmp_path):
    """Prepare the source into a folder."""

    def run(name="data", options=SMALL, **changes):
        return prepare_lidc(lidc_source.root, tmp_path / name, options=options, progress=False, **changes)

    return run


def counts(dataset):
    return dataset.info.source["counts"]


def square(row, column, radius, size=64):
    mask = np.zeros((size, size), dtype=np.uint8)
    mask[row - radius : row + radius + 1, column - radius : column + radius + 1] = 1
    return mask


# The archive's own files -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def archive(shared_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lidc") / "data"
    return prepare_lidc(shared_data("lidc_dicom"), folder, workers=2, progress=False)


def test_archive_slices_match_reference_pixels(archive, shared_data):
    expected = np.load(shared_data("lidc_dicom_reference_masks.npz"))
    assert archive.num_cases == len(expected["masks"])
    rows = {
        (case["series_uid"], int(case["nodule"]), round(float(case["slice_z_mm"]), 2)): row
        for row, case in enumerate(archive.cases)
    }
    for i, masks in enumerate(expected["masks"]):
        key = (expected["series_uid"][i], int(expected["nodule"][i]), round(float(expected["slice_z"][i]), 2))
        row = rows.pop(key)
        case = archive.cases[row]
        assert case["patient"] == expected["case_ids"][i]
        assert [int(case["origin_x"]), int(case["origin_y"])] == expected["crop_origin_xy"][i].tolist()
        assert float(case["spacing_mm"]) == pytest.approx(expected["pixel_spacing_mm"][i])
        np.testing.assert_array_equal(archive.images[row, 0], expected["images"][i])
        ours, theirs = (sorted(mask.tobytes() for mask in stack) for stack in (archive.labels[row], masks))
        assert ours == theirs, case["case"]
    assert not rows
    assert counts(archive) == {"chest radiograph XML files": 2, "series": 2, "nodules": 7}


def test_largest_slice_of_the_archive(archive, shared_data, tmp_path):
    options = LidcOptions(slices="largest")
    largest = prepare_lidc(shared_data("lidc_dicom"), tmp_path / "data", options=options, progress=False)
    areas = {}
    for row, case in enumerate(archive.cases):
        key = (case["series_uid"], case["nodule"])
        areas[key] = max(areas.get(key, (0, "")), (int(archive.labels[row].sum()), case["case"]))
    assert [case["case"] for case in largest.cases] == [name for _, name in areas.values()]


def test_archive_margin_matches_reference_volumes(shared_data, tmp_path):
    """They have 8 slices beyond the outlines; -1000 to 400 HU are stored as 0 to 255."""
    options = LidcOptions(margin=8)
    dataset = prepare_lidc(shared_data("lidc_dicom"), tmp_path / "data", options=options, progress=False)
    rows = {}
    for row, case in enumerate(dataset.cases):
        rows.setdefault((case["series_uid"], int(case["nodule"])), []).append(row)
    with np.load(shared_data("lidc_volumes.npz")) as volumes:
        keys = [*zip(volumes["series_uid"].tolist(), volumes["nodule"].tolist(), strict=True)]
        for nodule, members in rows.items():
            number = keys.index(nodule)
            levels = [int(dataset.cases[row]["slice"]) for row in members]
            assert levels == [*range(levels[0], levels[0] + len(levels))]
            grey = np.clip(np.rint((dataset.images[members, 0] + 1000.0) * 255 / 1400), 0, 255)
            np.testing.assert_array_equal(grey, volumes[f"image_{number:03d}"])
            ours, theirs = dataset.labels[members].swapaxes(0, 1), volumes[f"masks_{number:03d}"]
            assert sorted(mask.tobytes() for mask in ours) == sorted(mask.tobytes() for mask in theirs)
    assert len(rows) == 7


# What is cut out -------------------------------------------------------------------------------------


def test_crops_masks_and_columns(lidc_source, prepare):
    """Reader 0 draws on two slices, reader 2 on one of them, the others nothing."""
    lidc_source.patient("P1", [[{5: disc(20, 30, 3), 10: disc(20, 30, 2)}], [], [{5: disc(21, 30, 2)}], []])
    lidc_source.patient("P2", [[{5: disc(20, 30, 3)}], [], [], []])
    dataset = prepare()
    assert [case["slice_z_mm"] for case in dataset.cases] == ["5.0", "10.0", "5.0"]
    case = dataset.cases[0]
    assert (case["patient"], case["nodule"], case["spacing_mm"]) == ("P1", "0", "0.7")
    assert case["series_uid"] == lidc_source.series_uid("P1")
    assert case["readers"] == "0 - 2 -"
    x, y = int(case["origin_x"]), int(case["origin_y"])
    window = np.s_[y : y + 32, x : x + 32]
    hu = lidc_source.pixels(5).astype(np.int64) * 2 - 1000
    np.testing.assert_array_equal(dataset.images[0, 0], hu[window])
    np.testing.assert_array_equal(dataset.labels[0, 0], square(20, 30, 3)[window])
    np.testing.assert_array_equal(dataset.labels[0, 2], square(21, 30, 2)[window])
    assert not dataset.labels[0, [1, 3]].any()
    assert not dataset.labels[1, 1:].any(), "reader 2 did not outline this slice"
    assert dataset.valid.all()
    assert dataset.images.dtype == np.int16
    assert (dataset.info.plane, dataset.info.centred_on, dataset.info.modality) == ("axial", "nodule", "CT")
    dataset.verify()


def test_crops_at_the_edge_are_padded_with_air(lidc_source, prepare):
    lidc_source.patient("P1", [[{5: disc(4, 60, 2)}]])
    dataset = prepare()
    case = dataset.cases[0]
    assert int(case["origin_y"]) < 0 < int(case["origin_x"])
    assert (dataset.images[0, 0, 0] == -1024).all()
    assert dataset.labels[0, 0].sum() == 25


def test_resampling_keeps_the_position_of_the_nodule(lidc_source, prepare):
    lidc_source.patient("P1", [[{5: disc(30, 34, 5)}]])
    dataset = prepare(options=LidcOptions(size=40, spacing_mm=0.35))
    case = dataset.cases[0]
    assert float(case["spacing_mm"]) == 0.35
    assert dataset.info.spacing_mm == (0.35, 0.35)
    rows, columns = np.nonzero(dataset.labels[0, 0])
    step = 0.35 / 0.7
    assert float(case["origin_y"]) + step * rows.mean() == pytest.approx(30, abs=0.3)
    assert float(case["origin_x"]) + step * columns.mean() == pytest.approx(34, abs=0.3)
    assert len(rows) * step**2 == pytest.approx(121, rel=0.05)


@pytest.mark.parametrize(
    ("readers", "slots"), [((0, 0, 2), "0 0 2 -"), ((3, 3), "3 - - 3"), ((1, 0, 3, 2), "0 1 2 3")]
)
def test_annotations_are_assigned_to_slots(lidc_source, prepare, readers, slots):
    sessions = [[] for _ in range(4)]
    for reader in readers:
        sessions[reader].append({5: disc(30, 30 + 3 * len(sessions[reader]), 3)})
    lidc_source.patient("P1", sessions)
    dataset = prepare()
    assert dataset.cases[0]["readers"] == slots
    assert [bool(mask.any()) for mask in dataset.labels[0]] == [slot != "-" for slot in slots.split()]


def test_surplus_annotations_are_merged_by_reader(lidc_source, prepare):
    twice = [{5: disc(30, 30, 2)}, {5: disc(30, 31, 2)}]
    lidc_source.patient("P1", [twice, [{5: disc(30, 30, 2)}], twice, []])
    dataset = prepare()
    assert dataset.num_cases == 1
    assert dataset.cases[0]["readers"] == "0 1 2 -"
    assert [bool(mask.any()) for mask in dataset.labels[0]] == [True, True, True, False]


@pytest.mark.parametrize(
    ("readers", "slots", "valid"),
    [("pylidc", "0 0 2 -", [True, True, True, False]), ("sessions", "0 - 2 -", [True, True, True, False])],
)
def test_second_annotation_is_merged_with_option_sessions(lidc_source, prepare, readers, slots, valid):
    """Three sessions: reader 0 drew two parts of the nodule, reader 1 nothing, and there is no reader 3."""
    parts = [{5: disc(30, 30, 2)}, {5: disc(30, 33, 2)}]
    lidc_source.patient("P1", [parts, [], [{5: disc(30, 31, 3)}]])
    dataset = prepare(options=replace(SMALL, readers=readers))
    assert dataset.cases[0]["readers"] == slots
    assert dataset.valid[0].tolist() == valid
    areas = (dataset.labels[0] == 1).sum((1, 2)).tolist()
    assert areas == ([25, 25, 49, 0] if readers == "pylidc" else [40, 0, 49, 0])  # 5 x 5 twice, 2 columns shared
    assert counts(dataset)["nodules that a reader annotated more than once"] == 1
    assert counts(dataset)["series with fewer than 4 reading sessions"] == 1


def test_fifth_reader_does_not_share_a_slot_with_option_sessions(lidc_source, prepare, capfd):
    lidc_source.patient("P1", [[{5: disc(30, 30, 2)}], [], [], [], [{5: disc(30, 33, 2)}]])
    lidc_source.patient("P22", [[{5: disc(30, 30, 2)}], [], [], []])
    assert prepare().cases[0]["readers"] == "0 4 - -"
    strict = prepare(options=replace(SMALL, readers="sessions"), overwrite=True)
    assert {case["patient"] for case in strict.cases} == {"P22"}
    assert "has 5 reading sessions, but there are only 4 slots for readers" in capfd.readouterr().err


def test_session_without_outline_gives_empty_mask(lidc_source, prepare):
    lidc_source.patient("P1", [[{5: disc(30, 30, 2)}], [], [], []])
    lidc_source.patient("P22", [[{5: disc(30, 30, 2)}], []])
    dataset = prepare()
    assert dataset.valid.tolist() == [[True] * 4, [True, True, False, False]]


def test_xml_may_be_anywhere_in_the_source(lidc_source, prepare):
    folder = lidc_source.patient("P1", [[{5: disc(30, 30, 3)}]])
    shutil.move(folder / "000.xml", lidc_source.root / "readings.xml")
    assert prepare().num_cases == 1


def test_images_are_found_by_position_without_uid(lidc_source, prepare):
    folder = lidc_source.patient("P1", [[{5: disc(30, 30, 3)}]])
    lidc_source.xml(folder / "000.xml", [[{5: disc(30, 30, 3)}]], patient="P1", sop="none", z_offset=1e-4)
    assert prepare().cases[0]["slice_z_mm"] == "5.0"


# Files that lie around, and broken ones --------------------------------------------------------------


@pytest.fixture
def good(lidc_source):
    lidc_source.patient("good", [[{5: disc(30, 30, 3)}], [], [], []])


def left_out(dataset):
    (line,) = dataset.info.source["left_out"]
    return line


def test_series_that_are_not_ct_are_skipped_and_counted(lidc_source, good, prepare):
    chest = lidc_source.root / "good" / "radiograph" / "series"
    lidc_source.dicom(chest / "1.dcm", patient="good", z=0, uid="9.9", modality="DX", ImagePositionPatient=None)
    lidc_source.xml(chest / "1.xml", [], patient="good", root="IdriReadMessage")
    (chest / "LICENSE").write_text("terms")
    (chest / "metadata.csv").write_text("a,b")
    dataset = prepare()
    assert counts(dataset) == {
        "chest radiograph XML files": 1,
        "series that are not CT": 1,
        "series": 1,
        "nodules": 1,
    }
    assert dataset.info.source["left_out"] == []


def test_mixed_series_in_one_folder_are_separated(lidc_source, good, prepare):
    folder = lidc_source.folder("good")
    for z in (0, 5, 10):
        path = folder / f"scout{z}.dcm"
        lidc_source.dicom(path, patient="good", z=z, uid="8.8", sop=f"8.8.{z}", PixelData=bytes(64 * 64 * 2))
    dataset = prepare()
    assert dataset.num_cases == 1
    assert (dataset.images[0] > -1000).any(), "the slice is of the other series"
    assert counts(dataset)["CT series without XML"] == 1
    assert "8.8" in left_out(dataset)


def test_copies_of_slices_and_series_are_used_once(lidc_source, good, prepare):
    folder = lidc_source.folder("good")
    shutil.copy(folder / "000001.dcm", folder / "copy.dcm")
    lidc_source.dicom(folder / "again.dcm", patient="good", z=5, sop="7.7.7", PixelData=bytes(64 * 64 * 2))
    shutil.copytree(lidc_source.root / "good", lidc_source.root / "good copy")
    dataset = prepare()
    assert dataset.num_cases == 1
    assert (dataset.images[0] > -1000).any(), "the image that the readers drew on is the one that the XML names"
    assert counts(dataset)["copies of a series"] == 1


def test_most_complete_copy_of_a_series_is_used(lidc_source, good, prepare):
    lidc_source.patient("twice", [[{5: disc(30, 30, 3), 10: disc(30, 30, 3)}]])
    for name in ("a", "z"):
        shutil.copytree(lidc_source.root / "twice", lidc_source.root / name)
        (lidc_source.root / name / "study/series/000001.dcm").unlink()
    dataset = prepare()
    assert [case["patient"] for case in dataset.cases] == ["good", "twice", "twice"]
    found = counts(dataset)
    assert (found["series"], found["nodules"], found["copies of a series"]) == (2, 2, 2)


def test_two_xml_files_of_one_series_are_reported(lidc_source, good, prepare):
    lidc_source.xml(lidc_source.folder("good") / "111.xml", [[{5: disc(20, 20, 3)}]], patient="good")
    dataset = prepare()
    assert counts(dataset)["further XML files about a series"] == 1
    assert "111.xml" in left_out(dataset)
    assert dataset.labels[0].sum() == 49, "the first one counts"


def test_dicom_files_may_have_any_name(lidc_source, good, prepare):
    folder = lidc_source.folder("good")
    for number, path in enumerate(sorted(folder.glob("*.dcm"))):
        path.rename(folder / (f"1.3.6.1.{number}" if number % 2 else f"slice{number}"))
    (folder / "notes").write_text("no image")
    dataset = prepare()
    assert dataset.num_cases == 1
    assert dataset.info.source["left_out"] == []


def test_unreadable_file_or_link_affects_nothing_else(lidc_source, good, prepare):
    folder = lidc_source.folder("good")
    (folder / "broken").symlink_to(folder / "nowhere")
    (folder / "circle").symlink_to(lidc_source.root)
    dataset = prepare()
    assert dataset.num_cases == 1
    assert "broken" in left_out(dataset)


def test_links_to_folders_are_followed(lidc_source, good, prepare, tmp_path):
    shutil.move(lidc_source.root / "good", tmp_path / "elsewhere")
    (lidc_source.root / "good").symlink_to(tmp_path / "elsewhere")
    assert prepare().num_cases == 1


def test_scout_in_a_series_is_ignored(lidc_source, good, prepare):
    path = lidc_source.folder("good") / "scout.dcm"
    lidc_source.dicom(path, patient="good", z=5, sop="5.5", orientation=(1, 0, 0, 0, 0, -1))
    assert prepare().num_cases == 1


@pytest.mark.parametrize("thickness", [-2.5, 0, None])
def test_missing_slice_thickness_is_replaced_by_slice_distance(lidc_source, prepare, thickness):
    """Two readers, 4 pixels apart: one nodule at the slices' distance of 5, two at less."""
    folder = lidc_source.patient("P1", [[{5: disc(20, 20, 3)}], [{5: disc(20, 32, 3)}]])
    for number in range(5):
        path = folder / f"{number:06d}.dcm"
        lidc_source.dicom(path, patient="P1", z=5 * number, SliceThickness=thickness)
    assert {case["nodule"] for case in prepare().cases} == {"0"}


def test_case_names_differ_for_uids_with_equal_ends(lidc_source, prepare):
    for name in ("one", "two"):
        folder = lidc_source.root / name
        uid = {"one": "1.2.1.55555", "two": "1.2.2.55555"}[name]
        for z in (0, 5, 10):
            path = folder / f"{z}.dcm"
            lidc_source.dicom(path, patient="same", z=z, uid=uid, sop=f"{uid}.{z}")
        lidc_source.xml(folder / "0.xml", [[{5: disc(20, 20, 3)}]], patient="same", uid=uid, sop=f"{uid}.5")
    assert len({case["case"] for case in prepare().cases}) == 2


def test_xml_of_another_series_is_counted(lidc_source, good, prepare):
    folder = lidc_source.patient("other", [[{5: disc(30, 30, 3)}]])
    lidc_source.xml(folder / "000.xml", [[{5: disc(30, 30, 3)}]], patient="other", uid="6.6.6")
    dataset = prepare()
    assert {case["patient"] for case in dataset.cases} == {"good"}
    assert counts(dataset)["CT series without XML"] == 1
    assert counts(dataset)["XML files without their CT series"] == 1
    assert str(folder) in left_out(dataset)


def test_source_without_xml_is_rejected(lidc_source, good, prepare):
    (lidc_source.folder("good") / "000.xml").unlink()
    with pytest.raises(DataError, match=r"no usable nodule .*1 CT series without XML"):
        prepare()


def test_series_without_outlines_is_counted(lidc_source, good, prepare):
    lidc_source.patient("healthy", [[{5: [(3, 3)]}], []])
    dataset = prepare()
    assert counts(dataset)["CT series without an outlined nodule"] == 1
    assert dataset.num_cases == 1


def remove_slice(source, folder):
    (folder / "000001.dcm").unlink()


def remove_pixels(source, folder):
    source.dicom(folder / "000001.dcm", patient="bad", z=5, PixelData=None)


def truncate(source, folder):
    data = (folder / "000001.dcm").read_bytes()
    (folder / "000001.dcm").write_bytes(data[:-500])


@pytest.mark.parametrize("damage", [remove_slice, remove_pixels, truncate])
def test_unreadable_slice_is_skipped(lidc_source, good, prepare, damage):
    folder = lidc_source.patient("bad", [[{5: disc(30, 30, 3), 10: disc(30, 30, 3)}]])
    damage(lidc_source, folder)
    dataset = prepare()
    assert [(case["patient"], case["slice_z_mm"]) for case in dataset.cases] == [("bad", "10.0"), ("good", "5.0")]
    assert counts(dataset)["outlined slices without a readable image"] == 1
    assert str(folder) in left_out(dataset)


def sagittal(source, folder):
    for number in range(5):
        path = folder / f"{number:06d}.dcm"
        source.dicom(path, patient="bad", z=5 * number, orientation=(0, 1, 0, 0, 0, -1))


def no_pixels_at_all(source, folder):
    for number in range(5):
        source.dicom(folder / f"{number:06d}.dcm", patient="bad", z=5 * number, PixelData=None)


def nobody(source, folder):
    for number in range(5):
        source.dicom(folder / f"{number:06d}.dcm", patient="bad", z=5 * number, PatientID="")


def broken_xml(source, folder):
    text = (folder / "000.xml").read_text()
    (folder / "000.xml").write_text(text[:-80])


def no_places(source, folder):
    for number in range(5):
        source.dicom(folder / f"{number:06d}.dcm", patient="bad", z=5 * number, ImagePositionPatient=None)


def garbage(source, folder):
    for number in range(5):
        (folder / f"{number:06d}.dcm").write_bytes(bytes(range(256)) * 4)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (sagittal, "has no axial slices"),
        (no_pixels_at_all, "no readable image"),
        (nobody, "no PatientID"),
        (broken_xml, "damaged"),
        (no_places, "ImagePositionPatient"),
        (garbage, "not a DICOM file"),
    ],
)
def test_broken_series_is_reported_and_skipped(lidc_source, good, prepare, capfd, damage, reason):
    folder = lidc_source.patient("bad", [[{5: disc(30, 30, 3)}]])
    damage(lidc_source, folder)
    dataset = prepare()
    assert {case["patient"] for case in dataset.cases} == {"good"}
    lines = dataset.info.source["left_out"]
    assert any(reason in line and str(folder) in line for line in lines), lines
    assert all(f"skipped: {line}" in capfd.readouterr().err for line in lines[:1])


def test_flipped_slices_are_used_unchanged(lidc_source, good, prepare):
    """Outlines are in pixels, so a patient on the other side is no reason to leave a series out."""
    folder = lidc_source.patient("flipped", [[{5: disc(20, 30, 3)}]])
    for number in range(5):
        path = folder / f"{number:06d}.dcm"
        lidc_source.dicom(path, patient="flipped", z=5 * number, orientation=(-1, 0, 0, 0, -1, 0))
    dataset = prepare()
    assert dataset.cases[0]["patient"] == "flipped"
    assert dataset.labels[0, 0].sum() == 49


@given(st.binary(max_size=400), st.integers(0, 5000))
def test_damaged_bytes_only_raise_data_errors(tmp_path_factory, noise, place):
    root = tmp_path_factory.mktemp("fuzz")
    path = root / "slice.dcm"
    LidcSource(root).dicom(path, patient="P", z=0)
    data = bytearray(path.read_bytes())
    data[place : place + len(noise)] = noise
    path.write_bytes(data)
    folder = read_folder([path])
    for series in folder.series:
        for header in series.slices:
            with suppress(DataError):
                assert np.isfinite(read_values(header.path)).all()


# Slices beyond the outlines --------------------------------------------------------------------------


def volume(dataset, nodule):
    """Return the cases of a nodule as {slice: row}."""
    return {int(case["slice"]): row for row, case in enumerate(dataset.cases) if int(case["nodule"]) == nodule}


def test_margin_adds_empty_slices_on_both_sides(lidc_source, prepare):
    sessions = [[{20: disc(20, 30, 3), 25: disc(20, 34, 2)}], [{20: disc(20, 30, 2)}], [], []]
    lidc_source.patient("P1", sessions, depths=range(0, 50, 5))
    dataset = prepare(options=LidcOptions(size=32, margin=2))
    assert volume(dataset, 0) == {2: 0, 3: 1, 4: 2, 5: 3, 6: 4, 7: 5}
    assert [case["slice_z_mm"] for case in dataset.cases] == ["10.0", "15.0", "20.0", "25.0", "30.0", "35.0"]
    assert [case["outlined"] for case in dataset.cases] == ["0", "0", "1", "1", "0", "0"]
    assert len({(case["origin_x"], case["origin_y"]) for case in dataset.cases}) == 1
    assert dataset.labels.any(axis=(1, 2, 3)).tolist() == [False, False, True, True, False, False]
    assert dataset.valid.all(), "every reader saw the whole scan"
    x, y = int(dataset.cases[0]["origin_x"]), int(dataset.cases[0]["origin_y"])
    for row, z in enumerate(range(10, 40, 5)):
        hu = lidc_source.pixels(z).astype(np.int64) * 2 - 1000
        np.testing.assert_array_equal(dataset.images[row, 0], hu[y : y + 32, x : x + 32])


def test_margin_keeps_outlined_slices_unchanged(lidc_source, prepare):
    lidc_source.patient("P1", [[{10: disc(20, 30, 3)}, {15: disc(45, 40, 2)}], [{10: disc(20, 31, 2)}]])
    without, with_margin = prepare(), prepare("margin", options=LidcOptions(size=32, margin=1))
    rows = [row for row, case in enumerate(with_margin.cases) if case["outlined"] == "1"]
    np.testing.assert_array_equal(with_margin.images[rows], without.images)
    np.testing.assert_array_equal(with_margin.labels[rows], without.labels)
    columns = list(without.cases[0])
    assert "outlined" not in columns
    assert [{name: with_margin.cases[row][name] for name in columns} for row in rows] == without.cases


def test_margin_slices_outside_the_scan_are_omitted(lidc_source, prepare):
    lidc_source.patient("P1", [[{0: disc(20, 30, 3)}]], depths=range(0, 25, 5))
    dataset = prepare(options=LidcOptions(size=32, margin=9))
    assert list(volume(dataset, 0)) == [0, 1, 2, 3, 4]


def test_margin_slice_may_be_outlined_for_another_nodule(lidc_source, prepare):
    lidc_source.patient("P1", [[{5: disc(20, 20, 3)}, {10: disc(45, 45, 2)}], [], [], []])
    dataset = prepare(options=LidcOptions(size=64, margin=1))
    first, second = volume(dataset, 0), volume(dataset, 1)
    assert (list(first), list(second)) == ([0, 1, 2], [1, 2, 3])
    assert [int(dataset.labels[row].sum()) for row in first.values()] == [0, 49, 0]
    assert [int(dataset.labels[row].sum()) for row in second.values()] == [0, 25, 0]


def test_margin_adds_slices_without_outline_within_a_nodule(lidc_source, prepare):
    lidc_source.patient("P1", [[{5: disc(20, 30, 3), 15: disc(20, 30, 3)}]])
    assert list(volume(prepare(), 0)) == [1, 3]
    dataset = prepare("margin", options=LidcOptions(size=32, margin=1))
    assert list(volume(dataset, 0)) == [0, 1, 2, 3, 4]
    assert [case["outlined"] for case in dataset.cases] == ["0", "1", "0", "1", "0"]


def test_unreadable_margin_slice_is_reported_and_skipped(lidc_source, prepare, capfd):
    folder = lidc_source.patient("P1", [[{10: disc(20, 30, 3)}]])
    lidc_source.dicom(folder / "000003.dcm", patient="P1", z=15, instance=3, PixelData=b"")
    dataset = prepare(options=LidcOptions(size=32, margin=1))
    assert list(volume(dataset, 0)) == [1, 2]
    assert counts(dataset)["slices without a readable image"] == 1
    assert "000003.dcm" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "reason"), [({"margin": -1}, "margin -1"), ({"margin": 1, "slices": "largest"}, "--slices all")]
)
def test_margin_out_of_range_is_rejected(options, reason):
    with pytest.raises(ConfigError, match=reason):
        LidcOptions(**options)


# Where it is written ---------------------------------------------------------------------------------


def test_result_is_independent_of_workers(lidc_source, prepare, tmp_path):
    for name in ("P3", "P1", "P2"):
        lidc_source.patient(name, [[{5: disc(30, 30, 3)}], [{5: disc(30, 31, 3), 10: disc(30, 30, 2)}]])
    one, two = prepare("one"), prepare("two", workers=2)
    for name in ("images.npy", "labels.npy", "cases.csv", "splits.json"):
        assert (one.path / name).read_bytes() == (two.path / name).read_bytes()
    assert [case["patient"] for case in one.cases] == ["P1", "P1", "P2", "P2", "P3", "P3"]


def test_interrupted_preparation_is_resumed(lidc_source, prepare, tmp_path, monkeypatch):
    from phiseg.data.prepare import lidc

    for name in ("P1", "P2", "P3"):
        lidc_source.patient(name, [[{5: disc(30, 30, 3)}]])
    original, done = lidc.crop_series, []

    def stops_at_the_third(series, *arguments):
        done.append(series.patient)
        if len(done) == 3:
            raise KeyboardInterrupt
        return original(series, *arguments)

    monkeypatch.setattr(lidc, "crop_series", stops_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        prepare()
    assert not (tmp_path / "data").exists()
    dataset = prepare()
    assert dataset.num_cases == 3
    assert done == ["P1", "P2", "P3", "P3"], "what was done is not done again"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["LIDC-IDRI", "data"], "nothing is left lying around"


def test_other_options_do_not_reuse_results(lidc_source, prepare, tmp_path, monkeypatch):
    from phiseg.data.prepare import lidc

    lidc_source.patient("P1", [[{5: disc(30, 30, 3)}]])
    monkeypatch.setattr(lidc, "write_dataset", lambda *_, **__: pytest.fail("stop here"))
    with pytest.raises(pytest.fail.Exception):
        prepare()
    monkeypatch.undo()
    assert prepare(options=LidcOptions(size=16)).info.size == (16, 16)


def test_killed_preparation_leaves_no_dataset_and_is_resumed(lidc_source, phiseg, tmp_path):
    for number in range(6):
        lidc_source.patient(f"P{number}", [[{5: disc(30, 30, 3)}]])
    words = ["prepare", "lidc", lidc_source.root, tmp_path / "data", "--size", 32, "--workers", 1]
    process = subprocess.Popen(phiseg.command(*words), stderr=subprocess.DEVNULL)
    while process.poll() is None and not list(tmp_path.glob(".data.work/*.json")):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    if not (tmp_path / "data").exists():
        with pytest.raises(DataError):
            Dataset.open(tmp_path / "data")
        assert phiseg(*words).code == 0
    assert Dataset.open(tmp_path / "data").num_cases == 6


def test_work_folder_of_a_killed_run_is_removed(good, prepare, tmp_path):
    prepare()
    work = tmp_path / ".data.work"
    work.mkdir()
    (work / "done.json").write_text("{}")
    with pytest.raises(OutputError, match="--overwrite"):
        prepare()
    assert not work.exists()


def test_existing_folder_is_not_overwritten(lidc_source, good, prepare, tmp_path):
    prepare()
    with pytest.raises(OutputError, match="--overwrite"):
        prepare()
    assert prepare(overwrite=True).num_cases == 1
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years")
    with pytest.raises(OutputError, match="not a result of phiseg"):
        prepare("precious", overwrite=True)


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"options": LidcOptions(size=0)}, ConfigError, "size 0"),
        ({"options": LidcOptions(size=100_000)}, ConfigError, "size 100000"),
        ({"options": LidcOptions(spacing_mm=-1)}, ConfigError, "spacing -1"),
        ({"options": LidcOptions(spacing_mm=float("nan"))}, ConfigError, "spacing nan"),
        ({"window": (400, -1000)}, ConfigError, "window"),
        ({"workers": 0}, ConfigError, "workers = 0"),
        ({"fractions": (0.5, 0.2, 0.2)}, ConfigError, "fractions"),
    ],
)
def test_options_out_of_range_are_rejected(lidc_source, good, prepare, changes, error, reason):
    with pytest.raises(error, match=reason):
        prepare(**changes)


def test_invalid_source_is_rejected(tmp_path, cli):
    empty = tmp_path / "empty"
    empty.mkdir()
    for source, reason in ((tmp_path / "nowhere", "does not exist"), (empty, "no DICOM file")):
        done = cli("prepare", "lidc", source, tmp_path / "data")
        assert done.code == 2
        assert reason in done.err
        assert str(source) in done.err
        assert not (tmp_path / "data").exists()


def test_command_prints_counts_and_summary(lidc_source, good, cli, tmp_path):
    done = cli("prepare", "lidc", lidc_source.root, tmp_path / "data", "--size", 32, "--workers", 1)
    assert done.code == 0
    assert "1 nodules" in done.err
    assert "1 case of 1 patient" in done.out
    manifest = json.loads((tmp_path / "data" / "dataset.json").read_text())
    assert manifest["command"].startswith("phiseg prepare lidc ")
    assert manifest["source"]["kind"] == "lidc"

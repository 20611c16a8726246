"""DICOM SEG: values, geometry and references to the source series."""

import highdicom
import numpy as np
import pydicom
import pytest

import phiseg
from helpers.dicom_checks import read_on_grid, validate
from helpers.dicom_slices import AXIAL, COLUMNS, CORONAL, OBLIQUE, ROWS, write_scan
from phiseg.core.errors import DataError
from phiseg.imaging.dicom_seg import consensus_segment, write_regions, write_seg
from phiseg.imaging.series import read_series

CLASSES = ("background", "lung nodule", "vessel", "Läsionen")


def make_series(folder, **changes):
    write_scan(folder, **changes)
    return read_series(folder)


def read_by_source(path, series):
    """Return the frames of each source image from highdicom: (I, J, K, S)."""
    seg = highdicom.seg.segread(path)
    uids = [pydicom.dcmread(file).SOPInstanceUID for file in series.files]
    frames = seg.get_pixels_by_source_instance(uids, assert_missing_frames_are_empty=True, rescale_fractional=False)
    return frames.transpose(2, 1, 0, 3)


def one_hot(labels, num_segments):
    return np.stack([labels == number for number in range(1, num_segments + 1)], axis=-1).astype(np.uint8)


@pytest.mark.parametrize("directions", [AXIAL, CORONAL, OBLIQUE])
@pytest.mark.parametrize("classes", [CLASSES, CLASSES[:2]], ids=["three", "one"])
def test_write_seg_labels_round_trip(tmp_path, directions, classes):
    series = make_series(tmp_path / "scan", directions=directions, depths=range(6))
    labels = np.random.default_rng(0).integers(0, len(classes), series.volume.grid).astype(np.uint8)
    labels[:, :, [0, 2, 3]] = 0  # only slices 1, 4 and 5 are stored
    path = tmp_path / "labels.dcm"
    write_seg(path, labels, series, classes=classes, kind="binary", description="PHiSeg labels")

    expected = one_hot(labels, len(classes) - 1)
    np.testing.assert_array_equal(read_on_grid(path, series), expected)
    np.testing.assert_array_equal(read_by_source(path, series), expected)
    data = pydicom.dcmread(path)
    assert (data.SegmentationType, data.BitsAllocated, data.SegmentsOverlap) == ("BINARY", 1, "NO")
    assert data.NumberOfFrames == 3 * (len(classes) - 1)
    measures = data.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0]
    assert (measures.PixelSpacing, measures.SliceThickness) == ([0.8, 0.5], 3.0)
    assert measures.SpacingBetweenSlices == pytest.approx(2.0)  # of the grid, not of the stored slices


@pytest.mark.parametrize("directions", [AXIAL, OBLIQUE])
def test_write_seg_probabilities_round_trip_in_steps_of_1_255(tmp_path, directions):
    series = make_series(tmp_path / "scan", directions=directions)
    probabilities = np.random.default_rng(0).random((*series.volume.grid, 2), dtype=np.float32)
    probabilities[:, :, 1] = 0
    probabilities[:, :, 2] = 0.4 / 255  # rounded to zero, so not stored
    probabilities[:, :, 3, 0] = 0
    probabilities[0, 0, 4] = 1.0001, 0  # above 1 by rounding
    path = tmp_path / "mean.dcm"
    write_seg(path, probabilities, series, classes=CLASSES[:3], kind="fractional", description="PHiSeg mean")

    expected = np.rint(np.minimum(probabilities, 1) * 255).astype(np.uint8)
    np.testing.assert_array_equal(read_on_grid(path, series), expected)
    np.testing.assert_array_equal(read_by_source(path, series), expected)
    data = pydicom.dcmread(path)
    assert (data.SegmentationType, data.SegmentationFractionalType) == ("FRACTIONAL", "PROBABILITY")
    assert (data.MaximumFractionalValue, data.NumberOfFrames) == (255, 5)


@pytest.mark.parametrize("kind", ["binary", "fractional"])
@pytest.mark.parametrize("depths", [range(5), range(1)], ids=["five slices", "one slice"])
def test_write_seg_empty_segmentation_is_readable(tmp_path, kind, depths):
    series = make_series(tmp_path / "scan", depths=depths)
    shape = series.volume.grid if kind == "binary" else (*series.volume.grid, 2)
    path = tmp_path / "empty.dcm"
    write_seg(path, np.zeros(shape, dtype=np.float32), series, classes=CLASSES[:3], kind=kind, description="empty")
    assert pydicom.dcmread(path).NumberOfFrames == 2  # one slice of each segment
    for values in (read_on_grid(path, series), read_by_source(path, series)):
        assert values.shape == (*series.volume.grid, 2)
        assert not values.any()


def test_write_seg_describes_absent_classes(tmp_path):
    series = make_series(tmp_path / "scan")
    labels = np.zeros(series.volume.grid, dtype=np.uint8)
    labels[2, 3, 4] = 2
    path = tmp_path / "labels.dcm"
    write_seg(path, labels, series, classes=CLASSES, kind="binary", description="one voxel")
    seg = highdicom.seg.segread(path)
    assert [item.SegmentLabel for item in seg.SegmentSequence] == list(CLASSES[1:])
    assert seg.NumberOfFrames == 1
    np.testing.assert_array_equal(read_by_source(path, series), one_hot(labels, 3))


def test_write_seg_references_patient_frame_and_images(tmp_path):
    series = make_series(tmp_path / "scan", PatientName="Müller^Jörg", SpecificCharacterSet="ISO_IR 100")
    labels = np.ones(series.volume.grid, dtype=np.uint8)
    labels[:, :, 3] = 0
    path = tmp_path / "labels.dcm"
    write_seg(path, labels, series, classes=CLASSES, kind="binary", description="two\nlines \\ " + "long " * 20)
    data = pydicom.dcmread(path)
    sources = [pydicom.dcmread(file) for file in series.files]
    uids = [source.SOPInstanceUID for source in sources]

    assert data.FrameOfReferenceUID == sources[0].FrameOfReferenceUID
    assert (data.StudyInstanceUID, data.PatientID) == (sources[0].StudyInstanceUID, "scan")
    assert (str(data.PatientName), data.StudyDate) == ("Müller^Jörg", "20200101")
    assert data.SeriesInstanceUID != series.uid
    (referenced,) = data.ReferencedSeriesSequence
    assert referenced.SeriesInstanceUID == series.uid
    assert [item.ReferencedSOPInstanceUID for item in referenced.ReferencedInstanceSequence] == uids
    derived = {
        groups.DerivationImageSequence[0].SourceImageSequence[0].ReferencedSOPInstanceUID
        for groups in data.PerFrameFunctionalGroupsSequence
    }
    assert derived == {uid for k, uid in enumerate(uids) if k != 3}
    assert data.SeriesDescription == ("two lines " + "long " * 20)[:64].strip()
    assert data.ContentDescription == "Research only. Not a medical device."


def test_write_seg_codes_segments_and_algorithm(tmp_path):
    series = make_series(tmp_path / "scan")
    path = tmp_path / "labels.dcm"
    classes = ("background", "nodule", "Liver Lesions", "tumour", "masseter", "Läsionen")
    labels = np.ones(series.volume.grid, dtype=np.uint8)
    write_seg(path, labels, series, classes=classes, kind="binary", description="codes")
    data = pydicom.dcmread(path)
    coded = []
    for item in data.SegmentSequence:
        (category,), (what,) = item.SegmentedPropertyCategoryCodeSequence, item.SegmentedPropertyTypeCodeSequence
        coded.append((category.CodeValue, what.CodeValue))
    abnormal, tissue = "49755003", "85756007"  # SNOMED CT
    assert coded == [
        (abnormal, "27925004"),
        (abnormal, "52988006"),
        (abnormal, "108369006"),
        (tissue, tissue),
        (tissue, tissue),
    ]
    for item in data.SegmentSequence:
        algorithm = item.SegmentationAlgorithmIdentificationSequence[0]
        assert item.SegmentAlgorithmType == "AUTOMATIC"
        assert (algorithm.AlgorithmName, algorithm.AlgorithmVersion) == ("PHiSeg", phiseg.__version__)
    assert (data.Manufacturer, data.SoftwareVersions) == ("PHiSeg", phiseg.__version__)


def test_write_seg_is_reproducible_except_dates(tmp_path):
    series = make_series(tmp_path / "scan")
    labels = np.ones(series.volume.grid, dtype=np.uint8)

    def written(name, values):
        write_seg(tmp_path / name, values, series, classes=CLASSES, kind="binary", description="same")
        data = pydicom.dcmread(tmp_path / name)
        for field in ("InstanceCreationDate", "InstanceCreationTime", "ContentDate", "ContentTime"):
            delattr(data, field)
        for equipment in data.ContributingEquipmentSequence:
            del equipment.ContributionDateTime
        return data

    first, second = written("a.dcm", labels), written("b.dcm", labels)
    assert first.to_json() == second.to_json()
    assert first.file_meta == second.file_meta
    moved = np.roll(labels * (np.arange(5) == 1), 1, axis=2).astype(np.uint8)
    assert first.SOPInstanceUID != written("c.dcm", moved).SOPInstanceUID
    assert written("d.dcm", np.roll(moved, 1, axis=2)).SOPInstanceUID != written("c.dcm", moved).SOPInstanceUID


def test_write_seg_accepts_anonymised_headers(tmp_path):
    dropped = (
        "PatientName",
        "PatientBirthDate",
        "PatientSex",
        "StudyDate",
        "StudyTime",
        "StudyID",
        "AccessionNumber",
    )
    series = make_series(tmp_path / "scan", SliceThickness=None, **dict.fromkeys(dropped))
    labels = np.ones(series.volume.grid, dtype=np.uint8)
    path = tmp_path / "labels.dcm"
    write_seg(path, labels, series, classes=CLASSES[:2], kind="binary", description="anonymous")
    np.testing.assert_array_equal(read_on_grid(path, series), one_hot(labels, 1))
    data = pydicom.dcmread(path)
    assert not any(data.get(name) for name in dropped)
    assert data.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].SliceThickness == 2.0


def test_write_seg_ignores_wrong_spacing_and_jitter(tmp_path):
    """Scanners store the gap in SpacingBetweenSlices, and directions that differ in the last digit."""
    jitter = {"ImageOrientationPatient": lambda k: [1, 0, 0, 0, 1, 1e-6 * k], "SpacingBetweenSlices": 0.5}
    series = make_series(tmp_path / "scan", **jitter)
    labels = np.ones(series.volume.grid, dtype=np.uint8)
    path = tmp_path / "labels.dcm"
    write_seg(path, labels, series, classes=CLASSES[:2], kind="binary", description="jitter")
    np.testing.assert_array_equal(read_on_grid(path, series), one_hot(labels, 1))
    assert (
        pydicom.dcmread(path).SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].SpacingBetweenSlices == 2
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"FrameOfReferenceUID": None}, r"\.dcm has no FrameOfReferenceUID, which a DICOM SEG must refer to"),
        ({"StudyInstanceUID": ""}, r"\.dcm has no StudyInstanceUID"),
        ({"PatientSex": "W"}, r"scan cannot be the source of a DICOM SEG \('W' is not a valid PatientSex"),
    ],
)
def test_write_seg_rejects_incomplete_headers(tmp_path, changes, message):
    series = make_series(tmp_path / "scan", **changes)
    labels = np.ones(series.volume.grid, dtype=np.uint8)
    with pytest.raises(DataError, match=message):
        write_seg(tmp_path / "labels.dcm", labels, series, classes=CLASSES, kind="binary", description="none")
    assert [path.name for path in tmp_path.iterdir()] == ["scan"]


LEVELS = (0.1, 0.5, 0.9)


@pytest.mark.parametrize("directions", [AXIAL, OBLIQUE])
def test_write_regions_segments_are_level_sets_and_consensus(tmp_path, directions):
    series = make_series(tmp_path / "scan", directions=directions)
    probs = np.random.default_rng(0).random((*series.volume.grid, 2), dtype=np.float32)
    probs[0, 0, 0] = LEVELS[:2]  # a level belongs to its own region
    probs[:, :, 1] = 0.05  # not stored
    labels = np.where(probs.max(-1) > 0.6, probs.argmax(-1) + 1, 0).astype(np.uint8)
    path = tmp_path / "regions.dcm"
    written = write_regions(path, probs, labels, series, classes=CLASSES[:3], description="PHiSeg regions")

    expected = np.stack(
        [
            *(probs[..., 0] >= np.float32(level) for level in LEVELS),
            labels == 1,
            *(probs[..., 1] >= np.float32(level) for level in LEVELS),
            labels == 2,
        ],
        axis=-1,
    )
    np.testing.assert_array_equal(read_on_grid(path, series), expected)
    np.testing.assert_array_equal(read_by_source(path, series), expected)
    data = pydicom.dcmread(path)
    assert (data.SegmentationType, data.SegmentsOverlap, data.SOPInstanceUID) == (
        "BINARY",
        "YES",
        written.SOPInstanceUID,
    )
    assert [item.SegmentLabel for item in data.SegmentSequence] == [
        f"{name}, {region}"
        for name in CLASSES[1:3]
        for region in ("at least 10 %", "at least 50 %", "at least 90 %", "consensus")
    ]
    for number, name in enumerate(CLASSES[1:3], start=1):
        assert data.SegmentSequence[consensus_segment(number) - 1].SegmentLabel == f"{name}, consensus"
    kinds = [item.SegmentedPropertyTypeCodeSequence[0].CodeMeaning for item in data.SegmentSequence]
    assert kinds == ["Nodule"] * 4 + ["Tissue"] * 4
    validate(path)


def test_write_regions_stores_slices_with_consensus_only(tmp_path):
    """With many classes, the most probable one may be below all levels."""
    series = make_series(tmp_path / "scan")
    probs = np.full((*series.volume.grid, 1), 0.05, dtype=np.float32)
    labels = np.zeros(series.volume.grid, dtype=np.uint8)
    labels[2, 3, 1] = 1
    write_regions(tmp_path / "r.dcm", probs, labels, series, classes=CLASSES[:2], description="consensus")
    values = read_on_grid(tmp_path / "r.dcm", series)
    np.testing.assert_array_equal(values[..., 3], labels)
    assert not values[..., :3].any()


def test_write_regions_colours_differ_and_darken_with_probability(tmp_path):
    series = make_series(tmp_path / "scan")
    probs = np.full((*series.volume.grid, 3), 0.3, dtype=np.float32)
    labels = np.zeros(series.volume.grid, dtype=np.uint8)
    write_regions(tmp_path / "r.dcm", probs, labels, series, classes=CLASSES, description="colours")
    items = pydicom.dcmread(tmp_path / "r.dcm").SegmentSequence
    colours = [tuple(item.RecommendedDisplayCIELabValue) for item in items]
    assert len(set(colours)) == len(items) == 12
    for first in (0, 4, 8):
        lightness = [colour[0] for colour in colours[first : first + 3]]
        assert lightness == sorted(lightness, reverse=True)
        assert lightness[0] - lightness[2] > 0.25 * 65535


def test_write_regions_empty_prediction_is_readable(tmp_path):
    series = make_series(tmp_path / "scan")
    empty = np.zeros(series.volume.grid, dtype=np.uint8)
    write_regions(
        tmp_path / "r.dcm", empty[..., None] / 1.0, empty, series, classes=CLASSES[:2], description="empty"
    )
    values = read_on_grid(tmp_path / "r.dcm", series)
    assert values.shape == (*series.volume.grid, 4)
    assert not values.any()
    validate(tmp_path / "r.dcm")


def test_write_seg_real_scan(shared_data, tmp_path, caplog):
    """A nodule with a diameter of 20 voxels in one of the scans: labels and probabilities."""
    folder = next((shared_data("lidc_dicom") / "LIDC-IDRI-0013").rglob("*.dcm")).parent
    series = read_series(folder)
    box = np.indices((41, 41, 13)) - np.reshape((20, 20, 6), (3, 1, 1, 1))
    distance = np.full(series.volume.grid, 100, dtype=np.float32)
    distance[280:321, 180:221, 54:67] = ((box / np.reshape((10, 10, 3), (3, 1, 1, 1))) ** 2).sum(axis=0)
    labels = (distance < 1).astype(np.uint8)
    write_seg(
        tmp_path / "labels.dcm", labels, series, classes=CLASSES[:2], kind="binary", description="PHiSeg labels"
    )
    np.testing.assert_array_equal(read_on_grid(tmp_path / "labels.dcm", series)[..., 0], labels)
    assert (tmp_path / "labels.dcm").stat().st_size < 1_000_000
    mean = np.exp(-distance)[..., None]
    write_seg(
        tmp_path / "mean.dcm", mean, series, classes=CLASSES[:2], kind="fractional", description="PHiSeg mean"
    )
    np.testing.assert_array_equal(read_on_grid(tmp_path / "mean.dcm", series), np.rint(mean * 255))
    validate(tmp_path / "labels.dcm")
    validate(tmp_path / "mean.dcm")
    seg = highdicom.seg.segread(tmp_path / "labels.dcm")
    assert len(seg.ReferencedSeriesSequence[0].ReferencedInstanceSequence) == len(series.files)
    volume = seg.get_volume(combine_segments=True)
    filled = volume.map_indices_to_reference(np.argwhere(volume.array))
    expected = series.volume.world(np.argwhere(labels)) * (-1, -1, 1)
    np.testing.assert_allclose(
        sorted(map(tuple, filled.round(3))), sorted(map(tuple, expected.round(3))), atol=1e-3
    )
    assert not caplog.records


def test_write_seg_rejects_other_grid(tmp_path):
    series = make_series(tmp_path / "scan")
    with pytest.raises(AssertionError):
        write_seg(
            tmp_path / "labels.dcm",
            np.zeros((ROWS, COLUMNS, 5), dtype=np.uint8),
            series,
            classes=CLASSES,
            kind="binary",
            description="turned",
        )

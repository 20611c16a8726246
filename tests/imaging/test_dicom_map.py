"""DICOM Parametric Maps: values, geometry, meaning and references to the source series."""

import highdicom
import numpy as np
import pydicom
import pytest

from helpers.dicom_checks import read_map, validate
from helpers.dicom_slices import AXIAL, OBLIQUE, write_scan
from phiseg.imaging.dicom_map import GAMMA, PROBABILITY, write_map
from phiseg.imaging.series import read_series


@pytest.fixture
def series(tmp_path):
    write_scan(tmp_path / "scan", directions=OBLIQUE, depths=range(7))
    return read_series(tmp_path / "scan")


@pytest.fixture
def values(series):
    """Values in slices 1, 3 and 4 of 7; slice 5 is negligible."""
    values = np.zeros(series.volume.grid, dtype=np.float32)
    values[:, :, [1, 3, 4]] = np.random.default_rng(0).random((*series.volume.grid[:2], 3))
    values[:, :, 5] = 0.4 / 255
    return values


def test_write_map_round_trip_of_evenly_spaced_slices(series, values, tmp_path):
    path = tmp_path / "map.dcm"
    write_map(path, values, series, quantity=PROBABILITY, description="PHiSeg probability")
    read = read_map(path, series)
    np.testing.assert_array_equal(read[:, :, 1:5], values[:, :, 1:5])  # slice 2 lies between others
    assert np.isnan(read[:, :, [0, 5, 6]]).all()
    image = highdicom.imread(path)
    volume = image.get_volume(dtype=np.float32)
    voxels = np.argwhere(volume.array > 0.5)
    places = volume.map_indices_to_reference(voxels)
    expected = series.volume.world(np.argwhere(values > 0.5)) * (-1, -1, 1)
    np.testing.assert_allclose(sorted(map(tuple, places)), sorted(map(tuple, expected)), atol=1e-3)
    assert volume.spacing_between_slices == pytest.approx(2.0)
    validate(path)


def test_write_map_describes_values_and_source(series, values, tmp_path):
    for name, quantity in (("gamma", GAMMA), ("mean", PROBABILITY)):
        write_map(tmp_path / f"{name}.dcm", values, series, quantity=quantity, description=f"PHiSeg {name}")
    gamma, mean = (pydicom.dcmread(tmp_path / f"{name}.dcm") for name in ("gamma", "mean"))
    assert gamma.SeriesInstanceUID != mean.SeriesInstanceUID != series.uid
    assert (gamma.Modality, gamma.SeriesDescription, gamma.ContentQualification) == (
        "OT",
        "PHiSeg gamma",
        "RESEARCH",
    )
    assert mean.FrameOfReferenceUID == series.headers[0].FrameOfReferenceUID
    assert [item.SeriesInstanceUID for item in mean.ReferencedSeriesSequence] == [series.uid]
    shared = mean.SharedFunctionalGroupsSequence[0]
    (mapping,) = shared.RealWorldValueMappingSequence
    assert (mapping.RealWorldValueSlope, mapping.RealWorldValueIntercept) == (1, 0)
    assert mapping.DoubleFloatRealWorldValueLastValueMapped == pytest.approx(values.max())
    (unit,) = mapping.MeasurementUnitsCodeSequence
    assert (unit.CodeValue, unit.CodingSchemeDesignator) == ("1", "UCUM")
    assert shared.FrameVOILUTSequence[0].VOILUTFunction == "LINEAR_EXACT"
    validate(tmp_path / "gamma.dcm")


def test_write_map_is_reproducible_and_accepts_empty_maps(series, tmp_path):
    empty = np.zeros(series.volume.grid, dtype=np.float32)
    for name in ("a", "b"):
        write_map(tmp_path / f"{name}.dcm", empty, series, quantity=GAMMA, description="empty")
    first, second = (pydicom.dcmread(tmp_path / f"{name}.dcm") for name in ("a", "b"))
    assert first.SOPInstanceUID == second.SOPInstanceUID
    assert first.NumberOfFrames == 1
    np.testing.assert_array_equal(read_map(tmp_path / "a.dcm", series)[:, :, 0], 0)
    write_map(tmp_path / "c.dcm", empty + 1, series, quantity=GAMMA, description="empty")
    assert pydicom.dcmread(tmp_path / "c.dcm").SOPInstanceUID != first.SOPInstanceUID


def test_headers_of_a_series_are_read_once_and_not_changed(tmp_path, monkeypatch):
    write_scan(tmp_path / "scan", directions=AXIAL, SliceThickness=None, StudyID=None)
    series = read_series(tmp_path / "scan")
    calls = []
    read = pydicom.dcmread
    monkeypatch.setattr(pydicom, "dcmread", lambda *args, **options: calls.append(args) or read(*args, **options))
    for name in ("a", "b"):
        write_map(
            tmp_path / f"{name}.dcm",
            np.zeros(series.volume.grid, dtype=np.float32),
            series,
            quantity=GAMMA,
            description=name,
        )
    assert len(calls) == len(series.files)
    assert "StudyID" not in series.headers[0]
    assert "SpacingBetweenSlices" not in series.headers[0]

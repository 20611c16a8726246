"""Names of cases from a table: which scan gets which name, and invalid tables."""

from pathlib import Path

import pytest

from helpers.dicom_slices import write_scan
from phiseg.core.errors import ConfigError, DataError
from phiseg.inference.case_names import name_scans, read_case_names
from phiseg.inference.points import Point
from phiseg.inference.prediction_jobs import list_prediction_jobs, point_to_json
from phiseg.inference.scans import ScanFile, find_scans


@pytest.fixture
def read(tmp_path):
    """Return a function that reads a table with this text."""

    def read(text):
        (tmp_path / "names.csv").write_text(text)
        return read_case_names(tmp_path / "names.csv")

    return read


def test_read_case_names_maps_scans_to_cases(read):
    assert read('case,scan\r\np1, a/b.nii.gz \r\n\r\n p2 ,"Doe, John"\r\n') == {
        "a/b.nii.gz": "p1",
        "Doe, John": "p2",
    }


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "has no column scan, case; it needs scan,case"),
        ("scan,name\na,b\n", "has no column case"),
        ("scan,case,age\na,b,7\n", "has the unknown column age; it needs scan,case"),
        ("scan,case\n", "has no names"),
        ("scan,case\na,b\nc\n", "line 3 is not a scan and the name of its case"),
        ("scan,case\n,b\n", "line 2 is not a scan"),
        ("scan,case\na,b,c\n", "line 2 is not a scan"),
        ("scan,case\na,b\na,c\n", "line 3: the scan 'a' is listed twice"),
        ("scan,case\na,b\nc,b\n", "line 3: the case 'b' is listed twice"),
        ("scan,case\na,b\nc,B\n", "line 3: the names 'b' and 'B' differ only in case, which some disks ignore"),
        ("scan,case\na,Cases.csv\n", "line 2: 'Cases.csv' is the name of a file in the results"),
        ("scan,case\na,../b\n", r"line 2: '../b' is not a valid name; use at most 64 letters"),
        ("scan,case\na,b c\n", "'b c' is not a valid name"),
        ("scan,case\na,.b\n", "'.b' is not a valid name"),
    ],
)
def test_read_case_names_rejects_invalid_table(read, text, match):
    with pytest.raises(DataError, match=match):
        read(text)


def test_name_scans_finds_a_series_by_path_folder_uid_or_patient(tmp_path, monkeypatch):
    write_scan(tmp_path / "scans" / "ct", uid="1.2.77", PatientID="Doe^7")
    monkeypatch.chdir(tmp_path)
    scans, _ = find_scans([Path("scans")])
    for entry in (
        "scans/ct",
        str(tmp_path / "scans" / "ct"),
        "scans/../scans/ct",
        "ct",
        "1.2.77",
        "Doe^7",
        "Doe_7",
    ):
        (scan,) = name_scans(scans, {entry: "p1", "of another folder": "p2"})
        assert scan.name == "p1"


def test_name_scans_finds_a_file_by_path_or_name():
    scans = [ScanFile("x", Path("a/x.nii.gz"), "nifti"), ScanFile("y", Path("b/y.png"), "picture")]
    for entries in (("a/x.nii.gz", "b/y.png"), ("x.nii.gz", "y"), ("x", "y.png")):
        named = name_scans(scans, dict(zip(entries, ("p9", "p1"), strict=True)))
        assert [(scan.name, scan.path.name) for scan in named] == [("p1", "y.png"), ("p9", "x.nii.gz")]


@pytest.mark.parametrize(
    ("names", "match"),
    [
        ({"a/x.nii": "p1"}, "does not list b/x.nii; add a line"),
        ({"a/x.nii": "p1", "a-x": "p2", "b/x.nii": "p3"}, "lists a/x.nii as 'a/x.nii' and as 'a-x'; keep one"),
        ({"x.nii": "p1"}, "lists 'x.nii', but 2 scans match it; use their paths"),
    ],
)
def test_name_scans_rejects_missing_and_ambiguous_scans(names, match):
    scans = [ScanFile(f"{folder}-x", Path(folder) / "x.nii", "nifti") for folder in "ab"]
    with pytest.raises(ConfigError, match=match):
        name_scans(scans, names)


@pytest.mark.parametrize(
    ("names", "match"),
    [
        (("cases.csv",), r"a case cannot be named cases.csv, like a file in the results; rename the scan"),
        (("b", "B"), "the names 'b' and 'B' differ only in case, which some disks ignore; rename a scan"),
    ],
)
def test_list_prediction_jobs_rejects_names_of_no_separate_folder(names, match):
    scans = [ScanFile(name, Path(f"{name}.nii"), "nifti") for name in names]
    with pytest.raises(ConfigError, match=match):
        list_prediction_jobs(scans, [], {})


def finished(scan, *names):
    """Return summaries of cases of a scan at x = 1, 2 and so on."""
    content = {"input": scan.path.name, "content": scan.content_hash}
    return {
        name: {"scan": names[0], "made_with": {**content, "point": point_to_json(Point(x, 0, 0))}}
        for x, name in enumerate(names, start=1)
    }


def test_added_points_keep_the_chosen_name_of_the_scan(tmp_path):
    """Also if the table of names is not given again."""
    write_scan(tmp_path / "ct", uid="1.2.77", PatientID="Doe")
    scans, _ = find_scans([tmp_path / "ct"])
    named = name_scans(scans, {"1.2.77": "p1"})
    points = [Point(3, 0, 0), Point(1, 0, 0)]
    for given in (named, scans):
        jobs = list_prediction_jobs(given, points, {}, finished(scans[0], "p1", "p1-2"))
        assert [job.name for job in jobs] == ["p1-3", "p1"]


def test_another_name_for_a_finished_scan_is_rejected(tmp_path):
    write_scan(tmp_path / "ct", PatientID="Doe")
    scans, _ = find_scans([tmp_path / "ct"])
    with pytest.raises(ConfigError, match="ct was predicted with the name p1, now p2; use the same name"):
        list_prediction_jobs(name_scans(scans, {"Doe": "p2"}), [Point(1, 0, 0)], {}, finished(scans[0], "p1"))


def test_points_of_a_table_use_the_chosen_name(tmp_path):
    write_scan(tmp_path / "ct", PatientID="Doe")
    scans = name_scans(find_scans([tmp_path / "ct"])[0], {"Doe": "p1"})
    jobs = list_prediction_jobs(scans, (), {"p1": [Point(1, 0, 0)]})
    assert [(job.name, job.point) for job in jobs] == [("p1", Point(1, 0, 0))]

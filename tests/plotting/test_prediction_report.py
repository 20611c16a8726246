"""The page of a prediction: every case with its picture and its numbers, those that need a second look first."""

import csv
import io
import json
import re
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from phiseg.imaging.volume import Volume
from phiseg.inference.measures import Measurement, Units, measure
from phiseg.inference.prediction import Prediction
from phiseg.inference.prepared_stack import PreparedStack
from phiseg.inference.preprocessing import Preprocessing, VolumeCheck
from phiseg.plotting import prediction_report
from phiseg.plotting.prediction_report import case_picture, write_prediction_report


def prediction(
    *,
    samples=4,
    classes=("background", "lesion"),
    spacing=(1.0, 1.0, 3.0),
    kind="window",
    box=None,
    turned=False,
    depth=5,
):
    """Samples of noise: squares that grow from sample to sample.

    Turned, the slices lie along the file's first axis, in falling order.
    """
    values = np.random.default_rng(0).normal(0, 100, (24, 20, depth))
    intensity = {"kind": "window", "low": -300, "high": 300} if kind == "window" else {"kind": "zscore"}
    preprocessing = Preprocessing(
        classes=classes, image_channels=1, size=(32, 32), intensity=intensity, plane="axial"
    )
    volume = Volume(values, np.diag([*spacing, 1.0]))
    volume = volume.reoriented("IRA") if turned else volume
    stack = PreparedStack.of(volume, preprocessing, name="scan")
    box = box or (slice(0, 5), slice(0, 20), slice(0, 24))
    shape = tuple(part.stop - part.start for part in box)
    labels = np.zeros((samples, *shape), np.uint8)
    for sample in range(samples):
        labels[sample, :, 3 : 5 + sample, 3:9] = 1 + sample % (len(classes) - 1)
    mean = np.stack([(labels == k).mean(0) for k in range(len(classes))]).astype(np.float32)
    logs = -np.stack([(mean * (1 - mean)).sum(0)] * len(classes))  # the gamma map is 1 minus the sum of squares
    point = (3, 8, 8) if box[0].start else None
    return Prediction(stack, box, labels, mean, logs, None, {}, point, ())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"samples": 1},
        {"kind": "zscore", "spacing": (0.3, 2.0, 5.0)},
        {"classes": ("background", "a_1", "$b$")},
        {"box": (slice(2, 5), slice(4, 20), slice(0, 16))},
    ],
)
def test_every_prediction_has_a_picture(options):
    found = prediction(**options)
    data = case_picture(found, measure(found), "case_$1$<b>")
    picture = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    height, width, _ = picture.shape
    assert width > 1000
    assert height > 150
    panels = [picture[: height // 3, width * n // 5 : width * (n + 1) // 5].astype(int).std() for n in range(5)]
    rows = [picture[height * n // 3 : height * (n + 1) // 3].astype(int).std() for n in range(3)]
    assert min(panels + rows) > 10  # none is empty


def test_empty_samples_have_a_picture():
    found = prediction()
    found.labels[:] = 0
    found.gamma[:] = 0
    assert case_picture(found, measure(found), "nothing").startswith(b"\x89PNG")


@pytest.mark.parametrize(("turned", "place"), [(False, "k = 3"), (True, "i = 1")])
def test_picture_names_slice_index_of_the_file(monkeypatch, turned, place):
    monkeypatch.setattr(prediction_report, "to_png", lambda figure: figure)
    found = prediction(box=(slice(2, 5), slice(4, 20), slice(0, 16)), turned=turned)
    figure = case_picture(found, measure(found), "scan")
    assert found.point[0] == 3
    assert figure.subfigs[0].axes[0].get_title() == f"scan, axial {place}"


def drawn(found, monkeypatch):
    """The axes of a picture, row by row."""
    monkeypatch.setattr(prediction_report, "to_png", lambda figure: figure)
    return [part.axes for part in case_picture(found, measure(found), "scan").subfigs]


def lines(axes):
    """How many closed outlines each panel has, by colour."""
    return [
        Counter(to_hex(drawn.get_edgecolor()[0]) for drawn in panel.collections for _ in drawn.get_paths())
        for panel in axes
        if panel.images
    ]


def test_picture_shows_slices_spread_over_the_lesion(monkeypatch):
    box = (slice(0, 30), slice(0, 20), slice(0, 24))
    found = prediction(box=box, depth=30)
    found.labels[:, :4] = 0
    found.labels[:, 23:] = 0  # the lesion is in slices 4 to 22
    _, slices, outlying = drawn(found, monkeypatch)
    titles = [f"k = {number}" for number in (4, 7, 10, 13, 16, 19, 22)]
    for row in (slices, outlying):
        assert [axes.get_title() for axes in row] == titles
    assert [sum(panel.values()) for panel in lines(slices)] == [4] * 7  # one for each sample


def test_picture_of_a_thin_lesion_shows_each_slice_once(monkeypatch):
    found = prediction()
    found.labels[:, [0, 1, 4]] = 0
    _, slices, _ = drawn(found, monkeypatch)
    assert [axes.get_title() for axes in slices if axes.images] == ["k = 2", "k = 3"]


def test_picture_outlines_the_smallest_median_and_largest_sample(monkeypatch):
    """Samples of 2, 3, 4 and 5 rows of 6 pixels, in 5 slices of 3 mm; and one without anything."""
    found = prediction(samples=5)
    found.labels[4] = 0
    _, _, outlying = drawn(found, monkeypatch)
    legend = outlying[0].figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == [
        "smallest sample (0 ml)",
        "median sample (0.27 ml)",
        "largest sample (0.45 ml)",
    ]
    colours = [to_hex(line.get_color()) for line in legend.get_lines()]
    for panel in lines(outlying):
        assert panel == {colours[1]: 1, colours[2]: 1}


def test_picture_without_a_lesion_has_no_slices_of_it(monkeypatch):
    found = prediction()
    found.labels[:] = 0
    assert len(drawn(found, monkeypatch)) == 1


@pytest.mark.parametrize(
    ("volumes", "limit", "note"),
    [
        ([0.1, 0.2, 0.3, 0.25], 0.3, None),
        ([0.1, 0.2, 0.3, 0.25] * 4 + [50.0], 0.3, "1 beyond, up to 50 ml"),
        ([0.0] * 20 + [0.2, 0.3, 0.25], 0.3, None),  # most samples are empty: the others are no outliers
        ([0.2] * 10 + [0.3], 0.3, None),  # all alike: a little more is no outlier
        ([0.0] * 5, 0.0, None),
    ],
)
def test_histogram_is_readable_with_an_outlier(volumes, limit, note):
    axes = Figure().subplots()
    spread = Measurement.of(np.array(volumes))
    measures = SimpleNamespace(classes={"lesion": SimpleNamespace(size=spread)}, units=Units("ml", "mm"))
    prediction_report._histogram(axes, measures)
    bars = [bar for bar in axes.patches if bar.get_height()]
    assert sum(bar.get_height() for bar in bars) == sum(volume <= limit for volume in volumes)
    if limit:
        assert max(bar.get_x() + bar.get_width() for bar in bars) == pytest.approx(limit)
    texts = [text.get_text() for text in axes.texts]
    assert texts == [] if note is None else note in texts[0]


@pytest.fixture
def finished(tmp_path):
    """Return a function that writes a finished case."""
    picture = io.BytesIO()
    Image.new("L", (500, 100)).save(picture, format="PNG")

    def write(name, *, agreement=0.5, gamma=0.1, classes=("lesion",), present=0.75, measured=None, **changes):
        spread = {"median": 2, "low": 1.25, "high": 3, "samples": [1, 2, 3]}
        summary = {
            "format": "phiseg-prediction",
            "version": 1,
            "case": name,
            "classes": measured
            or {
                each: {
                    "present": present,
                    "volume_ml": spread,
                    "diameter_mm": spread,
                    "volume_ml_if_present": spread if present else None,
                    "diameter_mm_if_present": spread if present else None,
                }
                for each in classes
            },
            "agreement": agreement,
            "mean_gamma": gamma,
            "truncated": 0,
            "level_shares": None,
            "point": None,
            "has_spacing": True,
            "warnings": [],
            "made_with": {"num_samples": 12},
            **changes,
        }
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
        (tmp_path / name / "picture.png").write_bytes(picture.getvalue())
        return tmp_path

    return write


def write_report(out, *finished, failed=None, model="runs/m", check=None):
    return write_prediction_report(out, finished, failed or {}, model=model, volume_check=check).read_text()


def headings(page):
    return re.findall(r"<h2>(.*)</h2>", page)


def table(path):
    return list(csv.DictReader(path.open(newline="")))


def test_least_agreeing_cases_come_first(finished):
    finished("sure", agreement=0.9)
    finished("calm", agreement=0.2, gamma=0.1)
    finished("alike", agreement=0.2, gamma=0.1)
    out = finished("wild", agreement=0.2, gamma=0.4)
    page = write_report(out, "alike", "calm", "sure", "wild")
    rows = table(out / "cases.csv")
    order = ["wild", "alike", "calm", "sure"]
    assert [row["case"] for row in rows] == order
    assert headings(page) == order
    assert re.findall(r"<tr>\s*<th>(.*?)</th><td>", page) == order
    assert rows[0] == {
        "case": "wild", "class": "lesion", "present": "0.75", "agreement": "0.2", "mean_gamma": "0.4",
        "volume_ml_median": "2", "volume_ml_low": "1.25", "volume_ml_high": "3",
        "diameter_mm_median": "2", "diameter_mm_low": "1.25", "diameter_mm_high": "3",
        "volume_ml_if_present_median": "2", "volume_ml_if_present_low": "1.25", "volume_ml_if_present_high": "3",
        "diameter_mm_if_present_median": "2", "diameter_mm_if_present_low": "1.25",
        "diameter_mm_if_present_high": "3",
        "truncated": "0", "look": "",
    }  # fmt: skip


def test_cut_off_and_missing_lesions_come_first(finished):
    finished("wild", agreement=0.1)
    finished("empty", agreement=0.2, present=0.1)  # nobody pointed at anything
    finished("found", agreement=0.3, present=0.5, point=[1, 2, 3])
    finished("cut", agreement=0.9, truncated=0.25)
    finished("one of two", agreement=0.5, classes=("a", "b"), present=0.75, point=[1, 2, 3])
    finished("both", agreement=0.95, present=0.3, truncated=0.1, point=[0, 0, 0])
    out = finished("lost", agreement=1.0, present=0.49, point=[1, 2, 3])
    page = write_report(out, "both", "cut", "empty", "found", "lost", "one of two", "wild")
    rows = {row["case"]: row for row in table(out / "cases.csv")}
    assert list(rows) == ["cut", "both", "lost", "wild", "empty", "found", "one of two"]
    looks = ["cut off", "cut off, not found", "not found", "", "", "", ""]
    assert [row["look"] for row in rows.values()] == looks
    assert rows["cut"]["truncated"] == "0.25"
    assert re.findall(r"<tr>\s*<th>(?!case)[^<]+</th><td>(.*?)</td>", page) == looks


def test_measures_of_absent_class_are_empty(finished):
    out = finished("a", present=0)
    page = write_report(out, "a")
    (row,) = table(out / "cases.csv")
    assert row["volume_ml_median"] == "2"
    assert {row[key] for key in row if "if_present" in key} == {""}
    assert page.count("<td>none</td>") == 2


def test_cases_of_older_versions_are_reported(finished):
    spread = {"median": 2, "low": 1.25, "high": 3, "samples": [1, 2, 3]}
    out = finished("a", classes=())
    summary = json.loads((out / "a" / "summary.json").read_text())
    summary["classes"] = {"lesion": {"present": 0.5, "volume_ml": spread, "diameter_mm": spread}}
    (out / "a" / "summary.json").write_text(json.dumps(summary))
    assert "<td>2<small>1.25 to 3</small></td><td>none</td>" in write_report(out, "a")


def test_report_states_the_measured_coverage_of_the_interval(finished):
    check = VolumeCheck(dataset="lidc<b>", num_lesions=32, num_annotators=4, coverage=0.783)
    text = " ".join(write_report(finished("a"), "a", check=check).split())
    assert (
        "checked on 32 lesions of lidc&lt;b&gt;, outlined by 4 annotators: 78 % of the annotators' volumes" in text
    )
    assert "never measured" not in text


def test_report_states_that_coverage_was_never_measured(finished):
    text = write_report(finished("a"), "a")
    assert "never measured for this model" in text
    assert "were checked on" not in text


def test_unusual_images_come_first(finished):
    finished("lost", present=0.1, point=[1, 2, 3], agreement=0.9)
    out = finished("odd", unusual=True, agreement=0.5)
    page = write_report(out, "lost", "odd")
    assert headings(page) == ["odd", "lost"]
    assert [row["look"] for row in table(out / "cases.csv")] == ["unusual image", "not found"]


def test_failures_are_reported_until_the_case_is_finished(finished):
    out = finished("a")
    failed = {"z": "z.nii, of <all> things, is cut", "b": "b is empty; check it"}
    page = write_report(out, "a", failed=failed)
    assert table(out / "failed.csv") == [
        {"case": "b", "reason": failed["b"]},
        {"case": "z", "reason": failed["z"]},
    ]
    assert headings(page) == ["Could not be predicted", "Predicted", "a"]
    assert re.search(r"1 case, 12 samples each;\s+2 could not be predicted", page)
    assert re.findall(r"<dt>(.*)</dt><dd>(.*)</dd>", page) == [
        ("b", "b is empty; check it"),
        ("z", "z.nii, of &lt;all&gt; things, is cut"),
    ]
    finished("z")
    page = write_report(out, "a", "z", failed={"c": "c is empty"})  # of another command
    assert table(out / "failed.csv") == [
        {"case": "b", "reason": failed["b"]},
        {"case": "c", "reason": "c is empty"},
    ]
    assert re.search(r"2 cases, 12 samples each;\s+2 could not be predicted", page)
    write_report(out, "a", "z", failed={"b": "another reason"})
    assert table(out / "failed.csv")[0] == {"case": "b", "reason": "another reason"}
    finished("b")
    finished("c")
    assert "Could not be predicted" not in headings(write_report(out, "a", "b", "c", "z"))
    assert not (out / "failed.csv").exists()


@pytest.mark.parametrize("content", ["", "x,y\n1,2\n", "case,reason\na\n", "case,reason\na,b,c\n", "\xff"])
def test_other_files_named_failed_csv_are_replaced(finished, content):
    out = finished("a")
    (out / "failed.csv").write_bytes(content.encode("latin-1"))
    write_report(out, "a", failed={"b": "b is empty"})
    assert table(out / "failed.csv") == [{"case": "b", "reason": "b is empty"}]


def test_report_of_failures_only(tmp_path):
    page = write_report(tmp_path / "new", failed={"a": "a is empty"})
    assert headings(page) == ["Could not be predicted"]
    assert re.search(r"0 cases;\s+1 could not be predicted", page)
    assert table(tmp_path / "new" / "cases.csv") == []


def test_only_requested_cases_are_reported(finished):
    finished("old")
    out = finished("new")
    assert headings(write_report(out, "new")) == ["new"]
    assert [row["case"] for row in table(out / "cases.csv")] == ["new"]


def test_warnings_are_shown_with_their_case(finished):
    finished("a", warnings=["no DICOM SEG: <why>"])
    page = write_report(finished("b"), "a", "b")
    assert re.search(
        r"<h2>a</h2>\s*<p class=\"note\"><strong>Warning:</strong> no DICOM SEG: &lt;why&gt;</p>", page
    )
    assert page.count("no DICOM SEG") == 1


def test_report_is_self_contained(finished):
    finished("a")
    out = finished("b")
    page = write_report(out, "a", "b")
    assert page.count("data:image/png;base64,") == 2
    assert not re.search(r"https?://|@import|url\(|<script|<link", page)
    assert "2 cases, 12 samples each" in page
    assert "with runs/m" in page


def test_levels_and_unknown_spacing_are_shown(finished):
    out = finished("plain")
    page = write_report(out, "plain")
    assert "latent level" not in page
    assert "pixel counts as" not in page
    assert "px: pixels" not in page
    finished(
        "picture",
        level_shares={"level 1": 0.1, "level 2": 0.2, "member": 0.7},
        has_spacing=False,
        classes=("a", "b"),
    )
    page = write_report(out, "plain", "picture")
    assert re.search(r"coarse .* to fine .*:\s*member 70 %, level 2 20 %, level 1 10 %\.", page)
    assert (
        "An earlier version of phiseg measured picture without a pixel size in the file: a pixel counts as" in page
    )
    assert len((out / "cases.csv").read_text().splitlines()) == 1 + 1 + 2


def in_pixels(finished, name):
    """Write a case with a picture of unknown pixel size."""
    spread = {"median": 120.5, "low": 100, "high": 200, "samples": [100, 120, 121, 200]}
    found = {f"{key}{when}": spread for key in ("area_px", "diameter_px") for when in ("", "_if_present")}
    return finished(name, version=2, has_spacing=False, measured={"lesion": {"present": 1.0, **found}})


def test_unknown_pixel_size_is_reported_in_pixels(finished):
    out = in_pixels(finished, "eye")
    page = write_report(out, "eye")
    assert "<th>area, px</th><th>if present</th><th>diameter, px</th><th>if present</th>" in page
    assert page.count("<td>120 px<small>100 to 200</small></td>") == 4
    assert "px: pixels, where the file does not state their size." in page
    assert not re.search(r"\b(ml|mm)\b", re.sub(r"data:image[^\"]*", "", page))
    (row,) = table(out / "cases.csv")
    assert (row["area_px_median"], row["diameter_px_if_present_high"]) == ("120.5", "200")
    assert not any("_ml" in key or "_mm" in key for key in row)


def test_scans_and_pictures_have_separate_columns(finished):
    finished("scan", agreement=0.1)
    out = in_pixels(finished, "eye")
    page = write_report(out, "eye", "scan")
    assert "<th>volume, ml or area, px</th>" in page
    assert "<td>2<small>1.25 to 3</small></td>" in page
    assert "<td>120 px<small>100 to 200</small></td>" in page
    scan, eye = table(out / "cases.csv")
    assert (scan["volume_ml_median"], scan["area_px_median"]) == ("2", "")
    assert (eye["volume_ml_median"], eye["area_px_median"]) == ("", "120.5")


@pytest.mark.parametrize("has_spacing", [True, False])
def test_picture_of_unknown_pixel_size_shows_pixels(monkeypatch, has_spacing):
    """Samples of 2 to 5 rows of 6 pixels."""
    found = prediction(box=(slice(0, 1), slice(0, 20), slice(0, 24)), depth=1)
    found = replace(found, stack=replace(found.stack, has_spacing=has_spacing))
    panels = drawn(found, monkeypatch)
    figure = panels[0][0].figure.figure
    texts = [text.get_text() for text in figure.findobj(Text)]
    in_mm = [text for text in texts if re.search(r"\b(mm|ml)\b", text)]
    in_px = ["area of the samples, px (line: median)", "smallest sample (12 px)", "largest sample (30 px)"]
    assert bool(in_mm) == has_spacing
    assert ({*in_px} <= {*texts}) == (not has_spacing)


def test_names_are_escaped(finished):
    out = finished("<b>&", classes=("<i>",))
    page = write_report(out, "<b>&", model="<u>")
    assert not re.search(r"<b>|<i>|<u>", page)
    assert "&lt;b&gt;&amp;" in page


def test_slice_of_the_point_is_shown_unless_empty():
    labels, mean_probs = np.zeros((3, 4, 2, 2), np.uint8), np.zeros((2, 4, 2, 2), np.float32)
    prediction = SimpleNamespace(point=(11, 0, 0), box=(slice(10, 14),), labels=labels, mean_probs=mean_probs)
    assert prediction_report._shown_slice(prediction) == 1  # nothing anywhere
    labels[0, 3], mean_probs[1, 3] = 1, 0.3
    assert prediction_report._shown_slice(prediction) == 3
    assert prediction_report._number_of_samples(prediction, 3) == "3 samples, 2 empty here"
    labels[:, 1] = 1
    assert prediction_report._shown_slice(prediction) == 1
    assert prediction_report._number_of_samples(prediction, 1) == "3 samples"

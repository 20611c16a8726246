"""The page of a prediction: every case with its picture and its numbers, those that need a second look first."""

import csv
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from phiseg.core.errors import DataError
from phiseg.evaluation.prediction_report import case_picture, write_prediction_report
from phiseg.imaging.volume import Volume
from phiseg.inference.measures import measure
from phiseg.inference.preprocessing import PreparedStack, Preprocessing
from phiseg.inference.volumes import Prediction


def prediction(*, samples=4, classes=("background", "lesion"), spacing=(1.0, 1.0, 3.0), kind="window", box=None):
    """Samples of noise: squares that grow from sample to sample."""
    values = np.random.default_rng(0).normal(0, 100, (24, 20, 5))
    intensity = {"kind": "window", "low": -300, "high": 300} if kind == "window" else {"kind": "zscore"}
    preprocessing = Preprocessing(
        classes=classes, image_channels=1, size=(32, 32), intensity=intensity, plane="axial"
    )
    volume = Volume(values, np.diag([*spacing, 1.0]))
    stack = PreparedStack.of(volume, preprocessing, name="scan")
    box = box or (slice(0, 5), slice(0, 20), slice(0, 24))
    shape = tuple(part.stop - part.start for part in box)
    labels = np.zeros((samples, *shape), np.uint8)
    for sample in range(samples):
        labels[sample, :, 3 : 5 + sample, 3:9] = 1 + sample % (len(classes) - 1)
    mean = np.stack([(labels == k).mean(0) for k in range(len(classes))]).astype(np.float32)
    gamma = (mean * (1 - mean)).sum(0)
    point = (3, 8, 8) if box[0].start else None
    return Prediction(volume, stack, box, labels, mean, gamma, None, point)


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
    panels = [picture[:, width * n // 5 : width * (n + 1) // 5].astype(int).std() for n in range(5)]
    assert min(panels) > 10  # none is empty


def test_samples_without_anything_have_a_picture_too():
    found = prediction()
    found.labels[:] = 0
    found.gamma[:] = 0
    assert case_picture(found, measure(found), "nothing").startswith(b"\x89PNG")


@pytest.fixture
def finished(tmp_path):
    """Return a function that writes a finished case."""
    picture = io.BytesIO()
    Image.new("L", (500, 100)).save(picture, format="PNG")

    def write(name, *, agreement=0.5, gamma=0.1, classes=("lesion",), shares=None, has_spacing=True):
        spread = {"median": 2, "low": 1.25, "high": 3, "samples": [1, 2, 3]}
        summary = {
            "format": "phiseg-prediction",
            "version": 1,
            "case": name,
            "classes": {each: {"present": 0.75, "volume_ml": spread, "diameter_mm": spread} for each in classes},
            "agreement": agreement,
            "mean_gamma": gamma,
            "level_shares": shares,
            "has_spacing": has_spacing,
            "made_with": {"num_samples": 12},
        }
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
        (tmp_path / name / "picture.png").write_bytes(picture.getvalue())
        return tmp_path

    return write


def test_the_cases_that_agree_least_come_first(finished):
    finished("sure", agreement=0.9)
    finished("calm", agreement=0.2, gamma=0.1)
    finished("alike", agreement=0.2, gamma=0.1)
    out = finished("wild", agreement=0.2, gamma=0.4)
    page = write_prediction_report(out, model="runs/m").read_text()
    rows = list(csv.DictReader((out / "cases.csv").open(newline="")))
    order = ["wild", "alike", "calm", "sure"]
    assert [row["case"] for row in rows] == order
    assert re.findall(r"<h2>(.*)</h2>", page) == order
    assert re.findall(r"<tr>\s*<th>(.*?)</th><td>", page) == order
    assert rows[0] == {
        "case": "wild", "class": "lesion", "present": "0.75", "agreement": "0.2", "mean_gamma": "0.4",
        "volume_ml_median": "2", "volume_ml_low": "1.25", "volume_ml_high": "3",
        "diameter_mm_median": "2", "diameter_mm_low": "1.25", "diameter_mm_high": "3",
    }  # fmt: skip


def test_the_page_needs_nothing_else(finished):
    finished("a")
    out = finished("b")
    page = write_prediction_report(out, model="runs/m").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert not re.search(r"https?://|@import|url\(|<script|<link", page)
    assert "2 cases, 12 samples each" in page
    assert "with runs/m" in page


def test_levels_and_unknown_spacing_are_told_where_there_are_any(finished):
    out = finished("plain")
    page = write_prediction_report(out, model="m").read_text()
    assert "latent level" not in page
    assert "pixel counts as" not in page
    finished("picture", shares=[0.1, 0.2, 0.7], has_spacing=False, classes=("a", "b"))
    page = write_prediction_report(out, model="m").read_text()
    assert re.search(r"coarse .* to fine .*:\s*70 %, 20 %, 10 %\.", page)
    assert "Without a pixel size in the file (picture), a pixel counts as one of the training images" in page
    assert len((out / "cases.csv").read_text().splitlines()) == 1 + 1 + 2


def test_names_are_escaped(finished):
    out = finished("<b>&", classes=("<i>",))
    page = write_prediction_report(out, model="<u>").read_text()
    assert not re.search(r"<b>|<i>|<u>", page)
    assert "&lt;b&gt;&amp;" in page


def test_folders_of_others_and_half_written_ones_are_passed_over(finished):
    out = finished("a")
    finished("b").joinpath("b").rename(out / ".b.123.tmp")
    (out / "evaluation").mkdir()
    (out / "evaluation" / "summary.json").write_text('{"format": "phiseg-evaluation"}')
    assert re.findall(r"<h2>(.*)</h2>", write_prediction_report(out, model="m").read_text()) == ["a"]


def test_a_renamed_folder_keeps_its_picture(finished):
    out = finished("a")
    (out / "a").rename(out / "anna")
    assert re.findall(r"<h2>(.*)</h2>", write_prediction_report(out, model="m").read_text()) == ["anna"]


def test_nothing_to_report_on_is_an_error(tmp_path):
    for out in (tmp_path, tmp_path / "none"):
        with pytest.raises(DataError, match="has no finished case to report on"):
            write_prediction_report(out, model="m")
    assert not list(tmp_path.iterdir())

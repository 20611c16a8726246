"""Tables of lidc-nodule in its card and in experiments/ follow from the scores of cases stored beside them."""

import csv
import gzip
import io
import re
from pathlib import Path

import numpy as np
import pytest

from phiseg.core.bundled import bundled_models
from phiseg.inference.preprocessing import Preprocessing
from phiseg.metrics.significance import patient_interval
from phiseg.models import load_model

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "experiments/lidc_nodule/README.md"
VOLUMES = ROOT / "experiments/lidc_volumes"
CARD = bundled_models()["lidc-nodule"] / "README.md"
ORDER = ("ged_unbiased", "ged", "ged_floor", "s_ncc", "dice")


def read_scores(path):
    """Return the rows of a CSV file, possibly compressed."""
    content = path.read_bytes()
    text = gzip.decompress(content).decode() if path.suffix == ".gz" else content.decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert all(row["patient"] for row in rows)
    return rows


def read_results(name):
    return read_scores(PAGE.parent / "results" / name)


def column(rows, name):
    return np.array([float(row[name]) for row in rows])


def means(rows, names):
    """Return the means of scores as they are printed."""
    return [f"{column(rows, name).mean():.3f}" for name in names]


def with_interval(rows, name, decimals=3):
    low, high = patient_interval([column(rows, name)], [row["patient"] for row in rows])
    return f"{column(rows, name).mean():.{decimals}f} ({low:.{decimals}f} to {high:.{decimals}f})"


def cells(page, start, *, nth=0):
    """Return the cells of the nth table row that starts with a text, without the first."""
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {start}")]
    return [cell.strip() for cell in lines[nth].strip("|").split("|")][1:]


def test_card_and_page_state_the_test_scores():
    rows = read_results("cases.csv.gz")
    unbiased, ged, floor, s_ncc, dice = means(rows, ORDER)
    ranges = [with_interval(rows, name) for name in ("ged_unbiased", "ged", "s_ncc")]
    assert cells(PAGE, "all, of 169 patients") == ["2,894", ranges[0], ranges[1], floor, ranges[2], dice]
    assert cells(CARD, "all |") == ["2,894", ged, floor, unbiased, s_ncc, dice]
    assert len(rows) == 2894
    assert len({row["patient"] for row in rows}) == 169


@pytest.mark.parametrize(("start", "flag"), [("with both neighbours", 1), ("at the ends", 0)])
def test_page_states_the_scores_by_neighbours(start, flag):
    rows = [row for row in read_results("cases.csv.gz") if float(row["has_neighbours"]) == flag]
    assert cells(PAGE, start) == [f"{len(rows):,}", *means(rows, ORDER)]


def test_card_and_page_agree_about_the_largest_slices():
    number, unbiased, ged, floor, s_ncc, dice = cells(PAGE, "the largest of each nodule")
    assert cells(CARD, "the largest of each nodule") == [number, ged, floor, unbiased, s_ncc, dice]


@pytest.mark.parametrize("file", ["previous", "one-reader", "without-presence"])
def test_page_states_the_scores_of_previous_models(file):
    rows = read_results(f"{file}-cases.csv.gz")
    assert len(rows) == 2894
    line = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if f"`{file}-cases" in line)
    assert [cell.strip() for cell in line.split("|")[5:9]] == means(rows, ("ged_unbiased", "ged", "s_ncc", "dice"))


@pytest.mark.parametrize(("start", "file"), [("37 largest", "unseen-largest"), ("119 annotated", "unseen-slices")])
def test_page_states_the_scores_of_the_bundled_weights(start, file):
    before, after = read_results(f"{file}.csv.gz"), read_results(f"{file}-calibrated.csv.gz")
    s_ncc, dice = ([means(rows, [name])[0] for rows in (before, after)] for name in ("s_ncc", "dice"))
    assert cells(PAGE, start) == [*s_ncc, *dice]
    interval, coverage = with_interval(before, "ged_unbiased"), f"{column(before, 'area_coverage').mean():.2f}"
    assert cells(PAGE, start, nth=1) == [interval, *means(before, ORDER[1:]), coverage]
    for name in ("ged", "ged_unbiased", "area_coverage"):  # the margin keeps the labels
        np.testing.assert_allclose(column(before, name), column(after, name))


def test_page_states_the_scores_with_the_margin():
    rows = read_results("calibrated-cases.csv.gz")
    low, high = patient_interval([column(rows, "s_ncc")], [row["patient"] for row in rows])
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    s_ncc, dice = means(rows, ("s_ncc", "dice"))
    assert f"has an S_NCC of **{s_ncc}** ({low:.3f} to {high:.3f})" in text
    assert f"Its Dice is {dice} instead of" in text


@pytest.mark.parametrize("kind", ["lesion", "zones"])
def test_phantom_page_states_the_scores_of_a_perfect_sampler(kind):
    page = ROOT / "experiments/phantom"
    rows = read_scores(page / f"results/{kind}/perfect-cases.csv.gz")
    unbiased = column(rows, "ged_unbiased")
    error = unbiased.std(ddof=1) / np.sqrt(len(rows))
    diversity = column(rows, "ged_within_samples").mean() * 100 / 99  # of two distinct annotators among 100
    row = cells(page / "README.md", "a perfect sampler", nth=["lesion", "zones"].index(kind))
    stated = [f"{unbiased.mean():.3f} ± {error:.3f}", *means(rows, ["ged"]), f"{diversity:.3f}"]
    assert [cell for cell in row if cell] == stated


def volume_scores(rows):
    """Return the coverage, the median width, mean and median of CRPS and floor, and the error of presence."""
    off = np.abs(column(rows, "present") - column(rows, "readers_present")).mean()
    crps, floor = column(rows, "crps_ml"), column(rows, "crps_floor_ml")
    both = [f"{values.mean():.3f}, {np.median(values):.3f}" for values in (crps, floor)]
    inside, width = column(rows, "inside").mean(), np.median(column(rows, "width"))
    return [str(len(rows)), f"{inside:.2f}", f"{width:.2f}", *both, f"{off:.2f}"]


def unseen_nodules():
    """Return the nodules of patients that the scored model was not trained on: its test patients."""
    unseen = {row["patient"] for row in read_results("cases.csv.gz")}
    return [row for row in read_scores(VOLUMES / "results/nodules.csv") if row["patient"] in unseen]


def test_volumes_page_follows_from_the_nodules():
    rows, unseen = read_scores(VOLUMES / "results/nodules.csv"), unseen_nodules()
    small = [row for row in rows if max(map(float, row["readers_ml"].split())) < 2]
    page = VOLUMES / "README.md"
    assert cells(page, "of patients not trained on") == volume_scores(unseen)
    assert cells(page, "of training patients") == volume_scores([row for row in rows if row not in unseen])
    assert cells(page, "all |") == volume_scores(rows)
    assert cells(page, "nodules below 2 ml") == volume_scores(small)
    previous = read_scores(VOLUMES / "results/previous-nodules.csv")
    for start, model in (("all, previous model", "previous"), ("all, model before it", "one reader per step")):
        assert cells(page, start) == volume_scores([row for row in previous if row["model"] == model])


def test_report_states_the_measured_coverage_of_unseen_nodules():
    """The coverage in the model, its card and the pages is that of the nodules listed in the repository."""
    rows = unseen_nodules()
    coverage = column(rows, "inside").mean()
    preprocessing = Preprocessing.of(load_model(CARD.parent))
    check, coupling = preprocessing.volume_check, preprocessing.slice_coupling
    assert (check.num_lesions, check.coverage) == (len(rows), round(coverage, 3))
    stored = (coupling.length_mm, coupling.shared)
    assert {(float(row["noise_length_mm"]), float(row["noise_shared"])) for row in rows} == {stored}
    low, high = patient_interval([column(rows, "inside")], [row["patient"] for row in rows])
    text = " ".join(CARD.read_text(encoding="utf-8").split())
    assert cells(CARD, "9 of six patients")[0] == f"{coverage:.0%}".replace("%", " %")
    assert f"is {100 * low:.0f} to {100 * min(high, 1):.0f} %" in text
    for page in ("lidc_volumes", "lidc_volumes_3d"):
        text = " ".join((ROOT / "experiments" / page / "README.md").read_text(encoding="utf-8").split())
        assert re.search(rf"is {low:.2f} to {min(high, 1):.2f}\b", text), page

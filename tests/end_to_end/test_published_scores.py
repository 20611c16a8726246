"""Tables of lidc-nodule in its card and in experiments/ follow from the scores of cases stored beside them."""

import csv
import gzip
import io
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from phiseg.core.bundled import bundled_models
from phiseg.inference.preprocessing import Preprocessing
from phiseg.metrics.significance import patient_interval, patient_t_test
from phiseg.models import load_model

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "experiments/lidc_nodule/README.md"
LIDC_SLICES = ROOT / "experiments/lidc_slices"
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


def text_of(page):
    """Return the text of a page without line breaks."""
    return " ".join(page.read_text(encoding="utf-8").split())


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


def test_card_and_page_state_the_scores_of_the_largest_slices():
    largest = {row["case"] for row in read_results("largest-slices.csv")}
    rows, calibrated = (
        [row for row in read_results(name) if row["case"] in largest]
        for name in ("cases.csv.gz", "calibrated-cases.csv.gz")
    )
    unbiased, ged, floor, s_ncc, dice = means(rows, ORDER)
    assert cells(PAGE, "the largest of each nodule") == [str(len(rows)), unbiased, ged, floor, s_ncc, dice]
    assert cells(CARD, "the largest of each nodule") == [str(len(rows)), ged, floor, unbiased, s_ncc, dice]
    after = means(calibrated, ["s_ncc"])[0]
    assert f"and of {after} instead of {s_ncc} on the largest slices" in text_of(PAGE)


@pytest.mark.parametrize("file", ["previous", "one-reader", "without-presence"])
def test_page_states_the_scores_of_previous_models(file):
    rows = read_results(f"{file}-cases.csv.gz")
    assert len(rows) == 2894
    line = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if f"`{file}-cases" in line)
    assert [cell.strip() for cell in line.split("|")[5:9]] == means(rows, ("ged_unbiased", "ged", "s_ncc", "dice"))


@pytest.mark.parametrize("rate", ["0.001", "0.003"])
def test_page_states_the_scores_of_mose_by_learning_rate(rate):
    page = LIDC_SLICES
    rows = [row for row in read_scores(page / "results/mose-rates.csv.gz") if row["learning_rate"] == rate]
    assert len(rows) == 828
    lines = [line for line in (page / "README.md").read_text().splitlines() if line.startswith("| MoSE |")]
    stated = next(line for line in lines if rate in line and line.count("|") == 5)
    assert stated.split("|")[-2].strip() == means(rows, ["ged_unbiased"])[0]


@pytest.mark.parametrize("start", ["random weights", "pre-trained mean"])
def test_page_states_the_scores_of_ssn_by_start(start):
    rows = [row for row in read_scores(LIDC_SLICES / "results/ssn-starts.csv.gz") if row["start"] == start]
    assert len(rows) == 828
    assert cells(LIDC_SLICES / "README.md", start) == means(rows, ("ged_unbiased", "s_ncc", "dice", "hm_iou"))


@pytest.mark.parametrize("file", ["cases", "seed-0-16000-cases", "seed-1-16000-cases", "ensemble-cases"])
def test_page_states_the_scores_of_longer_trainings(file):
    rows, largest = read_results(f"{file}.csv.gz"), {row["case"] for row in read_results("largest-slices.csv")}
    section = PAGE.read_text(encoding="utf-8").split("### Longer training")[1]
    line = next(line for line in section.splitlines() if f"`{file}.csv.gz`" in line)
    parts = rows, [row for row in rows if row["case"] in largest]
    assert [cell.strip() for cell in line.split("|")[3:5]] == [means(part, ["ged_unbiased"])[0] for part in parts]


def test_page_states_the_cross_entropies_of_larger_crops():
    rows = read_results("surroundings.csv.gz")
    means_of = {
        (inputs, seed): column(
            [row for row in rows if (row["inputs"], row["seed"]) == (inputs, seed)], "cross_entropy"
        )
        for inputs in ("near", "both")
        for seed in "01"
    }
    assert {len(values) for values in means_of.values()} == {828}
    near, near_again, both, both_again = (f"{values.mean():.3f}" for values in means_of.values())
    assert f"{near} and {near_again} (two seeds)" in text_of(PAGE)
    assert f"{both} and {both_again} with them" in text_of(PAGE)


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
    text = text_of(PAGE)
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


@pytest.mark.parametrize(
    ("start", "file"),
    [("`lesion-phantom` |", "before"), ("with a flow", "after"), ("trained for longer", "continued")],
)
def test_phantom_page_states_the_scores_of_a_flow(start, file):
    page = ROOT / "experiments/lesion_phantom"
    rows = read_scores(page / f"results/flow-{file}.csv.gz")
    assert len(rows) == 200
    assert cells(page / "README.md", start)[:5] == means(rows, ("ged_unbiased", "ged", "hm_iou", "s_ncc", "dice"))


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


def test_page_states_the_volumes_of_the_ensemble():
    both = [volume_scores(read_scores(VOLUMES / f"results/{name}.csv")) for name in ("ensemble-nodules", "nodules")]
    inside, width, crps = zip(*[scores[1:4] for scores in both], strict=True)
    mean, mean_of_one = (cell.split(",")[0] for cell in crps)
    text = text_of(PAGE)
    assert f"CRPS {mean} ml for the ensemble and {mean_of_one} ml for the scored model" in text
    assert f"median width {' and '.join(width)}, coverage {' and '.join(inside)}" in text


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
    text = text_of(CARD)
    assert cells(CARD, "9 of six patients")[0] == f"{coverage:.0%}".replace("%", " %")
    assert f"is {100 * low:.0f} to {100 * min(high, 1):.0f} %" in text
    for page in ("lidc_volumes", "lidc_volumes_3d"):
        text = text_of(ROOT / "experiments" / page / "README.md")
        assert re.search(rf"is {low:.2f} to {min(high, 1):.2f}\b", text), page


@pytest.mark.parametrize(
    ("start", "belongs"),
    [
        ("of patients not trained on", lambda row, unseen: row["patient"] in unseen),
        ("of training patients", lambda row, unseen: row["patient"] not in unseen),
        ("all | 2-D", lambda row, unseen: True),
        ("below 2 ml", lambda row, unseen: max(map(float, row["readers_ml"].split())) < 2),
    ],
)
def test_page_compares_the_nodules_of_both_models(start, belongs):
    page = ROOT / "experiments/lidc_volumes_3d/README.md"
    unseen = {row["patient"] for row in unseen_nodules()}
    lines = page.read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"| {start}"))
    for line, folder in zip(lines[first : first + 2], (VOLUMES, page.parent), strict=True):
        rows = [row for row in read_scores(folder / "results/nodules.csv") if belongs(row, unseen)]
        inside, width, crps, _, off = volume_scores(rows)[1:]
        stated = [cell.strip() for cell in line.strip("|").split("|")]
        assert stated[2:] == [str(len(rows)), inside, width, crps, off]


PHANTOM_VOLUMES = ROOT / "experiments/volumes"
SAMPLED = [
    ("phiseg3d", "PHiSeg 3-D | 4,573", "PHiSeg 3-D | learned"),
    ("slices-inf", "PHiSeg 2-D | 21,419 | shared", "PHiSeg 2-D | shared"),
    ("context-inf", "PHiSeg 2-D with neighbours | 20,211", "PHiSeg 2-D with neighbours | shared"),
    ("slices-8", "PHiSeg 2-D | 21,419 | noise length", "PHiSeg 2-D | noise length"),
    ("probunet3d", "Prob. U-Net 3-D | 4,687", "Prob. U-Net 3-D | one"),
    ("slices-0", "PHiSeg 2-D | 21,419 | independent", "PHiSeg 2-D | independent"),
]


@pytest.mark.parametrize(
    ("name", "start"),
    [*((f"test-{name}", start) for name, start, _ in SAMPLED), ("a perfect sampler", "a perfect sampler | | |")],
)
def test_volumes_page_states_the_scores_against_the_true_distribution(name, start):
    rows = [row for row in read_scores(PHANTOM_VOLUMES / "results/volumes.csv") if row["samples"] == name]
    assert len({row["patient"] for row in rows}) == 80
    coverage, presence, mean, sd = (
        f"{np.nanmean(column(rows, key)):.2f}" for key in ("coverage", "presence", "mean_error", "sd")
    )
    width, crps = f"{np.median(column(rows, 'width')):.2f}", f"{column(rows, 'crps').mean():.3f}"
    assert cells(PHANTOM_VOLUMES / "README.md", start)[-6:] == [coverage, width, crps, presence, mean, sd]


@pytest.mark.parametrize(("name", "start"), [(name, start) for name, _, start in SAMPLED])
def test_volumes_page_states_the_overlap_of_samples(name, start):
    rows = [row for row in read_scores(PHANTOM_VOLUMES / "results/cases.csv.gz") if row["method"] == f"test-{name}"]
    stated = plain_cells(PHANTOM_VOLUMES / "README.md", start)[1:]
    assert stated == means(rows, ("ged_unbiased", "ged", "hm_iou", "diversity"))


METRICS, BATCH_NORM, WHAT_MATTERS, WHICH_NUMBERS = (
    ROOT / "docs/explanation" / f"{name}.md"
    for name in ("metrics", "batch-norm", "what-matters", "which-numbers-compare")
)


def test_metrics_page_states_the_scores_by_temperature():
    results = LIDC_SLICES / "results"
    scores = {kind: read_scores(results / f"confidence-{kind}.csv.gz") for kind in ("lidc", "phantom")}
    assert [len({row["case"] for row in rows}) for rows in scores.values()] == [120, 60]

    def mean(kind, temperature, name):
        rows = [row for row in scores[kind] if row["temperature"] == temperature]
        return column(rows, name).mean()

    for temperature in ("4", "2", "1", "0.5", "0.25", "0.1", "0.01"):
        stated = cells(METRICS, "1 (no change)" if temperature == "1" else f"{temperature} |")
        names = (("s_ncc", 3), ("disagreement", 3), ("brier", 4))
        assert stated == [
            f"{mean(kind, temperature, name):.{decimals}f}" for kind in scores for name, decimals in names
        ]
    text = text_of(METRICS)
    for name, sentence in (
        ("s_ncc", "S_NCC rises by {} (LIDC) and {} (phantom)"),
        ("disagreement", "by {} (LIDC)"),
    ):
        gains = [f"{mean(kind, '0.01', name) - mean(kind, '1', name):.3f}" for kind in scores]
        assert sentence.format(*gains) in text


def test_batch_norm_page_states_the_scores_by_images():
    rows = read_scores(ROOT / "experiments/batch_norm/results/images.csv.gz")

    def scores(name, **setting):
        """Return a score, (draws, cases)."""
        found = [row for row in rows if all(row[key] == value for key, value in setting.items())]
        draws = list(dict.fromkeys(row["draw"] for row in found))
        return np.stack([column([row for row in found if row["draw"] == draw], name) for draw in draws])

    patients = [row["patient"] for row in rows[:240]]
    for start, run in (("seed 0", "abl-default"), ("seed 1", "abl-default-seed1")):
        stated = []
        for name in ("ged_unbiased", "s_ncc"):
            both = [scores(name, run=run, batches="60", images=images) for images in ("augmented", "unaugmented")]
            assert [values.shape for values in both] == [(3, 240)] * 2
            test = patient_t_test(*(values.mean(0) for values in both), patients)
            p = "< 0.001" if test.p_value < 0.001 else f"{test.p_value:.1g}"
            stated += [*(f"{values.mean():.3f}" for values in both), p]
        assert [cell.replace("*", "") for cell in cells(BATCH_NORM, start)] == stated
    for batches in ("25", "60", "110"):
        draws = scores("ged_unbiased", run="abl-default-seed1", batches=batches, images="unaugmented")
        spread = np.ptp(draws.mean(1))
        values = ", ".join(f"{draw:.3f}" for draw in draws.mean(1))
        assert cells(BATCH_NORM, f"{batches} |") == [values, f"{spread:.3f}"]


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_what_matters_page_states_the_part_due_to_presence(split):
    rows = [row for row in read_results("presence.csv.gz") if row["split"] == split]
    both = [with_interval(rows, name) for name in ("ged_unbiased", "presence")]
    patients = len({row["patient"] for row in rows})
    assert cells(WHAT_MATTERS, f"{split} |") == [str(len(rows)), str(patients), *both]


@pytest.mark.parametrize("samples", [4, 8, 16, 32, 64, 128])
def test_calibration_page_states_the_best_divisors(samples):
    page, best, gains = ROOT / "docs/how-to/combine-and-calibrate.md", {}, []
    for kind in ("phantom", "lidc"):
        rows = [row for row in read_results(f"divisors-{kind}.csv.gz") if row["num_samples"] == str(samples)]
        divisors = sorted({row["divisor"] for row in rows}, key=float)
        for score in ("brier", "nll"):
            curve = [column([row for row in rows if row["divisor"] == each], score).mean() for each in divisors]
            best[score, kind] = f"{float(divisors[np.argmin(curve)]):.2f}"
            if score == "brier":
                gains.append(f"{100 * (1 - min(curve) / curve[divisors.index('1.0000')]):.2f} %")
    assert cells(page, f"{samples} |") == [
        best[key] for key in sorted(best, key=lambda key: (key[0], key[1] != "phantom"))
    ]
    if samples == 128:
        assert "only {} (`lesion-phantom`) and {} (`lidc-nodule`)".format(*gains) in text_of(page)


def test_conventions_page_states_the_scores_of_a_perfect_sampler():
    rows = read_scores(ROOT / "experiments/phantom/results/conventions.csv.gz")
    names = [name for name in rows[0] if name.startswith(("ged-", "hm-"))]
    assert len(names) == 9
    for name in names:
        stated = []
        for samples in ("16", "50", "100"):
            found = [row for row in rows if row["num_samples"] == samples]
            assert len(found) == 120
            value = f"{column([row for row in found if row[name]], name).mean():.3f}"
            floor = f" ({column(found, 'ged_floor').mean():.3f})" if name == "ged-all-pairs" else ""
            stated.append(value + floor)
        (line,) = [
            line
            for line in WHICH_NUMBERS.read_text(encoding="utf-8").splitlines()
            if re.match(rf"\| `{name}`( \(floor\))? \| \d", line)
        ]
        assert [cell.strip() for cell in line.strip("|").split("|")][1:] == stated


def plain_cells(page, start, *, nth=0):
    """Return the cells of a table row without bold."""
    return [cell.replace("*", "") for cell in cells(page, start, nth=nth)]


def read_long_trainings():
    """Return the scores of every training of the main LIDC table, by method."""
    benchmark, trainings = ROOT / "experiments/benchmark", defaultdict(list)
    with (benchmark / "rows.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["track"] == "lidc-slices-64-long":
                trainings[row["method"]].append(read_scores(benchmark / row["cases"]))
    assert {len(rows) for each in trainings.values() for rows in each} == {2894}
    return dict(trainings)


LONG_TRAININGS = read_long_trainings()


def pooled_means(trainings, names):
    return [f"{np.mean([column(rows, name) for rows in trainings]):.3f}" for name in names]


@pytest.mark.parametrize(
    ("start", "method"),
    [
        ("PHiSeg, five levels", "PHiSeg (L=5)"),
        ("Probabilistic U-Net", "Prob. U-Net"),
        ("HPU-Net", "HPU-Net"),
        ("MoSE", "MoSE"),
        ("Flow-SSN", "Flow-SSN"),
        ("SSN", "SSN"),
        ("PHiSeg, one level", "PHiSeg (L=1)"),
        ("CCDM", "CCDM"),
    ],
)
def test_readme_states_the_scores_of_the_benchmark(start, method):
    trainings = LONG_TRAININGS[method]
    assert plain_cells(ROOT / "README.md", start) == [str(len(trainings)), *pooled_means(trainings, ORDER)]


@pytest.mark.parametrize("method", LONG_TRAININGS)
def test_lidc_page_states_the_scores_of_the_benchmark(method):
    seeds, _, unbiased, ged, s_ncc, dice, hm_iou, _ = plain_cells(LIDC_SLICES / "README.md", f"{method} |")
    trainings = LONG_TRAININGS[method]
    assert int(seeds) == len(trainings)
    stated = [cell.split(" ")[0] for cell in (unbiased, ged, s_ncc, dice, hm_iou)]
    assert stated == pooled_means(trainings, ("ged_unbiased", "ged", "s_ncc", "dice", "hm_iou"))


@pytest.mark.parametrize(
    ("start", "file"), [("with a flow", "flow-cases"), ("with equal confidence", "equal-confidence-cases")]
)
def test_lidc_page_states_the_scores_of_variants(start, file):
    rows = read_scores(LIDC_SLICES / f"results/{file}.csv.gz")
    assert len(rows) == 2894
    stated = plain_cells(LIDC_SLICES / "README.md", start)
    assert stated[:-1] == means(rows, ("ged_unbiased", "ged", "s_ncc", "dice", "hm_iou"))


@pytest.mark.parametrize(
    "variant", ["default", "default-seed1", "default-seed2", "no-rotation", "kl-reference", "levels-3"]
)
def test_ablation_page_states_the_scores_of_its_variants(variant):
    page = ROOT / "experiments/ablation/README.md"
    rows = [row for row in read_scores(page.parent / "results/cases.csv.gz") if row["method"] == variant]
    assert (len(rows), len({row["patient"] for row in rows})) == (828, 51)
    ged, dice = means(rows, ("ged", "dice"))
    coverage = f"{column(rows, 'area_coverage').mean():.2f}"
    unbiased, s_ncc = (with_interval(rows, name) for name in ("ged_unbiased", "s_ncc"))
    assert plain_cells(page, f"`{variant}`:")[1:] == [unbiased, ged, s_ncc, dice, coverage]


@pytest.mark.parametrize(
    ("start", "run"),
    [
        ("phiseg-small, 200", "phiseg-small-200-constant"),
        ("phiseg-small, 400", "phiseg-small-400-cosine"),
        ("probunet-small, 200", "probunet-small-200-constant"),
        ("probunet-small, 400", "probunet-small-400-cosine"),
    ],
)
def test_batch_norm_pages_state_the_scores_by_statistics(start, run):
    """Both pages state the scores; bold is better than the other statistics at p < 0.01."""
    page = ROOT / "experiments/batch_norm/README.md"
    rows = [row for row in read_scores(page.parent / "results/cases.csv.gz") if row["run"] == run]
    both = [[row for row in rows if row["statistics"] == name] for name in ("running", "recalibrated")]
    names = ("ged_unbiased", "ged", "s_ncc", "dice")
    stated = [means(found, names) for found in both]
    for score, name in enumerate(names):
        tested = "ged_unbiased" if name == "ged" else name
        test = patient_t_test(*(column(found, tested) for found in both), [row["patient"] for row in both[0]])
        if test.p_value < 0.01:
            is_lower_better = name.startswith("ged")
            better = int((test.mean_difference > 0) == is_lower_better)
            stated[better][score] = f"**{stated[better][score]}**"
    lines = page.read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"| {start}"))
    for line, expected in zip(lines[first : first + 2], stated, strict=True):
        assert [cell.strip() for cell in line.strip("|").split("|")][-4:] == expected
    assert cells(BATCH_NORM, start) == [scores[1] for scores in stated]


NAMES = {
    "PHiSeg (L=5)": "phiseg-small",
    "PHiSeg (L=1)": "phiseg-l1-small",
    "Prob. U-Net": "probunet-small",
    "U-Net, one": "unet-small",
}


@pytest.mark.parametrize("start", NAMES)
@pytest.mark.parametrize(("folder", "nth"), [("cells", 0), ("phantom/lesion", 0), ("phantom/zones", 1)])
def test_pages_of_cells_and_phantoms_state_the_scores_of_cases(folder, nth, start):
    experiment, _, kind = folder.partition("/")
    page = ROOT / f"experiments/{experiment}"
    rows = read_scores(page / "results" / kind / "cases.csv.gz")
    rows = [row for row in rows if row["method"] == NAMES[start]]
    names = ("ged_unbiased", "ged") if kind else ("ged", "ged_unbiased")
    diversity = means(rows, ["diversity"])[0]
    assert plain_cells(page / "README.md", start, nth=nth)[1:6] == [
        *means(rows, (*names, "s_ncc", "dice")),
        diversity if kind or float(diversity) else "0",
    ]


def test_card_and_page_of_the_phantom_state_the_scores_of_cases():
    page = ROOT / "experiments/lesion_phantom"
    rows = read_scores(page / "results/cases.csv.gz")
    assert len(rows) == 200
    unbiased, ged, floor, s_ncc, dice = means(rows, ORDER)
    excess = f"{(column(rows, 'ged') - column(rows, 'ged_floor')).mean():.3f}"
    assert cells(page / "README.md", unbiased) == [ged, floor, excess, s_ncc, dice]
    assert cells(bundled_models()["lesion-phantom"] / "README.md", unbiased) == [ged, floor, s_ncc, dice]

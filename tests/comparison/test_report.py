import csv
import gzip
import re
from html.parser import HTMLParser

import pytest

from helpers.synthetic_evaluations import ModelRef, make_evaluation, write
from phiseg.comparison.compare import compare
from phiseg.comparison.report import Part, render_report
from phiseg.comparison.tables import comparison_table
from phiseg.core.errors import DataError, OutputError

PNG = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + (1000).to_bytes(4, "big") + (500).to_bytes(4, "big")


class Page(HTMLParser):
    """Collects what a browser would: tags with their attributes, and the text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.inside = [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside.append(tag)

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        if "style" not in self.inside:
            self.text += data

    def all(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


@pytest.fixture
def evaluations(tmp_path):
    return [
        make_evaluation(tmp_path / "a", "phiseg", 0.9, num_levels=3, training=True, size=16, num_cases=20),
        make_evaluation(tmp_path / "b", "probunet", 0.3, size=16, num_cases=20, model=ModelRef(annotator=2)),
    ]


def render(evaluations, title="Title", **pictures):
    return render_report([Part("", evaluations, comparison_table(evaluations), pictures)], title=title)


def test_report_is_self_contained(evaluations):
    text = render(evaluations, **{"samples.png": PNG, "levels.png": PNG, "scores.png": PNG, "curves.png": PNG})
    page = Page(text)
    sources = [
        value for _, attributes in page.tags for name, value in attributes.items() if name in ("src", "href")
    ]
    assert len(sources) == 4
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not page.all("script")
    assert not page.all("link")
    assert not re.search(r"https?://|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text


def test_report_escapes_names(tmp_path):
    name = '<script>alert("x")</script>'
    hostile = make_evaluation(
        tmp_path / "a", name, size=8, split="<b>", model=ModelRef(recipe="<i>", annotator="<u>")
    )
    text = render([hostile], title="<h6>&")
    page = Page(text)
    assert not any(page.all(tag) for tag in ("script", "b", "i", "u", "h6"))
    assert text.count("&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;") == 3
    assert name in page.text


def test_report_marks_best_scores_bold(evaluations):
    text = render(evaluations)
    table = comparison_table(evaluations)
    bold = re.findall(r"<strong>(.*?)</strong>", text)
    assert bold == [f"{getattr(table.rows[0], metric):.4f}" for metric in ("ged", "ged_unbiased", "s_ncc", "dice")]
    words = " ".join(Page(text).text.split())
    assert "Bold: better than every other method" in words
    assert "independent given the image" in words
    low, high = evaluations[0].summary.intervals["ged"]
    assert f"{low:.3f} to {high:.3f}" in words


def test_report_states_how_it_was_made(evaluations):
    words = " ".join(Page(render(evaluations)).text.split())
    for fact in (
        "phantom-lesion",
        "9f86d081884c7d65",
        "test split",
        "20 cases",
        "100 samples",
        "4,000",
        "1,234,567",
    ):
        assert fact in words
    assert "annotator 2" in words
    assert "all annotators" in words


def test_report_omits_missing_pictures(evaluations):
    page = Page(render(evaluations, **{"scores.png": PNG}))
    assert len(page.all("img")) == 1
    assert "A sample, level by level" not in page.text
    assert "Scores of all cases" in page.text


@pytest.fixture
def quick_pictures(monkeypatch):
    def draw(evaluations, labels):
        return {"scores.png": PNG} | {f"samples-{n + 2}.png": PNG for n in range(len(evaluations))}

    monkeypatch.setattr("phiseg.comparison.compare.draw_pictures", draw)


def test_compare_writes_results_and_keeps_other_files(evaluations, tmp_path):
    out = tmp_path / "demo"
    (out / "phiseg").mkdir(parents=True)
    (out / "samples-of-mine.png").write_text("mine")
    table = compare([write(evaluation) for evaluation in evaluations], out, title="My comparison")
    names = {"table.csv", "table.md", "table.tex", "report.html", "scores.png", "curves.png", "levels.png"}
    names |= {"samples.png", "samples-2.png", "samples-of-mine.png", "phiseg"}
    names |= {"terms.png", "scatter.png", "reliability.png", "cases.csv.gz"}
    assert {path.name for path in out.iterdir()} == names
    assert [row.method for row in table.rows] == ["phiseg", "probunet"]
    with (out / "table.csv").open(newline="") as file:
        assert [float(row["ged"]) for row in csv.DictReader(file)] == [row.ged for row in table.rows]
    with gzip.open(out / "cases.csv.gz", "rt", newline="") as file:
        scores = list(csv.DictReader(file))
    for evaluation in evaluations:
        own = [row for row in scores if row["method"] == evaluation.summary.method]
        assert [row["patient"] for row in own] == evaluation.cases["patient"]
        assert [float(row["ged_unbiased"]) for row in own] == evaluation.cases["ged_unbiased"]
    page = Page((out / "report.html").read_text())
    assert len(page.all("img")) == 8
    assert "My comparison" in page.text


def test_compare_again_needs_overwrite_and_removes_stale_pictures(evaluations, tmp_path, quick_pictures):
    out = tmp_path / "report"
    folders = [write(evaluation) for evaluation in evaluations]
    compare(folders, out)
    before = (out / "report.html").read_bytes()
    assert (out / "samples-3.png").exists()
    with pytest.raises(OutputError, match="--overwrite"):
        compare(folders, out)
    (out / "my-curves.png").write_bytes(b"somebody else's")
    compare(folders[1:], out, overwrite=True)
    assert (out / "my-curves.png").exists()
    assert (out / "report.html").read_bytes() != before
    assert (out / "samples-2.png").exists()
    assert not (out / "samples-3.png").exists()


def test_failed_comparison_keeps_previous_one(evaluations, tmp_path, quick_pictures):
    out = tmp_path / "report"
    folders = [write(evaluation) for evaluation in evaluations]
    compare(folders, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (folders[1] / "cases.csv").write_text("")
    with pytest.raises(DataError, match=r"cases\.csv"):
        compare(folders, out, overwrite=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_full_disk_keeps_previous_report(evaluations, tmp_path, quick_pictures, monkeypatch):
    out = tmp_path / "report"
    folders = [write(evaluation) for evaluation in evaluations]
    compare(folders, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def full(path):
        raise OutputError(f"cannot write {path}: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("phiseg.comparison.compare.atomic_file", full)
        with pytest.raises(OutputError, match="No space left"):
            compare(folders[1:], out, overwrite=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_unremovable_file_and_unreadable_folder_are_output_errors(
    evaluations, tmp_path, quick_pictures, monkeypatch
):
    folder = write(evaluations[0])
    (tmp_path / "report" / "levels-7.png").mkdir(parents=True)
    with pytest.raises(OutputError, match=r"cannot remove .*levels-7\.png"):
        compare([folder], tmp_path / "report", overwrite=True)

    def forbidden(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.iterdir", forbidden)
    with pytest.raises(OutputError, match=r"cannot read .*Permission denied"):
        compare([folder], tmp_path / "report")

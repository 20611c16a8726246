"""What `phiseg predict` shows: a picture of every case, a table of all of them, and a page with both.

PRED/  cases.csv  report.html  [failed.csv]  beside the folders of the cases
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from phiseg.core.files import write_text
from phiseg.evaluation.drawing import (
    class_colour,
    outline_mask,
    overlay,
    plain,
    scale_bar,
    show,
    show_image,
    style,
    to_png,
)
from phiseg.evaluation.report import embedded, render
from phiseg.inference.cohort import read_summary
from phiseg.inference.measures import Measures
from phiseg.inference.volumes import Prediction

_PANEL = 2.1
"""Inches of one picture."""


def case_picture(prediction: Prediction, measures: Measures, name: str) -> bytes:
    """Draw one slice: the image, the outlines of all samples, their mean and the gamma map; and the volumes."""
    index = _shown_slice(prediction)
    number = prediction.box[0].start + index
    image = _image(prediction, number)
    vertical, horizontal = prediction.stack.stack.spacing_mm[1:]
    aspect = image.shape[0] * vertical / (image.shape[1] * horizontal)
    with style():
        figure = Figure(figsize=(5 * _PANEL + 0.6, _PANEL * max(0.6, min(aspect, 2)) + 0.35), layout="constrained")
        first, outlines, mean, gamma, volumes = figure.subplots(1, 5)
        for axes, title in (
            (first, f"{plain(_shortened(name))}, {prediction.stack.plane} {_index_in_file(prediction, number)}"),
            (outlines, _number_of_samples(prediction, index)),
            (mean, "mean"),
        ):
            _show(axes, prediction, image, title)
            axes.set_aspect(vertical / horizontal)
        scale_bar(first, image.shape[1], horizontal)
        for labels in prediction.labels[:, index]:
            for k in range(1, len(prediction.classes)):
                outline_mask(outlines, labels == k, class_colour(k), width=0.5)
        overlay(mean, prediction.mean_probs[:, index])
        top = max(float(prediction.gamma[index].max()), 1e-3)
        drawn = show(gamma, prediction.gamma[index], "inferno", 0.0, top, title="gamma: where samples disagree")
        gamma.set_aspect(vertical / horizontal)
        figure.colorbar(drawn, ax=gamma, shrink=0.8, pad=0.02)
        _histogram(volumes, measures)
    return to_png(figure)


def write_prediction_report(out: Path, finished: Sequence[str], failed: Mapping[str, str], *, model: str) -> Path:
    """Write cases.csv, report.html and, if any case failed, failed.csv; what needs a second look comes first.

    Args:
        out: folder of the cases.
        finished: names of those to report on.
        failed: why others could not be predicted, by name.
        model: what its user calls it.
    """
    summaries = {name: summary for name in finished if (summary := read_summary(out / name))}
    cases = sorted(
        ({**summary, "case": name, "look": _look(summary)} for name, summary in summaries.items()),
        key=lambda case: (not case["look"], case["agreement"], -case["mean_gamma"], case["case"]),
    )
    write_text(out / "cases.csv", _table(cases))
    if failed:
        write_text(out / "failed.csv", _csv([("case", "reason"), *sorted(failed.items())]))
    else:
        (out / "failed.csv").unlink(missing_ok=True)
    page = render(
        "prediction.html.j2",
        title="Prediction",
        cases=[{**case, "picture": embedded((out / case["case"] / "picture.png").read_bytes())} for case in cases],
        failed=sorted(failed.items()),
        unknown=[case["case"] for case in cases if not case["has_spacing"]],
        model=model,
    )
    write_text(out / "report.html", page)
    return out / "report.html"


def _look(case: Mapping[str, Any]) -> str:
    """Say why a case needs a second look however well its samples agree; nothing where it does not."""
    present = max(found["present"] for found in case["classes"].values())
    reasons = {"cut off": case["truncated"] > 0, "not found": case["point"] is not None and present < 0.5}
    return ", ".join(reason for reason, holds in reasons.items() if holds)


def _table(cases: Sequence[Mapping[str, Any]]) -> str:
    """Return the cases as CSV, one line for each class of a case."""
    spreads = ("volume_ml", "diameter_mm")
    names = [f"{name}_{part}" for name in spreads for part in ("median", "low", "high")]
    rows = [["case", "class", "present", *names, "agreement", "mean_gamma", "truncated", "look"]]
    for case in cases:
        whole = [f"{case[name]:.6g}" for name in ("agreement", "mean_gamma", "truncated")]
        for name, found in case["classes"].items():
            numbers = [found[spread][part] for spread in spreads for part in ("median", "low", "high")]
            rounded = [f"{number:.6g}" for number in (found["present"], *numbers)]
            rows.append([case["case"], name, *rounded, *whole, case["look"]])
    return _csv(rows)


def _csv(rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _shortened(name: str) -> str:
    """Return a name that leaves room for its neighbour's."""
    return name if len(name) <= 22 else f"{name[:10]}…{name[-11:]}"


def _index_in_file(prediction: Prediction, number: int) -> str:
    """Name a slice of the stack along the axis of the file that slices follow each other on, such as k = 12."""
    here, beside = (prediction.voxel(n, 0, 0) for n in (number, number + 1))
    (axis,) = (axis for axis in range(3) if here[axis] != beside[axis])
    return f"{'ijk'[axis]} = {here[axis]}"


def _shown_slice(prediction: Prediction) -> int:
    """Return the slice of the box that is shown: the point's if anything is in it, else the fullest."""
    if prediction.point is not None:
        at_point = int(prediction.point[0] - prediction.box[0].start)
        if prediction.labels[:, at_point].any() or not prediction.labels.any():
            return at_point
    return int(prediction.mean_probs[1:].sum((0, 2, 3)).argmax())


def _number_of_samples(prediction: Prediction, index: int) -> str:
    """Return how many samples there are, and how many of them have nothing in a slice of the box."""
    samples = prediction.labels[:, index]
    empty = len(samples) - np.count_nonzero(samples.any((1, 2)))
    return f"{len(samples)} samples" + (f", {empty} empty here" if empty else "")


def _image(prediction: Prediction, number: int) -> NDArray[np.float32]:
    """Return the box's part of a slice, the first channel in the model's window, (h, w)."""
    rows, columns = prediction.box[1:]
    return prediction.stack.normalised(np.array([number]))[0, 0, rows, columns]


def _show(axes: Axes, prediction: Prediction, image: NDArray[np.float32], title: str) -> None:
    if prediction.stack.preprocessing.intensity.kind == "window":
        show(axes, image, "gray", -0.5, 0.5, title=title)
    else:
        show_image(axes, image, title=title)


def _histogram(axes: Axes, measures: Measures) -> None:
    for number, (name, found) in enumerate(measures.classes.items(), start=1):
        axes.hist(found.volume_ml.samples, bins=12, color=class_colour(number), alpha=0.8, label=plain(name))
        axes.axvline(found.volume_ml.median, color="#444444", linewidth=0.8)
    axes.set_title("volume of the samples, ml (line: median)", pad=2.5, fontsize=7, color="#444444")
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    if len(measures.classes) > 1:
        axes.legend()

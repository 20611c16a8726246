"""The report of `phiseg predict`: a picture of each case, a table of all cases, and a page with both.

PRED/  cases.csv  report.html  [failed.csv]  next to the folders of the cases
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from phiseg.core.files import write_text
from phiseg.inference.case_folders import read_summary
from phiseg.inference.measures import Measures, Units
from phiseg.inference.prediction import Prediction
from phiseg.inference.preprocessing import VolumeCheck
from phiseg.inference.scans import PICTURE
from phiseg.plotting.html_page import embedded_png, render_page
from phiseg.plotting.primitives import (
    class_colour,
    outline_mask,
    outline_masks,
    overlay,
    plain,
    scale_bar,
    show,
    show_image,
    style,
    to_png,
)

_PANEL = 2.1
"""Size of a picture in inches."""
_FAILED = ["case", "reason"]
"""Columns of failed.csv."""
MAX_SLICES = 7
"""Maximum number of slices of a lesion."""


def case_picture(prediction: Prediction, measures: Measures, name: str) -> bytes:
    """Draw one slice with its samples and maps, the sizes, several slices of the lesion, and outlying samples."""
    with style():
        width = 5 * _PANEL + 0.6
        closer, shown = _close_up(prediction), _spread_slices(prediction)
        heights = [_PANEL * max(0.6, min(_aspect(prediction, *_whole(prediction)), 2)) + 0.35]
        if shown:
            heights += [width / MAX_SLICES * max(0.5, min(_aspect(prediction, *closer), 2)) + 0.45] * 2
        figure = Figure(figsize=(width, sum(heights)), layout="constrained")
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        _draw_slice(parts[0], prediction, measures, name)
        if shown:
            _draw_slices(parts[1], parts[2], prediction, measures, shown, closer)
    return to_png(figure)


def _draw_slice(figure: SubFigure, prediction: Prediction, measures: Measures, name: str) -> None:
    """Draw one slice with the image, the outlines of all samples, their mean and the gamma map, and the sizes."""
    index = _shown_slice(prediction)
    number = prediction.box[0].start + index
    image = _image(prediction, number)
    vertical, horizontal = prediction.stack.stack.spacing_mm[1:]
    first, outlines, mean, gamma, sizes = figure.subplots(1, 5)
    for axes, title in (
        (first, f"{plain(_shortened(name))}, {prediction.stack.plane} {_index_in_file(prediction, number)}"),
        (outlines, _number_of_samples(prediction, index)),
        (mean, "mean"),
    ):
        _show(axes, prediction, image, title)
        axes.set_aspect(vertical / horizontal)
    if prediction.stack.has_spacing:
        scale_bar(first, image.shape[1], horizontal)
    _outline_samples(outlines, prediction.labels[:, index], len(prediction.classes))
    overlay(mean, prediction.mean_probs[:, index])
    top = max(float(prediction.gamma[index].max()), 1e-3)
    drawn = show(gamma, prediction.gamma[index], "inferno", 0.0, top, title="gamma: where samples disagree")
    gamma.set_aspect(vertical / horizontal)
    figure.colorbar(drawn, ax=gamma, shrink=0.8, pad=0.02)
    _histogram(sizes, measures)


def _draw_slices(
    upper: SubFigure,
    lower: SubFigure,
    prediction: Prediction,
    measures: Measures,
    indices: Sequence[int],
    part: tuple[slice, slice],
) -> None:
    """Draw a part of several slices with the outlines of all samples, and below those of three samples."""
    vertical, horizontal = prediction.stack.stack.spacing_mm[1:]
    samples = _outlying_samples(measures)
    for figure, title in ((upper, "all samples"), (lower, "")):
        for axes in figure.subplots(1, MAX_SLICES):
            axes.set_axis_off()
        for axes, index in zip(figure.axes, indices, strict=False):
            number = prediction.box[0].start + index
            image = _image(prediction, number)[part]
            _show(axes, prediction, image, _index_in_file(prediction, number))
            axes.set_aspect(vertical / horizontal)
            labels = prediction.labels[(slice(None), index, *part)]
            if title:
                _outline_samples(axes, labels, len(prediction.classes))
            for sample, _, colour in () if title else reversed(samples):
                outline_mask(axes, labels[sample] > 0, colour, width=1.1)
        if prediction.stack.has_spacing:
            scale_bar(figure.axes[0], part[1].stop - part[1].start, horizontal)
        lines = [Line2D([], [], color=colour, label=text) for _, text, colour in samples]
        lines = [Line2D([], [], color=class_colour(1), linewidth=0.6, label=title)] if title else lines
        figure.legend(handles=lines, loc="outside upper left", ncols=len(lines), fontsize=7, borderaxespad=0)


def write_prediction_report(
    out: Path,
    finished: Sequence[str],
    failed: Mapping[str, str],
    *,
    model: str,
    volume_check: VolumeCheck | None = None,
) -> Path:
    """Write cases.csv, report.html and, if any case failed, failed.csv; cases that need a review come first.

    Cases that failed in an earlier command and are not finished since then stay in failed.csv and the report.

    Args:
        out: folder of the cases.
        finished: names of the finished cases.
        failed: errors of the failed cases, by name.
        model: name of the model given by the user.
        volume_check: how often the volumes of annotators are in the intervals of the model, if this was measured.
    """
    summaries = {name: summary for name in finished if (summary := read_summary(out / name))}
    cases = sorted(
        ({**summary, "case": name, "look": _look(summary)} for name, summary in summaries.items()),
        key=lambda case: (not case["look"], case["agreement"], -case["mean_gamma"], case["case"]),
    )
    write_text(out / "cases.csv", _table(cases))
    earlier = _read_failed(out / "failed.csv")
    failed = {name: reason for name, reason in earlier.items() if name not in summaries} | dict(failed)
    if failed:
        write_text(out / "failed.csv", _csv([_FAILED, *sorted(failed.items())]))
    else:
        (out / "failed.csv").unlink(missing_ok=True)
    page = render_page(
        files("phiseg.plotting") / "prediction.html.j2",
        title="Prediction",
        cases=[{**case, "picture": embedded_png((out / case["case"] / PICTURE).read_bytes())} for case in cases],
        failed=sorted(failed.items()),
        headings=_headings(_units(cases)),
        unit_of=Units.of_json,
        assumed=[case["case"] for case in cases if not case["has_spacing"] and Units("ml", "mm") in _units([case])],
        model=model,
        volume_check=volume_check,
    )
    write_text(out / "report.html", page)
    return out / "report.html"


def _read_failed(path: Path) -> dict[str, str]:
    """Return the reasons in failed.csv by case; none if there is no such file or it is not one of ours."""
    try:
        heading, *rows = csv.reader(io.StringIO(path.read_text(encoding="utf-8"), newline=""))
        return dict(rows) if heading == _FAILED else {}
    except (OSError, ValueError, csv.Error):
        return {}


def _look(case: Mapping[str, Any]) -> str:
    """Return why a case needs a review regardless of the agreement of its samples; empty if it does not."""
    present = max(found["present"] for found in case["classes"].values())
    reasons = {
        "unusual image": case.get("unusual", False),
        "cut off": case["truncated"] > 0,
        "not found": case["point"] is not None and present < 0.5,
    }
    return ", ".join(reason for reason, holds in reasons.items() if holds)


def _units(cases: Sequence[Mapping[str, Any]]) -> list[Units]:
    """Return the units of all cases, ml and mm first; without a case, these two."""
    found = {Units.of_json(each) for case in cases for each in case["classes"].values()}
    return sorted(found, key=lambda units: units.size) or [Units("ml", "mm")]


def _headings(units: Sequence[Units]) -> tuple[str, str]:
    """Return the headings of sizes and diameters."""
    sizes, diameters = ([each.size_key for each in units], dict.fromkeys(each.diameter_key for each in units))
    size, diameter = (" or ".join(keys).replace("_", ", ") for keys in (sizes, diameters))
    return size, diameter


def _table(cases: Sequence[Mapping[str, Any]]) -> str:
    """Return the cases as CSV, one line per class of a case; undefined values are empty."""
    spreads = [
        f"{key}{suffix}"
        for units in _units(cases)
        for suffix in ("", "_if_present")
        for key in (units.size_key, units.diameter_key)
    ]
    parts = ("median", "low", "high")
    names = [f"{name}_{part}" for name in spreads for part in parts]
    rows = [["case", "class", "present", *names, "agreement", "mean_gamma", "truncated", "look"]]
    for case in cases:
        whole = [f"{case[name]:.6g}" for name in ("agreement", "mean_gamma", "truncated")]
        for name, found in case["classes"].items():
            measured = [found.get(spread) for spread in spreads]
            numbers = [f"{spread[part]:.6g}" if spread else "" for spread in measured for part in parts]
            rows.append([case["case"], name, f"{found['present']:.6g}", *numbers, *whole, case["look"]])
    return _csv(rows)


def _csv(rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _shortened(name: str) -> str:
    """Return a shortened name that does not overlap the next one."""
    return name if len(name) <= 22 else f"{name[:10]}…{name[-11:]}"


def _index_in_file(prediction: Prediction, number: int) -> str:
    """Return the index of a slice along the slice axis of the file, such as k = 12."""
    here, beside = (prediction.voxel(n, 0, 0) for n in (number, number + 1))
    (axis,) = (axis for axis in range(3) if here[axis] != beside[axis])
    return f"{'ijk'[axis]} = {here[axis]}"


def _shown_slice(prediction: Prediction) -> int:
    """Return the slice of the box to show: that of the point unless empty, otherwise the one with most voxels."""
    if prediction.point is not None:
        at_point = int(prediction.point[0] - prediction.box[0].start)
        if prediction.labels[:, at_point].any() or not prediction.labels.any():
            return at_point
    return int(prediction.mean_probs[1:].sum((0, 2, 3)).argmax())


def _number_of_samples(prediction: Prediction, index: int) -> str:
    """Return the number of samples, and the number of samples that are empty in a slice of the box."""
    samples = prediction.labels[:, index]
    empty = len(samples) - np.count_nonzero(samples.any((1, 2)))
    return f"{len(samples)} samples" + (f", {empty} empty here" if empty else "")


def _image(prediction: Prediction, number: int) -> NDArray[np.float32]:
    """Return a slice inside the box, in the window of the model: (h, w, 3) with colours, or (h, w) of channel 0."""
    channels = prediction.stack.normalised(np.array([number]))[(0, slice(None), *prediction.box[1:])]
    colours: NDArray[np.float32] = np.moveaxis(channels, 0, 2)
    return colours if prediction.stack.preprocessing.has_colours else channels[0]


def _show(axes: Axes, prediction: Prediction, image: NDArray[np.float32], title: str) -> None:
    if prediction.stack.preprocessing.intensity.kind == "window" and image.ndim == 2:
        show(axes, image, "gray", -0.5, 0.5, title=title)
    else:
        show_image(axes, image, title=title)


def _whole(prediction: Prediction) -> tuple[slice, slice]:
    height, width = prediction.labels.shape[2:]
    return slice(0, height), slice(0, width)


def _aspect(prediction: Prediction, rows: slice, columns: slice) -> float:
    """Return the ratio of height to width of a part of the box, both in mm."""
    vertical, horizontal = prediction.stack.stack.spacing_mm[1:]
    height, width = (rows.stop - rows.start) * vertical, (columns.stop - columns.start) * horizontal
    return float(height / width)


def _close_up(prediction: Prediction) -> tuple[slice, slice]:
    """Return the rows and columns of a square (in mm) around the foreground of all samples."""
    spacing, shape = prediction.stack.stack.spacing_mm[1:], prediction.labels.shape[2:]
    touched: NDArray[np.bool_] = np.asarray(prediction.labels.any((0, 1)))
    if not touched.any():
        return _whole(prediction)
    ends = [np.flatnonzero(touched.any(1 - axis))[[0, -1]] for axis in (0, 1)]
    margin = max((last - first + 1) * mm for (first, last), mm in zip(ends, spacing, strict=True)) * 0.75
    rows, columns = (
        slice(max(0, int((first + last) / 2 - margin / mm)), min(length, int((first + last) / 2 + margin / mm) + 2))
        for (first, last), mm, length in zip(ends, spacing, shape, strict=True)
    )
    return rows, columns


def _spread_slices(prediction: Prediction) -> list[int]:
    """Return up to `MAX_SLICES` slices of the box, evenly spaced over those that are not empty in all samples."""
    touched = np.flatnonzero(prediction.labels.any((0, 2, 3)))
    places = np.linspace(0, len(touched) - 1, min(len(touched), MAX_SLICES))
    return [int(touched[round(place)]) for place in places]


def _outlying_samples(measures: Measures) -> list[tuple[int, str, str]]:
    """Return number, text and colour of the smallest, the median and the largest sample."""
    sizes = np.sum([found.size.samples for found in measures.classes.values()], axis=0)
    order = np.argsort(sizes, kind="stable")
    names = {"smallest": 0, "median": (len(order) - 1) // 2, "largest": len(order) - 1}
    colours = (class_colour(2), class_colour(1), class_colour(3))
    return [
        (int(order[place]), f"{name} sample ({_size(sizes[order[place]], measures.units)})", colour)
        for (name, place), colour in zip(names.items(), colours, strict=True)
    ]


def _outline_samples(axes: Axes, samples: NDArray[np.uint8], num_classes: int) -> None:
    """Draw the outlines of samples (S, h, w) of a slice."""
    for k in range(1, num_classes):
        outline_masks(axes, samples == k, class_colour(k), width=0.5)


def _histogram(axes: Axes, measures: Measures) -> None:
    """Draw a histogram of the sizes of the samples. The axis excludes outliers."""
    samples = [np.array(found.size.samples) for found in measures.classes.values()]
    limit = max(_axis_limit(sizes) for sizes in samples)
    lowest = min(float(sizes.min()) for sizes in samples)
    ends = np.linspace(lowest, limit, 13).tolist() if limit > lowest else 12
    for number, (name, found) in enumerate(measures.classes.items(), start=1):
        sizes = samples[number - 1]
        axes.hist(sizes[sizes <= limit], bins=ends, color=class_colour(number), alpha=0.8, label=plain(name))
        axes.axvline(found.size.median, color="#444444", linewidth=0.8)
    what, unit = measures.units.size_key.split("_")
    axes.set_title(f"{what} of the samples, {unit} (line: median)", pad=2.5, fontsize=7, color="#444444")
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    beyond = sum(int((sizes > limit).sum()) for sizes in samples)
    if beyond:
        largest = _size(max(float(sizes.max()) for sizes in samples), measures.units)
        text = f"{beyond} beyond, up to {largest} \N{RIGHTWARDS ARROW}"
        axes.text(0.98, 0.97, text, transform=axes.transAxes, ha="right", va="top", fontsize=6.5, color="#b00020")
    if len(measures.classes) > 1:
        axes.legend()


def _size(value: float, units: Units) -> str:
    """Return a size with its unit; pixels are whole numbers."""
    return f"{value:.3g} ml" if units.size == "ml" else f"{value:.0f} {units.size}"


def _axis_limit(sizes: NDArray[np.float64]) -> float:
    """Return the largest size, or the limit of outliers: 3 interquartile ranges above the upper quartile.

    Only samples with the class are used, because many zeros would make all other sizes outliers.
    """
    present = sizes[sizes > 0]
    if not present.size:
        return 0.0
    lower, upper = np.percentile(present, [25, 75])
    usual = present[present <= max(upper + 3 * (upper - lower), 2 * upper)]
    return float(usual.max())

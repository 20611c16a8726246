"""The figures of a comparison: samples next to annotations, and the levels of a sample.

Every function returns a new matplotlib `Figure`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from phiseg.comparison.tables import method_names
from phiseg.evaluation.evaluation_folder import Evaluation
from phiseg.evaluation.example_cases import Examples
from phiseg.plotting.primitives import (
    PictureGrid,
    outline,
    overlay,
    scale_bar,
    shortened,
    show,
    show_image,
    style,
    text_width,
    wrapped,
)


def sample_panel(evaluations: Sequence[Evaluation], case: str, *, reason: str = "") -> Figure:
    """Show an example case: image and annotations, and for each method the error map, samples and gamma map.

    For a perfect model, the first and the last column are equal. Missing annotations are omitted, and so are the
    maps of a method whose probabilities are unknown. The image has a scale bar if the pixel size is known. A volume
    has three rows each, for its views in three planes.

    Args:
        evaluations: evaluations that all have `case` among their examples.
        case: name of the case.
        reason: reason for showing the case, such as "worst of phiseg".
    """
    at = [_index(evaluation, case) for evaluation in evaluations]
    rows = [_Row(view, index) for own, index in zip(evaluations, at, strict=True) for view in own.examples.views]
    top = rows[: len(evaluations[0].examples.views)]
    num_annotations = int(top[0].examples.valid[at[0]].sum())
    num_samples = max(row.examples.samples.shape[1] for row in rows)
    classes, annotators = top[0].examples.class_names, top[0].examples.annotator_names
    num_classes = len(classes)
    names = [wrapped(name) for name in method_names(evaluations)]
    reasons = [wrapped(part) for part in reason.split(", ")] if reason else []
    blocks = ["\n".join([wrapped(case), *reasons])]
    blocks += [f"{name}\n{_ged(evaluation, case)}" for name, evaluation in zip(names, evaluations, strict=True)]
    labels = [row.label(blocks[place // len(top)], place % len(top)) for place, row in enumerate([*top, *rows])]
    titles = ["mean error", *(f"sample {number + 1}" for number in range(num_samples)), "gamma map"]
    maps = {
        name: {number: row.picture(name) for number, row in enumerate(rows, start=len(top)) if row.has(name)}
        for name in ("error", "gamma")
    }

    with style():
        spaces = [0.0] * len(labels)
        spaces[0], spaces[len(top)] = 0.25, 0.35
        columns = 1 + max(num_samples + 1, num_annotations)
        grid = PictureGrid(columns, spaces, left=text_width(labels), classes=classes)
        for number, label in enumerate(labels):
            grid.label(number, label)
        for number, row in enumerate(top):
            row.show_image(grid.picture(number, 0), title="image" * (number == 0), scale=True)
            annotations = row.picture("annotations")
            for column, annotator in enumerate(np.flatnonzero(row.examples.valid[row.at]), start=1):
                axes = grid.picture(number, column)
                row.show_image(axes, title=_title(annotators[annotator]) * (number == 0))
                outline(axes, annotations[annotator], num_classes)
        for number, row in enumerate(rows, start=len(top)):
            above = titles if number == len(top) else [""] * len(titles)
            for name, column in (("error", 0), ("gamma", num_samples + 1)):
                if number not in maps[name]:
                    continue
                limit = max(1e-6, *(float(values.max()) for values in maps[name].values()))
                axes, title = grid.picture(number, column), titles[column] * (number == min(maps[name]))
                drawn = show(axes, maps[name][number], "magma", 0, limit, title=title)
                axes.set_aspect(row.aspect)
                if number == max(maps[name]):
                    grid.colour_bar(drawn, column, "CE / nats")
            for column, sample in enumerate(row.picture("samples"), start=1):
                axes = grid.picture(number, column)
                top[(number - len(top)) % len(top)].show_image(axes, title=above[column])
                outline(axes, sample, num_classes)
    return grid.figure


class _Row(NamedTuple):
    """An example case of a method in one plane."""

    examples: Examples
    at: int
    """Index of the case."""

    def has(self, name: str) -> bool:
        return getattr(self.examples, name) is not None

    def picture(self, name: str) -> np.ndarray:
        return self.examples.picture(name, self.at)

    @property
    def aspect(self) -> float:
        """Ratio of the height and the width of a pixel."""
        vertical, horizontal = (1.0, 1.0) if self.examples.spacing_mm is None else self.examples.spacing_mm[self.at]
        return float(vertical / horizontal)

    def show_image(self, axes: Axes, *, title: str, scale: bool = False) -> None:
        image = self.examples.shown_image(self.at)
        show_image(axes, image, title=title)
        axes.set_aspect(self.aspect)
        if scale and self.examples.spacing_mm is not None:
            scale_bar(axes, image.shape[1], float(self.examples.spacing_mm[self.at, 1]))

    def label(self, block: str, number: int) -> str:
        """Return the label of the row: that of its block in the first row, and the plane of a view of a volume."""
        lines = [block] if number == 0 else []
        return "\n".join([*lines, *([] if self.examples.plane is None else [str(self.examples.plane)])])


def level_panel(evaluation: Evaluation, case: str, *, max_classes: int = 3) -> Figure:
    """Show the levels of one sample from coarse to fine (Fig. 1 of the paper), with residuals below.

    Residual logits are shown relative to the mean over the classes, because only this part changes probabilities.

    Args:
        evaluation: evaluation of a hierarchical model.
        case: one of its example cases.
        max_classes: maximum number of foreground classes for the residuals, the largest ones.
    """
    examples, at = evaluation.examples, _index(evaluation, case)
    assert examples.level_probs is not None, "only hierarchical models have levels"
    assert examples.level_residuals is not None
    probs = examples.level_probs[at, ::-1].astype(np.float32)  # (L, K, H, W), coarse to fine
    residuals = examples.level_residuals[at, ::-1].astype(np.float32)
    residuals = residuals - residuals.mean(axis=1, keepdims=True)
    num_levels, num_classes = probs.shape[:2]
    sizes = probs[-1, 1:].sum(axis=(1, 2))
    classes = sorted(1 + np.argsort(-sizes)[:max_classes])

    limits = np.abs(residuals[:, classes]).max(axis=(1, 2, 3)) + 1e-6  # (L,)
    limits[1:] = limits[1:].max(initial=0)  # one scale for all refinements, another for the coarsest logits

    with style():
        names = examples.class_names
        rows = [f"residuals\n{wrapped(names[k])}" if num_classes > 2 else "residuals" for k in classes]
        spaces = [0.25, 0.25, *[0.0] * (len(rows) - 1)]
        grid = PictureGrid(num_levels, spaces, left=text_width(rows), classes=names)
        grid.label(0, "output")
        for column, level in enumerate(probs):
            number = num_levels - column
            title = f"level {number}" + (" (finest)" if number == 1 else " (coarsest)" if column == 0 else "")
            axes = grid.picture(0, column)
            show_image(axes, examples.shown_image(at), title=title)
            overlay(axes, level)
            outline(axes, level.argmax(0), num_classes)
        for row, (k, label) in enumerate(zip(classes, rows, strict=True), start=1):
            grid.label(row, label)
            for column, limit in enumerate(limits):
                title = "own logits" if column == 0 else f"+ level {num_levels - column}"
                axes = grid.picture(row, column)
                drawn = show(axes, residuals[column, k], "RdBu_r", -limit, limit, title=title if row == 1 else "")
                if row == len(rows) and column == 0:
                    grid.colour_bar(drawn, 0, "logit")
        if num_levels > 1:
            grid.colour_bar(drawn, 1, "residual logit", span=num_levels - 1)
    return grid.figure


def _index(evaluation: Evaluation, case: str) -> int:
    return int(evaluation.examples.cases.tolist().index(case))


def _title(annotator: str) -> str:
    """Return the title of the picture of an annotator, whose name may be a mere number."""
    return shortened(f"annotator {annotator}" if annotator.isdecimal() else annotator, 16)


def _ged(evaluation: Evaluation, case: str) -> str:
    value = evaluation.cases["ged"][evaluation.cases["case"].index(case)]
    return "" if value is None else f"GED {value:.3f}"

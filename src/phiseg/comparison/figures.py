"""The figures of a comparison: samples next to annotations, and the levels of a sample.

Every function returns a new matplotlib `Figure`.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from phiseg.comparison.tables import method_names
from phiseg.evaluation.results import Evaluation
from phiseg.plotting.primitives import (
    PictureGrid,
    outline,
    overlay,
    scale_bar,
    show,
    show_image,
    style,
    text_width,
    wrapped,
)


def sample_panel(evaluations: Sequence[Evaluation], case: str, *, reason: str = "") -> Figure:
    """Show an example case: image and annotations, and for each method the error map, samples and gamma map.

    For a perfect model, the first and the last column are equal. Missing annotations are omitted, and so are the
    maps of a method whose probabilities are unknown. The image has a scale bar if the pixel size is known.

    Args:
        evaluations: evaluations that all have `case` among their examples.
        case: name of the case.
        reason: reason for showing the case, such as "worst of phiseg".
    """
    rows = [(evaluation.examples, _index(evaluation, case)) for evaluation in evaluations]
    first, at = rows[0]
    annotations = first.annotations[at][first.valid[at]]
    num_samples = max(examples.samples.shape[1] for examples, _ in rows)
    num_classes = first.mean_probs.shape[1]
    names = [wrapped(name) for name in method_names(evaluations)]
    labels = [f"{name}\n{_ged(evaluation, case)}" for name, evaluation in zip(names, evaluations, strict=True)]
    reasons = [wrapped(part) for part in reason.split(", ")] if reason else []
    heading = "\n".join([wrapped(case), *reasons])
    last = max(num_samples + 1, len(annotations))

    titles = ["mean error", *(f"sample {number + 1}" for number in range(num_samples)), "gamma map"]
    maps = {
        name: {
            row: drawn[at]
            for row, (own, at) in enumerate(rows, start=1)
            if (drawn := getattr(own, name)) is not None
        }
        for name in ("error", "gamma")
    }

    with style():
        spaces = [0.25, 0.35, *[0.0] * (len(rows) - 1)]
        grid = PictureGrid(last + 1, spaces, left=text_width([*labels, heading]), num_classes=num_classes)
        grid.label(0, heading)
        axes = grid.picture(0, 0)
        show_image(axes, first.image[at], title="image")
        if first.spacing_mm is not None:
            scale_bar(axes, first.image[at].shape[1], float(first.spacing_mm[at, 1]))
        for number, annotation in enumerate(annotations, start=1):
            axes = grid.picture(0, number)
            show_image(axes, first.image[at], title=f"annotation {number}")
            outline(axes, annotation, num_classes)
        for row, ((examples, index), label) in enumerate(zip(rows, labels, strict=True), start=1):
            grid.label(row, label)
            above = titles if row == 1 else [""] * len(titles)
            for name, column in (("error", 0), ("gamma", num_samples + 1)):
                if row not in maps[name]:
                    continue
                limit = max(1e-6, *(float(values.max()) for values in maps[name].values()))
                title = titles[column] if row == min(maps[name]) else ""
                drawn = show(grid.picture(row, column), maps[name][row], "magma", 0, limit, title=title)
                if row == max(maps[name]):
                    grid.colour_bar(drawn, column, "CE / nats")
            for column, sample in enumerate(examples.samples[index], start=1):
                axes = grid.picture(row, column)
                show_image(axes, first.image[at], title=above[column])
                outline(axes, sample, num_classes)
    return grid.figure


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
        rows = [f"residuals\nclass {k}" if num_classes > 2 else "residuals" for k in classes]
        spaces = [0.25, 0.25, *[0.0] * (len(rows) - 1)]
        grid = PictureGrid(num_levels, spaces, left=text_width(rows), num_classes=num_classes)
        grid.label(0, "output")
        for column, level in enumerate(probs):
            number = num_levels - column
            title = f"level {number}" + (" (finest)" if number == 1 else " (coarsest)" if column == 0 else "")
            axes = grid.picture(0, column)
            show_image(axes, examples.image[at], title=title)
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


def _ged(evaluation: Evaluation, case: str) -> str:
    value = evaluation.cases["ged"][evaluation.cases["case"].index(case)]
    return "" if value is None else f"GED {value:.3f}"

"""The pictures of a comparison: samples beside annotations, levels, training curves, scores.

Every function returns a matplotlib `Figure` of its own, to be written by `drawing.to_png`.
"""

from collections.abc import Sequence
from itertools import cycle

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from phiseg.evaluation.drawing import (
    METHOD_COLOURS,
    PictureGrid,
    legend_in,
    level_curves,
    outline,
    overlay,
    series,
    show,
    show_image,
    style,
    text_width,
    wrapped,
)
from phiseg.evaluation.results import Evaluation, defined
from phiseg.evaluation.tables import excess_ged, method_names

WIDTH = 11.4
"""Inches of a chart: about as wide as a panel with eight samples."""


def sample_panel(evaluations: Sequence[Evaluation], case: str) -> Figure:
    """Show one example case: image and annotations, then a row a method with error map, samples and gamma map.

    The first and the last column would be alike for a perfect model. A missing annotation is left out.

    Args:
        evaluations: all must have `case` among their examples.
        case: the case's name.
    """
    rows = [(evaluation.examples, _index(evaluation, case)) for evaluation in evaluations]
    first, at = rows[0]
    annotations = first.annotations[at][first.valid[at]]
    num_samples = max(examples.samples.shape[1] for examples, _ in rows)
    num_classes = first.mean_probs.shape[1]
    names = [wrapped(name) for name in method_names(evaluations)]
    labels = [f"{name}\n{_ged(evaluation, case)}" for name, evaluation in zip(names, evaluations, strict=True)]
    last = max(num_samples + 1, len(annotations))

    titles = ["mean error", *(f"sample {number + 1}" for number in range(num_samples)), "gamma map"]
    limits = {name: max(1e-6, *(float(getattr(e, name)[i].max()) for e, i in rows)) for name in ("error", "gamma")}

    with style():
        spaces = [0.25, 0.35, *[0.0] * (len(rows) - 1)]
        grid = PictureGrid(last + 1, spaces, left=text_width([*labels, wrapped(case)]), num_classes=num_classes)
        grid.label(0, wrapped(case))
        show_image(grid.picture(0, 0), first.image[at], title="image")
        for number, annotation in enumerate(annotations, start=1):
            axes = grid.picture(0, number)
            show_image(axes, first.image[at], title=f"annotation {number}")
            outline(axes, annotation, num_classes)
        for row, ((examples, index), label) in enumerate(zip(rows, labels, strict=True), start=1):
            grid.label(row, label)
            heading = titles if row == 1 else [""] * len(titles)
            for name, column in (("error", 0), ("gamma", num_samples + 1)):
                values = getattr(examples, name)[index]
                drawn = show(grid.picture(row, column), values, "magma", 0, limits[name], title=heading[column])
                if row == len(rows):
                    grid.colour_bar(drawn, column, "CE / nats")
            for column, sample in enumerate(examples.samples[index], start=1):
                axes = grid.picture(row, column)
                show_image(axes, first.image[at], title=heading[column])
                outline(axes, sample, num_classes)
    return grid.figure


def level_panel(evaluation: Evaluation, case: str, *, max_classes: int = 3) -> Figure:
    """Show how one sample is built, coarse to fine (the paper's Fig. 1): output of every level, residuals below.

    Residual logits are shown relative to the mean over the classes: only that part changes a probability.

    Args:
        evaluation: of a hierarchical model.
        case: one of its example cases.
        max_classes: residuals are shown for this many foreground classes, the largest ones.
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
    limits[1:] = limits[1:].max(initial=0)  # one scale for all refinements, the coarsest logits have their own

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


def training_curves(evaluations: Sequence[Evaluation]) -> Figure:
    """Show the training of every method that has one: a row each, for losses of different models do not compare.

    Validation loss, training cross entropy and KL per level; below them the validation GED of all together.
    """
    trained = [
        (name, evaluation.training, colour)
        for name, evaluation, colour in zip(method_names(evaluations), evaluations, cycle(METHOD_COLOURS))
        if evaluation.training
    ]
    together = [(name, *series(log, "val", "ged"), colour) for name, log, colour in trained]
    together = [curve for curve in together if len(curve[1])]
    num_rows = max(1, len(trained) + bool(together))
    with style():
        figure = Figure(figsize=(WIDTH, 2.2 * num_rows), layout="constrained")
        grid = figure.add_gridspec(num_rows, 4, width_ratios=(1, 1, 1, 0.5))
        for row, (name, log, colour) in enumerate(trained):
            loss, entropy, divergence, key = (figure.add_subplot(grid[row, column]) for column in range(4))
            loss.plot(*series(log, "val", "loss"), color=colour, linewidth=1.2)
            loss.set_title("validation loss")
            loss.set_ylabel(wrapped(name), color=colour, fontweight="bold")
            level_curves(entropy, log, "cross_entropy", "training cross entropy")
            level_curves(divergence, log, "kl", "training KL")
            legend_in(key, divergence, entropy)
        if together:
            shared, key = figure.add_subplot(grid[-1, :3]), figure.add_subplot(grid[-1, 3])
            for name, steps, values, colour in together:
                shared.plot(steps, values, color=colour, linewidth=1.4, label=wrapped(name))
            shared.set_title("validation GED, all methods")
            legend_in(key, shared)
        for axes in figure.axes:
            axes.set_xlim(left=0)
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            axes.grid(axis="y", color="#e6e6e6", linewidth=0.5)
            axes.set_axisbelow(True)
            if (place := axes.get_subplotspec()) and place.is_last_row():
                axes.set_xlabel("step")
    return figure


def score_distributions(evaluations: Sequence[Evaluation]) -> Figure:
    """Show the scores of all cases: a box (quartiles, whiskers of 1.5 ranges) over one dot a case."""
    names = [wrapped(name) for name in method_names(evaluations)]
    panels = {
        "GED above its floor (lower is better)": [defined(excess_ged(e)) for e in evaluations],
        "$S_{NCC}$ (higher is better)": [defined(e.cases["s_ncc"]) for e in evaluations],
        "Dice (higher is better)": [defined(e.cases["dice"]) for e in evaluations],
    }
    panels = {title: scores for title, scores in panels.items() if any(scores)}
    generator = np.random.default_rng(0)  # moves the dots apart, carries no information
    with style():
        figure = Figure(figsize=(WIDTH, 0.8 + 0.45 * len(names)), layout="constrained")
        all_axes = figure.subplots(1, max(len(panels), 1), sharey=True, squeeze=False)[0]
        for axes, (title, scores) in zip(all_axes, panels.items(), strict=False):
            for place, (values, colour) in enumerate(zip(scores, cycle(METHOD_COLOURS))):
                heights = place + generator.uniform(-0.22, 0.22, len(values))
                axes.scatter(
                    values, heights, s=5, color=colour, alpha=min(0.5, 20 / (len(values) + 1)), linewidths=0
                )
                line = {"color": colour, "linewidth": 1.0}
                median = line | {"linewidth": 2.0}
                axes.boxplot(
                    [values], positions=[place], orientation="horizontal", widths=0.5, showfliers=False,
                    boxprops=line, whiskerprops=line, capprops=line, medianprops=median,
                )  # fmt: skip
            axes.set_title(title)
            axes.tick_params(axis="y", length=0)
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.grid(axis="x", color="#e6e6e6", linewidth=0.5)
            axes.set_axisbelow(True)
            axes.set_ylim(len(names) - 0.5, -0.5)
        all_axes[0].set_yticks(range(len(names)), names, fontsize=8)
    return figure


def _index(evaluation: Evaluation, case: str) -> int:
    return int(evaluation.examples.cases.tolist().index(case))


def _ged(evaluation: Evaluation, case: str) -> str:
    value = evaluation.cases["ged"][evaluation.cases["case"].index(case)]
    return "" if value is None else f"GED {value:.3f}"

"""Rows of a table that are not comparable: their calibration, their training, and rows that are set aside."""

from collections.abc import Sequence

from phiseg.core.errors import ConfigError, nearest
from phiseg.evaluation.evaluation_folder import Evaluation
from phiseg.models.temperatures import Calibration

SET_ASIDE = "†"
"""Follows the name of a method with unsuitable settings."""


def check_set_aside(names: Sequence[str], set_aside: Sequence[str]) -> None:
    """Check that the methods to set aside are rows of the table, and that one other row is left.

    Raises:
        ConfigError: with the unknown name.
    """
    for name in set_aside:
        if name not in names:
            raise ConfigError(f"there is no method '{name}' to set aside ({nearest(name, names)})")
    if names and set(names) <= set(set_aside):
        raise ConfigError("all methods are set aside; keep at least one")


def is_calibrated(evaluation: Evaluation) -> bool:
    """Return whether the samples were drawn with fitted temperatures."""
    return evaluation.summary.model.calibration != Calibration()


def same_calibration(one: Evaluation, two: Evaluation) -> bool:
    """Return whether a difference is one of the models: both are calibrated or neither, or the weights are equal.

    The same weights with and without temperatures show what the temperatures do.
    """
    weights = one.summary.model.sha256
    same_weights = weights is not None and weights == two.summary.model.sha256
    return same_weights or is_calibrated(one) == is_calibrated(two)


def training_length(evaluation: Evaluation) -> int | None:
    """Return the number of steps of the training, or None if the evaluation has no record of it."""
    return max((record["step"] for record in evaluation.training), default=None)


def same_training_length(one: Evaluation, two: Evaluation) -> bool:
    """Return whether both trainings had the same number of steps, or that of one is unknown."""
    lengths = {training_length(one), training_length(two)}
    return None in lengths or len(lengths) == 1


def comparability_notes(
    names: Sequence[str],
    evaluations: Sequence[Evaluation],
    *,
    set_aside: Sequence[str] = (),
    equal_time: bool = False,
) -> list[str]:
    """Return the lines below a table that state which of its rows are not comparable.

    Args:
        names: what the table calls its rows.
        evaluations: its rows.
        set_aside: the rows with unsuitable settings.
        equal_time: whether all rows had the same training time, whatever their number of steps.
    """
    notes, rows = [], list(zip(names, evaluations, strict=True))
    if set_aside:
        notes.append(
            f"{SET_ASIDE}: unsuitable settings ({', '.join(set_aside)}), so neither tested nor tested against."
        )
    calibrated = [name for name, own in rows if is_calibrated(own)]
    if 0 < len(calibrated) < len(rows):
        notes.append(
            f"Not comparable: {', '.join(calibrated)} sampled with fitted temperatures, other rows without. "
            "Such rows are not tested against each other, unless their weights are the same: a marked score is "
            "better than those of all rows it is tested against."
        )
    precisions = {name: own.summary.precision for name, own in rows if own.summary.precision}
    if len(set(precisions.values())) > 1:
        each = ", ".join(f"{name} {precision}" for name, precision in precisions.items())
        notes.append(f"Rows were sampled in different precisions: {each}. The difference is usually negligible.")
    labels = [name for name, own in rows if own.summary.samples and own.summary.samples.probabilities == "none"]
    if labels:
        notes.append(
            f"{', '.join(labels)}: only labels are known, so Dice is that of the majority of the samples, and "
            "S_NCC and ECE are missing."
        )
    lengths = {name: length for name, own in rows if (length := training_length(own)) is not None}
    if len(set(lengths.values())) > 1:
        each = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        tested = (
            "The training time was the same."
            if equal_time
            else "They are not tested against each other. Use --equal-time (in Python: equal_time=True) if their "
            "training time was the same."
        )
        notes.append(f"Trained for different numbers of steps: {each}. {tested}")
    early = [
        f"{name} ({step:,} of {lengths[name]:,})"
        for name, own in rows
        if (step := own.summary.model.step) is not None and name in lengths and step < lengths[name] / 2
    ]
    if early:
        notes.append(f"Selected in the first half of the training: {', '.join(early)}.")
    return notes

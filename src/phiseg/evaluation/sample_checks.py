"""Checks of samples that another program drew: size, labels, probabilities, and whether they belong to their cases.

S samples, K classes, *size is (H, W) for images and (D, H, W) for volumes.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phiseg.core.errors import DataError
from phiseg.data.classes import check_classes
from phiseg.data.store import Dataset
from phiseg.evaluation.case_scoring import DrawnCase
from phiseg.evaluation.sample_files import Arrays
from phiseg.inference.sample_summary import summarise_probs

_SUM_TOLERANCE = 0.01
"""Half precision and quantised probabilities do not sum to exactly 1."""
_MIN_CASES = 8
"""Number of cases below which nothing can be said about their order."""
_MAX_CASES = 200
"""Number of cases that the order is checked with."""
_MAX_OTHERS = 16
"""Number of other cases with whose annotations the samples of a case are compared."""
_DEVIATIONS = 2.5
"""Standard deviations above chance up to which the order is doubtful."""
_TURNED = 1.05
"""Agreement after a reflection, relative to that before it, from which the orientation is doubtful."""


class GivenCase:
    """The checked samples of one case.

    Args:
        arrays: arrays by key, see `sample_files`.
        size: size of the case in the dataset.
        classes: class names of the dataset.
        where: description of the case for errors.

    Raises:
        DataError: an array has another size, or its values are not labels or probabilities.
    """

    def __init__(self, arrays: Arrays, *, size: tuple[int, ...], classes: Sequence[str], where: str) -> None:
        probs, labels = arrays.get("probs"), arrays.get("labels")
        number = len(classes)
        self.probs = None if probs is None else _probabilities(probs, (-1, number, *size), f"{where}: probs")
        self.labels: Tensor | None = None
        if labels is not None:
            self.labels = torch.from_numpy(_labels(labels, size, classes, f"{where}: labels"))
        if self.labels is not None and self.probs is not None and len(self.labels) != len(self.probs):
            counts = f"{len(self.labels)} samples in labels, but {len(self.probs)} in probs"
            raise DataError(f"{where} has {counts}; give the same samples in both")
        self.num_samples = len(self.probs if self.labels is None else self.labels)  # type: ignore[arg-type]
        means = [arrays.get(key) for key in ("mean_probs", "mean_log_probs")]
        self._mean_probs = (
            None
            if means[0] is None
            else _probabilities(means[0][None], (-1, number, *size), f"{where}: mean_probs")[0]
        )
        self._mean_log_probs = None
        if means[1] is not None and self._mean_probs is not None:
            _check_shape(means[1][None], (-1, number, *size), f"{where}: mean_log_probs")
            self._mean_log_probs = torch.from_numpy(np.asarray(means[1], dtype=np.float32))

    def first(self, number: int) -> DrawnCase:
        """Return the first samples. Means over all samples are dropped if there are more of them."""
        if self.probs is not None:
            (summary,) = summarise_probs([self.probs[None, :number]])
            labels = summary.labels if self.labels is None else self.labels[:number]
            return DrawnCase(labels, summary.mean_probs, summary.mean_log_probs)
        assert self.labels is not None
        if number < self.num_samples:
            return DrawnCase(self.labels[:number], None, None)
        return DrawnCase(self.labels, self._mean_probs, self._mean_log_probs)


def _labels(array: NDArray[Any], size: tuple[int, ...], classes: Sequence[str], where: str) -> NDArray[np.uint8]:
    """Return labels (S, *size); a binary mask may be stored as 0 and 255."""
    _check_shape(array, (-1, *size), where)
    if array.dtype.kind == "f":
        rounded = np.rint(array)
        if not np.array_equal(rounded, array):
            soft = array[array != rounded].flat[0]
            raise DataError(
                f"{where} contain {soft:g}, which is not a class index; take the argmax over classes, or give "
                "probabilities with a class axis, (samples, classes, ...)"
            )
        array = rounded.astype(np.int64)
    if array.dtype.kind == "b" or (len(classes) == 2 and array.max() == 255 and np.isin(array, (0, 255)).all()):
        array = (array != 0).view(np.uint8)
    check_classes(array, classes, where=where, fix="give class indices of the dataset")
    return array.astype(np.uint8)


def _probabilities(array: NDArray[Any], shape: tuple[int, ...], where: str) -> Tensor:
    """Return probabilities (S, K, *size) in float32."""
    _check_shape(array, shape, where)
    probs = torch.from_numpy(np.asarray(array, dtype=np.float32))
    low, high = (float(bound) for bound in probs.aminmax())
    if not (low >= 0 and high <= 1 + _SUM_TOLERANCE):  # also rejects NaN
        raise DataError(
            f"{where} has values from {low:g} to {high:g}; give probabilities, such as a softmax of logits"
        )
    if not bool(((probs.sum(1) - 1).abs() <= _SUM_TOLERANCE).all()):
        raise DataError(f"{where} does not sum to 1 over the classes (axis of length {shape[1]}); give a softmax")
    return probs


def _check_shape(array: NDArray[Any], shape: tuple[int, ...], where: str) -> None:
    """Check the shape; the first axis, of the samples, may have any positive length."""
    if array.ndim != len(shape) or array.shape[1:] != shape[1:] or not len(array):
        expected = ", ".join(["samples", *map(str, shape[1:])])
        raise DataError(
            f"{where} has shape {array.shape}, but the dataset needs ({expected}); give samples on the pixels of "
            "the images in the dataset"
        )


class OrderCheck:
    """Warns if samples agree as well with the annotations of other cases, or better after a reflection.

    Agreement is the soft IoU of two maps: the share of samples and the share of annotators with any class.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._pairs: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]] = []

    def add(self, row: int, case: DrawnCase) -> None:
        """Add the samples of a case, unless they or the annotations are all empty."""
        if len(self._pairs) < _MAX_CASES:
            annotated = _share(self._dataset.annotations(row) > 0)
            drawn = _share((case.labels > 0).numpy())
            if annotated.any() and drawn.any():
                self._pairs.append((drawn, annotated))

    def warnings(self) -> list[str]:
        """Return the warnings for all added cases."""
        pairs = self._pairs
        if len(pairs) < _MIN_CASES:
            return []
        found = []
        ranks = _ranks(pairs)
        # In a wrong order, all ranks 0, 1 / others, ..., 1 of a case are equally likely.
        others = min(len(pairs) - 1, _MAX_OTHERS)
        deviation = np.sqrt((1 + 2 / others) / 12 / max(len(ranks), 1))
        if len(ranks) >= _MIN_CASES and np.mean(ranks) <= 0.5 + _DEVIATIONS * deviation:
            found.append(
                "the samples hardly agree better with their annotations than with those of other cases (better "
                f"than with {100 * np.mean(ranks):.0f} % of them; chance is 50 %); check the order of the cases"
            )
        own = np.mean([_iou(*pair) for pair in pairs])
        turns: dict[str, Callable[[NDArray[np.uint8]], NDArray[np.uint8]]] = {
            "transposed": lambda mask: mask.swapaxes(-1, -2),
            "flipped vertically": lambda mask: mask[..., ::-1, :],
            "flipped horizontally": lambda mask: mask[..., ::-1],
        }
        for how, turn in turns.items():
            turned = [(turn(drawn), annotated) for drawn, annotated in pairs]
            same = [_iou(drawn, annotated) for drawn, annotated in turned if drawn.shape == annotated.shape]
            if same and np.mean(same) > _TURNED * own:
                found.append(
                    f"the samples agree better with the annotations if they are {how} (mean IoU "
                    f"{np.mean(same):.2f} instead of {own:.2f}); check the axes of the files"
                )
        return found

    def report(self) -> None:
        """Print the warnings on stderr."""
        for warning in self.warnings():
            print(f"phiseg: warning: {warning}", file=sys.stderr)


def _ranks(pairs: Sequence[tuple[NDArray[np.uint8], NDArray[np.uint8]]]) -> list[float]:
    """Return for each case the share of other cases with whose annotations its samples agree less.

    The other cases are at most `_MAX_OTHERS` of the same size, spread over all of them, because neighbouring rows
    may be slices of one lesion. Ties count half. A case without others of its size is skipped.
    """
    number = len(pairs)
    shifts = {round(number * part / (_MAX_OTHERS + 1)) for part in range(1, _MAX_OTHERS + 1)} - {0, number}
    ranks = []
    for index, (drawn, annotated) in enumerate(pairs):
        own = _iou(drawn, annotated)
        others = [pairs[(index + shift) % number][1] for shift in shifts]
        agreements = [_iou(drawn, other) for other in others if other.shape == drawn.shape]
        if agreements:
            ranks.append(float(np.mean([(own > other) + (own == other) / 2 for other in agreements])))
    return ranks


def _share(masks: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return the share of masks (N, *size) that contain each pixel, from 0 to 255."""
    share: NDArray[np.uint8] = np.rint(255 * masks.mean(0, dtype=np.float32)).astype(np.uint8)
    return share


def _iou(one: NDArray[np.uint8], two: NDArray[np.uint8]) -> float:
    """Return the soft IoU of two shares."""
    first, second = (array.astype(np.float32).ravel() for array in (one, two))
    common = float(first @ second)
    return common / (float(first @ first) + float(second @ second) - common)

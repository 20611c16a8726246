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
_ALIKE = 1.15
"""Agreement with the annotations of a case, relative to those of other cases, up to which its order is doubtful."""
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
    """Warns if samples agree as well with the annotations of other cases, or better after a reflection."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._pairs: list[tuple[NDArray[np.bool_], NDArray[np.bool_]]] = []

    def add(self, row: int, case: DrawnCase) -> None:
        """Add the first sample of a case, unless it or the majority of the annotators is empty."""
        if len(self._pairs) < _MAX_CASES:
            annotated = (self._dataset.annotations(row) > 0).mean(0) >= 0.5
            sample = (case.labels[0] > 0).numpy()
            if annotated.any() and sample.any():
                self._pairs.append((sample, annotated))

    def warnings(self) -> list[str]:
        """Return the warnings for all added cases."""
        pairs = self._pairs
        if len(pairs) < _MIN_CASES:
            return []
        own = np.mean([_iou(sample, annotated) for sample, annotated in pairs])
        shifts = {len(pairs) * part // 4 for part in (1, 2, 3)}  # neighbouring rows may be slices of one lesion
        others = [
            (sample, pairs[(index + shift) % len(pairs)][1])
            for index, (sample, _) in enumerate(pairs)
            for shift in shifts
        ]
        alike = [_iou(sample, annotated) for sample, annotated in others if sample.shape == annotated.shape]
        found = []
        if alike and own <= _ALIKE * np.mean(alike):
            found.append(
                f"the samples hardly agree better with their annotations than with those of other cases (mean IoU "
                f"{own:.2f} and {np.mean(alike):.2f}); check the order of the cases"
            )
        turns: dict[str, Callable[[NDArray[np.bool_]], NDArray[np.bool_]]] = {
            "transposed": lambda mask: mask.swapaxes(-1, -2),
            "flipped vertically": lambda mask: mask[..., ::-1, :],
            "flipped horizontally": lambda mask: mask[..., ::-1],
        }
        for how, turn in turns.items():
            turned = [(turn(sample), annotated) for sample, annotated in pairs]
            same = [_iou(sample, annotated) for sample, annotated in turned if sample.shape == annotated.shape]
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


def _iou(one: NDArray[np.bool_], two: NDArray[np.bool_]) -> float:
    return float((one & two).sum() / (one | two).sum())

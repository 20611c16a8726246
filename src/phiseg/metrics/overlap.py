"""Overlap of label masks: IoU and Dice for any number of classes.

Convention: label 0 is the background and is ignored; the score of two masks is the mean over the foreground labels
1..K-1; a label that is absent from both masks scores `both_empty` (default 1, as in the paper; other code uses 0),
and a label that is absent from one mask scores 0. Counts are exact and scores are float64.

N, M masks of the two sets, P pixels, K classes.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from phiseg.core.errors import DataError

_LABEL_TYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

# float32 is exact up to 2^24, so the counts of a chunk are exact; chunks are summed in float64.
_ELEMENTS_PER_CHUNK = 2**22  # 16 MB: 4194 pixels of each of 1000 masks


def most_probable(probs: Tensor, dim: int) -> Tensor:
    """Return `probs.argmax(dim)` as uint8 for 2 to 256 classes; ties go to the first. Faster for few classes.

    >>> most_probable(torch.tensor([[0.25, 0.75], [0.5, 0.5]]), dim=1)
    tensor([1, 0], dtype=torch.uint8)
    """
    best, second, *others = probs.unbind(dim)
    labels = (second > best).view(torch.uint8)
    for number, candidate in enumerate(others, start=2):
        best = torch.maximum(best, second)
        labels.masked_fill_(candidate > best, number)
        second = candidate
    return labels


class PairCounts(NamedTuple):
    """Pixel counts of each foreground label: of every mask in two sets, and of the overlap of every pair."""

    shared: Tensor
    """|a & b|, float64 (K-1, N, M)."""
    first: Tensor
    """|a|, float64 (K-1, N)."""
    second: Tensor
    """|b|, float64 (K-1, M)."""

    def iou(self, *, both_empty: float = 1.0) -> Tensor:
        """Return the IoU of every pair, averaged over the foreground labels, float64 (N, M)."""
        return _ratio(self.shared, self._total - self.shared, both_empty).mean(0)

    def dice(self, *, both_empty: float = 1.0) -> Tensor:
        """Return the Dice score of every pair, averaged over the foreground labels, float64 (N, M)."""
        return _ratio(2 * self.shared, self._total, both_empty).mean(0)

    def iou_of_present(self) -> Tensor:
        """Return the IoU of every pair, averaged over the labels that at least one mask contains, float64 (N, M).

        NaN for two masks without any foreground.
        """
        return (self.shared / (self._total - self.shared)).nanmean(0)

    @property
    def _total(self) -> Tensor:
        return self.first[:, :, None] + self.second[:, None, :]


def pairwise_counts(first: Tensor, second: Tensor, *, num_classes: int) -> PairCounts:
    """Count the overlap of every mask of one set with every mask of another; the basis of IoU and Dice.

    The counts are exact for masks of any size. Masks are processed in chunks of pixels, so memory stays bounded for
    1000 x 1000 masks.

    Args:
        first: integer labels (N, *spatial).
        second: integer labels (M, *spatial); may be `first` itself, which is then processed once.
        num_classes: K, including the background.

    Raises:
        DataError: labels are not integers in 0..K-1, a set is empty, or the masks differ in size.

    >>> masks = torch.tensor([[[0, 1], [0, 1]], [[1, 1], [0, 0]]])
    >>> pairwise_counts(masks, masks, num_classes=2).shared
    tensor([[[2., 1.],
             [1., 2.]]], dtype=torch.float64)
    """
    with_itself = second is first
    first = checked_labels("first", first, num_classes)
    second = first if with_itself else checked_labels("second", second, num_classes)
    if first.ndim < 2 or first.shape[1:] != second.shape[1:]:
        raise DataError(
            f"masks of shapes {tuple(first.shape)} and {tuple(second.shape)} cannot be paired; "
            "pass (N, *spatial) and (M, *spatial) of equal size"
        )
    first, second = first.flatten(1), second.flatten(1)  # (N, P), (M, P)
    shared = torch.zeros(num_classes - 1, len(first), len(second), dtype=torch.float64, device=first.device)
    in_first, in_second = torch.zeros_like(shared[:, :, 0]), torch.zeros_like(shared[:, 0])
    pixels_per_chunk = max(1, _ELEMENTS_PER_CHUNK // max(len(first), len(second)))
    with torch.autocast(first.device.type, enabled=False):  # half precision is exact only up to 2^11 or 2^8
        for start in range(0, first.shape[1], pixels_per_chunk):
            one, other = (_in_runs(masks[:, start : start + pixels_per_chunk]) for masks in (first, second))
            occupied = (one.any(0) | other.any(0)).any(1).nonzero()[:, 0]  # all other pixels are background
            one = one.index_select(1, occupied).flatten(1)
            other = one if with_itself else other.index_select(1, occupied).flatten(1)
            for label in range(1, num_classes):
                a = _marked(one, label)
                b = a if with_itself else _marked(other, label)
                shared[label - 1] += a @ b.T
                in_first[label - 1] += a.sum(1)
                in_second[label - 1] += b.sum(1)
    return PairCounts(shared, in_first, in_second)


def pairwise_iou(first: Tensor, second: Tensor, *, num_classes: int, both_empty: float = 1.0) -> Tensor:
    """Return the IoU of every mask of one set with every mask of another set.

    IoU(a, b) = 1/(K-1) sum_k |a_k & b_k| / |a_k | b_k| over the foreground labels k = 1..K-1; a label that is
    absent from both masks scores `both_empty`, from one mask 0. Counts and memory: see `pairwise_counts`.

    Args:
        first: integer labels (N, *spatial).
        second: integer labels (M, *spatial).
        num_classes: K, including the background.
        both_empty: IoU of a label that neither mask contains.

    Returns:
        float64 (N, M).

    Raises:
        DataError: labels are not integers in 0..K-1, a set is empty, or the masks differ in size.

    >>> masks = torch.tensor([[[0, 1], [0, 1]], [[1, 1], [0, 0]], [[0, 0], [0, 0]]])
    >>> pairwise_iou(masks[:2], masks, num_classes=2)
    tensor([[1.0000, 0.3333, 0.0000],
            [0.3333, 1.0000, 0.0000]], dtype=torch.float64)
    """
    return pairwise_counts(first, second, num_classes=num_classes).iou(both_empty=both_empty)


def pairwise_dice(first: Tensor, second: Tensor, *, num_classes: int, both_empty: float = 1.0) -> Tensor:
    """Return the Dice score of every mask of one set with every mask of another set.

    The definition is that of `dice`, the memory use that of `pairwise_iou`.

    Args:
        first: integer labels (N, *spatial).
        second: integer labels (M, *spatial).
        num_classes: K, including the background.
        both_empty: Dice of a label that neither mask contains.

    Returns:
        float64 (N, M).

    Raises:
        DataError: labels are not integers in 0..K-1, a set is empty, or the masks differ in size.

    >>> masks = torch.tensor([[[0, 1], [0, 1]], [[1, 1], [0, 0]], [[0, 0], [0, 0]]])
    >>> pairwise_dice(masks[:2], masks, num_classes=2)
    tensor([[1.0000, 0.5000, 0.0000],
            [0.5000, 1.0000, 0.0000]], dtype=torch.float64)
    """
    return pairwise_counts(first, second, num_classes=num_classes).dice(both_empty=both_empty)


def iou(prediction: Tensor, target: Tensor, *, num_classes: int, both_empty: float = 1.0) -> Tensor:
    """Return the IoU of each prediction with its target, averaged over the foreground labels.

    IoU(a, b) = 1/(K-1) sum_k |a_k & b_k| / |a_k | b_k|; a label that is absent from both masks scores
    `both_empty`, from one mask 0.

    Args:
        prediction: integer labels (..., H, W).
        target: integer labels (..., H, W); the leading dimensions broadcast.
        num_classes: K, including the background.
        both_empty: IoU of a label that neither mask contains.

    Returns:
        float64 (...).

    Raises:
        DataError: labels are not integers in 0..K-1, or the shapes do not match.

    >>> iou(torch.tensor([[0, 1], [0, 1]]), torch.tensor([[1, 1], [0, 0]]), num_classes=2)
    tensor(0.3333, dtype=torch.float64)
    """
    counts = _paired_counts(prediction, target, num_classes)
    return torch.stack([_ratio(shared, total - shared, both_empty) for shared, total in counts]).mean(0)


def dice(prediction: Tensor, target: Tensor, *, num_classes: int, both_empty: float = 1.0) -> Tensor:
    """Return the Dice score of each prediction with its target, averaged over the foreground labels.

    Dice(a, b) = 1/(K-1) sum_k 2 |a_k & b_k| / (|a_k| + |b_k|); a label that is absent from both masks scores
    `both_empty`, from one mask 0. The prediction of the paper is the argmax of the mean of the softmax samples.

    Args:
        prediction: integer labels (..., H, W).
        target: integer labels (..., H, W); the leading dimensions broadcast.
        num_classes: K, including the background.
        both_empty: Dice of a label that neither mask contains.

    Returns:
        float64 (...).

    Raises:
        DataError: labels are not integers in 0..K-1, or the shapes do not match.

    >>> dice(torch.tensor([[0, 1], [0, 1]]), torch.tensor([[1, 1], [0, 0]]), num_classes=2)
    tensor(0.5000, dtype=torch.float64)
    """
    counts = _paired_counts(prediction, target, num_classes)
    return torch.stack([_ratio(2 * shared, total, both_empty) for shared, total in counts]).mean(0)


def checked_labels(name: str, labels: Tensor, num_classes: int) -> Tensor:
    """Return `labels` if it contains integers in 0..num_classes-1 and is not empty; raise a DataError otherwise."""
    if num_classes < 2:
        raise DataError(f"num_classes = {num_classes} has no foreground; include the background in the count")
    if labels.dtype not in _LABEL_TYPES:
        raise DataError(
            f"{name} has dtype {labels.dtype}, not integer; take the argmax over classes, or pass {name}.long()"
        )
    if labels.numel() == 0:
        raise DataError(f"{name} has shape {tuple(labels.shape)}, so there is no mask to score; pass at least one")
    low, high = (int(bound) for bound in labels.aminmax())
    if low < 0 or high >= num_classes:
        raise DataError(
            f"{name} contains labels {low}..{high}, outside 0..{num_classes - 1}; "
            "check num_classes, and exclude annotators marked as missing (255)"
        )
    return labels if num_classes <= 128 else labels.long()  # comparing uint8 with 300 would wrap it to 44


def check_pairs(first_name: str, first: Tensor, second_name: str, second: Tensor) -> None:
    """Raise a DataError unless both are (..., H, W) with equal H, W and leading dimensions that broadcast."""
    one, two = tuple(first.shape), tuple(second.shape)
    leading = zip(reversed(one[:-2]), reversed(two[:-2]), strict=False)
    matches = len(one) >= 2 and one[-2:] == two[-2:] and all(a == b or 1 in (a, b) for a, b in leading)
    if not matches or 0 in one + two:
        raise DataError(
            f"{first_name} {one} and {second_name} {two} do not match; "
            "pass (..., H, W) of equal size with leading dimensions that broadcast"
        )


def _in_runs(masks: Tensor) -> Tensor:
    """Return masks (N, P) as runs of 8 pixels (N, R, 8), padded with background."""
    return F.pad(masks, (0, -masks.shape[1] % 8)).reshape(len(masks), -1, 8)


def _marked(masks: Tensor, label: int) -> Tensor:
    """Return 1.0 where the masks have the label and 0.0 elsewhere, without a temporary."""
    return torch.eq(masks, label, out=torch.empty(masks.shape, dtype=torch.float32, device=masks.device))


def _paired_counts(prediction: Tensor, target: Tensor, num_classes: int) -> list[tuple[Tensor, Tensor]]:
    """Return |a & b| and |a| + |b| for each foreground label, each (...)."""
    prediction = checked_labels("prediction", prediction, num_classes)
    target = checked_labels("target", target, num_classes)
    check_pairs("prediction", prediction, "target", target)
    counts = []
    for label in range(1, num_classes):
        a, b = prediction == label, target == label
        counts.append(((a & b).sum((-2, -1)), a.sum((-2, -1)) + b.sum((-2, -1))))
    return counts


def _ratio(part: Tensor, whole: Tensor, both_empty: float) -> Tensor:
    return torch.where(whole > 0, part.double() / whole.double().clamp(min=1), both_empty)

"""Does the spread of the samples show where they are wrong? Gamma maps, error maps and S_NCC.

Convention: *softmax* samples; CE(p, q) = -sum_k p_k log(q_k + 1e-8) with the natural logarithm; Pearson over all
pixels; mean over the annotators of an image. A constant map has no correlation: it gets a declared value and is
counted.

S samples, A annotators, K classes.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from phiseg.core.errors import DataError
from phiseg.metrics.overlap import check_pairs, checked_labels

EPSILON = 1e-8
"""Added to a probability before its logarithm."""

_TINY = torch.finfo(torch.float64).tiny


class Correlation(NamedTuple):
    """A mean correlation, and how many of its members were defined rather than measured."""

    value: float
    num_constant: int


def mean_log_probs(probs: Tensor, *, eps: float = EPSILON) -> Tensor:
    """Return E_s log(s + eps), all that gamma and the error maps need to know of the samples' logarithms.

    Half precision is raised to float32, where `eps` is not lost.

    Args:
        probs: softmax samples (S, K, H, W).
        eps: keeps the logarithm of 0 finite.

    Returns:
        (K, H, W).

    Raises:
        DataError: the shape is another one, or the values are not probabilities.

    >>> mean_log_probs(torch.full((3, 2, 1, 1), 0.5)).flatten()
    tensor([-0.6931, -0.6931])
    """
    return (_checked(probs) + eps).log_().mean(0)


def expected_cross_entropy(target: Tensor, mean_log_probs: Tensor) -> Tensor:
    """Return E_s CE(target, s) of every pixel, = -sum_k target_k E_s log(s_k + 1e-8).

    Args:
        target: probabilities or one-hot labels (..., K, H, W).
        mean_log_probs: E_s log(s + 1e-8), (K, H, W).

    Returns:
        (..., H, W).

    Raises:
        DataError: the shapes do not fit.

    >>> log_probs = torch.tensor([-1.0, -3.0]).reshape(2, 1, 1)
    >>> expected_cross_entropy(torch.eye(2).reshape(2, 2, 1, 1), log_probs).flatten()
    tensor([1., 3.])
    """
    if mean_log_probs.ndim != 3 or target.shape[-3:] != mean_log_probs.shape:
        raise DataError(
            f"target {tuple(target.shape)} does not fit mean_log_probs {tuple(mean_log_probs.shape)}; "
            "pass (..., K, H, W) and (K, H, W)"
        )
    return (target * -mean_log_probs).sum(-3)


def gamma_map(probs: Tensor) -> Tensor:
    """Return the paper's map of how much the samples vary.

    gamma = E_s CE(s-bar, s) with s-bar the mean of the softmax samples. It is at least the entropy
    of s-bar, so never negative (but for the 1e-8 in the logarithm).

    Args:
        probs: softmax samples (S, K, H, W).

    Returns:
        (H, W).

    Raises:
        DataError: the shape is another one, or the values are not probabilities.

    >>> certain, undecided = torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5])
    >>> gamma_map(torch.stack([certain, undecided], 1).reshape(1, 2, 1, 2))
    tensor([[0.0000, 0.6931]])
    """
    return expected_cross_entropy(_checked(probs).mean(0), mean_log_probs(probs))


def error_maps(probs: Tensor, annotations: Tensor) -> Tensor:
    """Return the error of the samples against each annotator, E_s CE(y, s) with y one-hot.

    Args:
        probs: softmax samples (S, K, H, W).
        annotations: integer labels (A, H, W), valid annotators only.

    Returns:
        (A, H, W).

    Raises:
        DataError: the shapes do not fit, or the values are not probabilities and labels in 0..K-1.

    >>> error_maps(torch.tensor([0.75, 0.25]).reshape(1, 2, 1, 1), torch.tensor([[[0]], [[1]]])).flatten()
    tensor([0.2877, 1.3863])
    """
    log_probs = mean_log_probs(probs)
    annotations = checked_labels("annotations", annotations, len(log_probs))
    if annotations.shape[1:] != log_probs.shape[1:]:
        raise DataError(
            f"annotations {tuple(annotations.shape)} do not fit probs {tuple(probs.shape)}; "
            "pass (A, H, W) and (S, K, H, W)"
        )
    return -log_probs.gather(0, annotations.long())  # the sum over k with a one-hot y picks one term


def ncc(first: Tensor, second: Tensor, *, constant: float = 0.0) -> Tensor:
    """Return the normalised cross correlation of two maps: Pearson's, over all pixels.

    NCC(a, b) = mean((a - mean a)(b - mean b)) / (std a std b), in float64.

    Args:
        first: maps (..., H, W).
        second: maps (..., H, W); the leading dimensions broadcast.
        constant: the value where either map is constant, up to the rounding of its type.

    Returns:
        float64 (...), within -1..1.

    Raises:
        DataError: the maps differ in size or hold values that are not finite.

    >>> ramp = torch.arange(4.0).reshape(2, 2)
    >>> ncc(ramp, torch.stack([2 * ramp + 1, -ramp, torch.ones(2, 2)]))
    tensor([ 1., -1.,  0.], dtype=torch.float64)
    """
    return _correlate(first, second, constant)[0]


def s_ncc(gamma: Tensor, errors: Tensor, *, constant: float = 0.0) -> Correlation:
    """Return how well the gamma map predicts the errors.

    S_NCC = E_y NCC(gamma, E_s CE(y, s)), eq. 5 of the paper.

    Args:
        gamma: the map of `gamma_map` (H, W).
        errors: the maps of `error_maps` (A, H, W).
        constant: what an annotator counts for whose map, or the gamma map, is constant. Never NaN.

    Returns:
        The mean over the annotators, and for how many of them a map was constant.

    Raises:
        DataError: the shapes do not fit or the maps hold values that are not finite.

    >>> ramp = torch.arange(4.0).reshape(2, 2)
    >>> s_ncc(ramp, torch.stack([ramp, torch.ones(2, 2)]))
    Correlation(value=0.5, num_constant=1)
    """
    if gamma.ndim != 2 or errors.shape[1:] != gamma.shape:
        raise DataError(
            f"gamma {tuple(gamma.shape)} and errors {tuple(errors.shape)} do not fit; "
            "pass (H, W) and (A, H, W), one image at a time"
        )
    values, is_constant = _correlate(gamma, errors, constant)
    return Correlation(float(values.mean()), int(is_constant.sum()))


def _checked(probs: Tensor) -> Tensor:
    """Return `probs` in at least float32, where 1e-8 survives."""
    if probs.ndim != 4 or probs.numel() == 0:
        raise DataError(f"probs has shape {tuple(probs.shape)}; pass at least one sample as (S, K, H, W)")
    low, high = probs.aminmax()
    if not (low >= 0 and high <= 1 + 1e-3):  # NaN fails too; the margin is for rounding
        raise DataError("probs holds values outside 0..1; pass logits.softmax(1), not logits or labels")
    return probs.to(torch.promote_types(probs.dtype, torch.float32))


def _correlate(first: Tensor, second: Tensor, constant: float) -> tuple[Tensor, Tensor]:
    """Return the correlations and where they were defined by `constant`, each (...)."""
    check_pairs("first", first, "second", second)
    a, a_constant = _standardised(first)
    b, b_constant = _standardised(second)
    is_constant = a_constant | b_constant
    return torch.where(is_constant, constant, (a * b).sum(-1).clamp(-1, 1)), is_constant


def _standardised(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return each map centred with unit norm (..., P), and whether its variance is only rounding (...)."""
    values = maps.flatten(-2).double()
    largest = values.norm(torch.inf, dim=-1, keepdim=True)
    if not largest.isfinite().all():
        raise DataError("a map holds NaN or infinity; make it of softmax probabilities, not of logits")
    values = values / largest.clamp(min=_TINY)  # now squares neither overflow nor vanish
    values -= values.mean(-1, keepdim=True)
    norm = values.norm(dim=-1, keepdim=True)
    rounding = torch.finfo(maps.dtype if maps.is_floating_point() else torch.float64).eps
    is_constant = norm.squeeze(-1) <= 8 * rounding * values.shape[-1] ** 0.5  # as the standard deviation
    return values / norm.clamp(min=_TINY), is_constant

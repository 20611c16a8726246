"""Correlation between the uncertainty of the samples and their error: gamma maps, error maps and S_NCC.

Convention: *softmax* samples; CE(p, q) = -sum_k p_k log(q_k + 1e-8) with the natural logarithm; Pearson correlation
over all pixels; mean over the annotators of an image. The correlation of a constant map is undefined: it is set to
a fixed value and counted.

S samples, A annotators, K classes, *size is (H, W) for images and (D, H, W) for volumes.
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
    """Mean correlation, and the number of constant maps whose correlation was set to a fixed value."""

    value: float
    num_constant: int


def mean_log_probs(probs: Tensor, *, eps: float = EPSILON) -> Tensor:
    """Return E_s log(s + eps), the statistic that gamma and the error maps are computed from.

    Half precision is converted to float32, so that `eps` is not lost.

    Args:
        probs: softmax samples (S, K, *size).
        eps: keeps the logarithm of 0 finite.

    Returns:
        (K, *size).

    Raises:
        DataError: the shape is invalid, or the values are not probabilities.

    >>> mean_log_probs(torch.full((3, 2, 1, 1), 0.5)).flatten()
    tensor([-0.6931, -0.6931])
    """
    return (_checked(probs) + eps).log_().mean(0)


def expected_cross_entropy(target: Tensor, mean_log_probs: Tensor) -> Tensor:
    """Return E_s CE(target, s) = -sum_k target_k E_s log(s_k + 1e-8) for each pixel.

    Args:
        target: probabilities or one-hot labels (..., K, *size).
        mean_log_probs: E_s log(s + 1e-8), (K, *size).

    Returns:
        (..., *size).

    Raises:
        DataError: the shapes do not match.

    >>> log_probs = torch.tensor([-1.0, -3.0]).reshape(2, 1, 1)
    >>> expected_cross_entropy(torch.eye(2).reshape(2, 2, 1, 1), log_probs).flatten()
    tensor([1., 3.])
    """
    num_axes = mean_log_probs.ndim
    if num_axes not in (3, 4) or target.shape[-num_axes:] != mean_log_probs.shape:
        raise DataError(
            f"target {tuple(target.shape)} does not match mean_log_probs {tuple(mean_log_probs.shape)}; "
            "pass (..., K, *size) and (K, *size)"
        )
    return (target * -mean_log_probs).sum(-num_axes)


def gamma_map(probs: Tensor) -> Tensor:
    """Return the gamma map, the uncertainty map of the paper.

    gamma = E_s CE(s-bar, s), where s-bar is the mean of the softmax samples. It is at least the entropy of s-bar,
    so it is never negative (up to the 1e-8 in the logarithm).

    Args:
        probs: softmax samples (S, K, *size).

    Returns:
        (*size).

    Raises:
        DataError: the shape is invalid, or the values are not probabilities.

    >>> certain, undecided = torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5])
    >>> gamma_map(torch.stack([certain, undecided], 1).reshape(1, 2, 1, 2))
    tensor([[0.0000, 0.6931]])
    """
    return expected_cross_entropy(_checked(probs).mean(0), mean_log_probs(probs))


def error_maps(probs: Tensor, annotations: Tensor) -> Tensor:
    """Return the error maps E_s CE(y, s) of the samples, one per annotator, with y one-hot.

    Args:
        probs: softmax samples (S, K, *size).
        annotations: integer labels (A, *size), valid annotators only.

    Returns:
        (A, *size).

    Raises:
        DataError: the shapes do not match, or the values are not probabilities and labels in 0..K-1.

    >>> error_maps(torch.tensor([0.75, 0.25]).reshape(1, 2, 1, 1), torch.tensor([[[0]], [[1]]])).flatten()
    tensor([0.2877, 1.3863])
    """
    log_probs = mean_log_probs(probs)
    annotations = checked_labels("annotations", annotations, len(log_probs))
    if annotations.shape[1:] != log_probs.shape[1:]:
        raise DataError(
            f"annotations {tuple(annotations.shape)} do not match probs {tuple(probs.shape)}; "
            "pass (A, *size) and (S, K, *size)"
        )
    return -log_probs.gather(0, annotations.long())  # a one-hot y selects one term of the sum over k


def ncc(first: Tensor, second: Tensor, *, constant: float = 0.0) -> Tensor:
    """Return the normalised cross-correlation of two maps: the Pearson correlation over all pixels.

    NCC(a, b) = mean((a - mean a)(b - mean b)) / (std a std b), in float64.

    Args:
        first: maps (..., H, W).
        second: maps (..., H, W); the leading dimensions broadcast.
        constant: value returned if either map is constant up to rounding.

    Returns:
        float64 (...) in -1..1.

    Raises:
        DataError: the maps differ in size or contain non-finite values.

    >>> ramp = torch.arange(4.0).reshape(2, 2)
    >>> ncc(ramp, torch.stack([2 * ramp + 1, -ramp, torch.ones(2, 2)]))
    tensor([ 1., -1.,  0.], dtype=torch.float64)
    """
    check_pairs("first", first, "second", second)
    return _correlate(first.flatten(-2), second.flatten(-2), constant)[0]


def s_ncc(gamma: Tensor, errors: Tensor, *, constant: float = 0.0) -> Correlation:
    """Return S_NCC, the correlation between the gamma map and the error maps.

    S_NCC = E_y NCC(gamma, E_s CE(y, s)), eq. 5 of the paper.

    Args:
        gamma: gamma map (*size), from `gamma_map`.
        errors: error maps (A, *size), from `error_maps`.
        constant: correlation of an annotator if the error map or the gamma map is constant. Never NaN.

    Returns:
        The mean over the annotators, and the number of annotators with a constant map.

    Raises:
        DataError: the shapes do not match, or the maps contain non-finite values.

    >>> ramp = torch.arange(4.0).reshape(2, 2)
    >>> s_ncc(ramp, torch.stack([ramp, torch.ones(2, 2)]))
    Correlation(value=0.5, num_constant=1)
    """
    if gamma.ndim not in (2, 3) or errors.shape[1:] != gamma.shape or not len(errors):
        raise DataError(
            f"gamma {tuple(gamma.shape)} and errors {tuple(errors.shape)} do not match; "
            "pass (*size) and (A, *size), one image or volume at a time"
        )
    values, is_constant = _correlate(gamma.flatten(), errors.flatten(1), constant)
    return Correlation(float(values.mean()), int(is_constant.sum()))


def _checked(probs: Tensor) -> Tensor:
    """Validate `probs` and return it in at least float32, so that adding 1e-8 is not lost."""
    if probs.ndim not in (4, 5) or probs.numel() == 0:
        raise DataError(f"probs has shape {tuple(probs.shape)}; pass at least one sample as (S, K, *size)")
    low, high = probs.aminmax()
    if not (low >= 0 and high <= 1 + 1e-3):  # also rejects NaN; the margin allows for rounding
        raise DataError("probs contains values outside 0..1; pass logits.softmax(1), not logits or labels")
    return probs.to(torch.promote_types(probs.dtype, torch.float32))


def _correlate(first: Tensor, second: Tensor, constant: float) -> tuple[Tensor, Tensor]:
    """Return the correlations of maps (..., P), and where they were set to `constant`, each (...)."""
    a, a_constant = _standardised(first)
    b, b_constant = _standardised(second)
    is_constant = a_constant | b_constant
    return torch.where(is_constant, constant, (a * b).sum(-1).clamp(-1, 1)), is_constant


def _standardised(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return each map (..., P) centred with unit norm, and whether it is constant up to rounding (...)."""
    values = maps.double()
    largest = values.norm(torch.inf, dim=-1, keepdim=True)
    if not largest.isfinite().all():
        raise DataError("a map contains NaN or infinity; compute it from softmax probabilities, not from logits")
    values = values / largest.clamp(min=_TINY)  # squares neither overflow nor underflow
    values -= values.mean(-1, keepdim=True)
    norm = values.norm(dim=-1, keepdim=True)
    rounding = torch.finfo(maps.dtype if maps.is_floating_point() else torch.float64).eps
    is_constant = norm.squeeze(-1) <= 8 * rounding * values.shape[-1] ** 0.5  # bound on the standard deviation
    return values / norm.clamp(min=_TINY), is_constant

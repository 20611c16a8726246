"""Predict a lesion around a point: follow it through the slices until it has ended in all samples.

In each sample, the lesion is the connected component near the point, or empty. Outlines in neighbouring slices are
connected if they overlap. Other components in the crop are other structures.

Shapes: N slices of H x W pixels, n of them in a box of h x w pixels, S samples, K classes, L latent levels.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from tqdm import tqdm

from phiseg.inference.frame_sampler import FrameSampler
from phiseg.inference.prediction import Limit, Prediction
from phiseg.inference.sample_summary import summarise_probs
from phiseg.inference.tiling import pixels_of

POINT_TOLERANCE_MM = 5.0
"""Maximum distance of a lesion from the point, in the slice of the point or an adjacent one."""
_CONNECTED = ndimage.generate_binary_structure(3, 1)
_CONNECTED[1] = True  # pixels of a slice are also connected at their corners


def predict_lesion(sampler: FrameSampler, point: tuple[int, int, int], bar: "tqdm[Any]") -> Prediction:
    """Sample a lesion, starting at the slices around its point, until it has ended in every sample.

    Mean and gamma are computed from the samples after other components are removed, so that all results describe
    the same lesions.

    Args:
        sampler: sampler of slices, in a crop around the point.
        point: (slice, row, column) in the stack.
        bar: progress bar over the slices.
    """
    stack, frame = sampler.stack, sampler.frames[0]
    centre, depth = point[0], stack.stack.grid[0]
    rows, columns = (pixels_of(frame, axis, stack.stack.grid[1 + axis]) for axis in (0, 1))
    far = _reach_in_slices(sampler)
    first, last = max(centre - far, 0), min(centre + far, depth - 1)  # limits of the search
    box = (slice(centre, centre + 1), rows, columns)
    found: dict[int, tuple[NDArray[np.float32], NDArray[np.float32]]] = {}

    def sample(numbers: Sequence[int]) -> None:
        for number, result in zip(numbers, sampler.sample_slices(numbers, box), strict=True):
            found[number] = result
            bar.update()

    seen = sampler.slices_seen(centre)
    sample(range(max(min(seen[0], centre - 1), first), min(max(seen[-1], centre + 1), last) + 1))
    while True:
        numbers = sorted(found)
        probs = np.stack([found[number][0] for number in numbers], axis=2)  # (S, K, n, h, w)
        drawn = probs.argmax(1).astype(np.uint8)  # (S, n, h, w)
        place = (centre - numbers[0], point[1] - rows.start, point[2] - columns.start)
        bodies = np.stack([_body(labels > 0, place, stack.stack.spacing_mm) for labels in drawn])
        below = range(max(numbers[0] - sampler.ahead, first), numbers[0]) if bodies[:, 0].any() else ()
        above = range(numbers[-1] + 1, min(numbers[-1] + sampler.ahead, last) + 1) if bodies[:, -1].any() else ()
        if not (below or above):
            break
        sample([*below, *(numbers if sampler.joint else ()), *above])
    # The slices of the lesion and one on each side, regardless of the batch size.
    inside = numbers[0] + np.flatnonzero(bodies.any((0, 2, 3)))
    low, high = (inside[0], inside[-1]) if inside.size else (centre, centre)
    part = slice(max(low - 1, numbers[0]) - numbers[0], min(high + 1, numbers[-1]) - numbers[0] + 1)
    levels = np.stack([found[number][1] for number in numbers[part]], axis=1)  # (L, n, h, w)
    return _prediction(sampler, point, numbers[part], probs[:, :, part], drawn[:, part], bodies[:, part], levels)


def _reach_in_slices(sampler: FrameSampler) -> int:
    """Return the maximum distance from the point in slices; at least 1 if the user did not set it."""
    stack, frame = sampler.stack.stack, sampler.frames[0]
    reach, distance = sampler.sampling.reach_mm, stack.spacing_mm[0]
    if reach is None:
        sides = zip(frame.size, frame.step, stack.spacing_mm[1:], strict=True)
        reach = max(distance, max(number * step * mm for number, step, mm in sides) / 2)
    return int(min(reach / distance, stack.grid[0]) + 1e-6)


def _prediction(
    sampler: FrameSampler,
    point: tuple[int, int, int],
    numbers: Sequence[int],
    probs: NDArray[np.float32],
    drawn: NDArray[np.uint8],
    bodies: NDArray[np.bool_],
    levels: NDArray[np.float32],
) -> Prediction:
    """Return the prediction of all slices.

    Args:
        sampler: sampler of slices.
        point: point in the stack.
        numbers: numbers of the n slices.
        probs: probabilities (S, K, n, h, w).
        drawn: labels (S, n, h, w) of the network.
        bodies: (S, n, h, w) true for voxels of the lesion.
        levels: variance (L, n, h, w) caused by each level.
    """
    grid = sampler.stack.stack.grid
    rows, columns = (pixels_of(sampler.frames[0], axis, grid[1 + axis]) for axis in (0, 1))
    touched = np.asarray(bodies.any(0))
    around = ndimage.binary_dilation(touched, np.ones((1, 3, 3), dtype=bool), iterations=2)
    removed = ~around | ((drawn > 0) & ~bodies)  # (S, n, h, w)
    background = np.eye(probs.shape[1], 1, dtype=np.float32)[:, 0]  # (K,)
    probs = np.where(removed[:, None], background[:, None, None, None], probs)
    (summary,) = summarise_probs([torch.from_numpy(probs)[None]])
    return Prediction(
        stack=sampler.stack,
        box=(slice(numbers[0], numbers[-1] + 1), rows, columns),
        labels=summary.labels.numpy(),
        mean_probs=summary.mean_probs.numpy(),
        mean_log_probs=summary.mean_log_probs.numpy(),
        level_variance=levels * around if sampler.level_names else None,
        truncated_by=_truncated_by(
            bodies, numbers, (rows, columns), grid, centre=point[0], far=_reach_in_slices(sampler)
        ),
        point=point,
        level_names=sampler.level_names,
    )


def _body(
    mask: NDArray[np.bool_], place: tuple[int, int, int], spacing_mm: tuple[float, float, float]
) -> NDArray[np.bool_]:
    """Return the connected component of a mask (n, h, w) nearest to a point, or an empty mask if none is near.

    Near means within `POINT_TOLERANCE_MM` in the plane, in the slice of the point or an adjacent one.
    """
    number, row, column = place
    start = max(number - 1, 0)
    near = np.argwhere(mask[start : number + 2])
    nothing = np.zeros_like(mask)
    if not near.size:
        return nothing
    in_plane = ((near[:, 1:] - (row, column)) * spacing_mm[1:]) ** 2
    beside = np.abs(near[:, 0] + start - number)
    # At equal distance, the slice of the point has priority.
    order = np.lexsort((beside, in_plane.sum(1)))
    if in_plane[order[0]].sum() > POINT_TOLERANCE_MM**2:
        return nothing
    pieces, _ = ndimage.label(mask, _CONNECTED)
    nearest = near[order[0]] + (start, 0, 0)
    body: NDArray[np.bool_] = pieces == pieces[tuple(nearest)]
    return body


def _truncated_by(
    bodies: NDArray[np.bool_],
    numbers: Sequence[int],
    crop: tuple[slice, slice],
    grid: tuple[int, ...],
    *,
    centre: int,
    far: int,
) -> dict[Limit, NDArray[np.bool_]]:
    """Return which lesions (S, n, h, w) touch a limit, beyond which they may continue.

    The border of the crop counts only if the scan continues beyond it. A slice that is the last of both the reach
    and the scan counts for the scan, because a longer reach would not help. A single slice is never cut off by its
    neighbours, because there are none or none were requested.

    Args:
        bodies: lesions of the samples.
        numbers: numbers of the n slices.
        crop: rows and columns of the crop in the scan.
        grid: grid of the scan.
        centre: slice of the point.
        far: maximum distance from the point in slices.
    """
    rows, columns = crop
    ends = {0, grid[0] - 1} if far and grid[0] > 1 else set()
    reach = {centre - far, centre + far} - ends if far else set()
    limits: dict[Limit, NDArray[np.bool_]] = {
        "reach": np.zeros(bodies.shape[1:], bool),
        "crop": np.zeros(bodies.shape[1:], bool),
        "scan": np.zeros(bodies.shape[1:], bool),
    }
    for index, number in enumerate(numbers):
        limits["reach"][index] = number in reach
        limits["scan"][index] = number in ends
    limits["crop"][:, 0] |= rows.start > 0
    limits["crop"][:, -1] |= rows.stop < grid[1]
    limits["crop"][:, :, 0] |= columns.start > 0
    limits["crop"][:, :, -1] |= columns.stop < grid[2]
    return {limit: np.asarray((bodies & voxels).any((1, 2, 3))) for limit, voxels in limits.items()}

"""The prediction of a volume.

Shapes: N slices of H x W pixels, n of them in a box of h x w pixels, S samples, K classes, L latent levels.
"""

from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from phiseg.imaging.volume import Volume, from_slices
from phiseg.inference.prepared_stack import PreparedStack
from phiseg.inference.tiling import Box
from phiseg.metrics import expected_cross_entropy

Limit = Literal["reach", "crop", "scan"]
"""Limits of a lesion: the last slice within the reach, the border of the crop, the first or last slice."""


@dataclass(frozen=True)
class Prediction:
    """The samples of one volume inside a box of its slices; everything outside is background."""

    stack: PreparedStack
    """The predicted scan and its slices."""
    box: Box
    labels: NDArray[np.uint8]
    """(S, n, h, w) most probable class of each sample."""
    mean_probs: NDArray[np.float32]
    """(K, n, h, w) mean over samples of the probabilities."""
    mean_log_probs: NDArray[np.float32]
    """(K, n, h, w) mean over samples of log(probability + eps)."""
    level_variance: NDArray[np.float32] | None
    """(L, n, h, w) variance of the foreground probability when the noise of one level is redrawn and that of the
    others is kept, fine to coarse; None for a model with a single kind of noise."""
    truncated_by: dict[Limit, NDArray[np.bool_]]
    """(S,) for each limit, true for samples whose lesion touches it; empty for a whole-slice model."""
    point: tuple[int, int, int] | None
    """Point (slice, row, column) for a lesion-crop model."""
    level_names: tuple[str, ...]
    """Names of the levels of `level_variance`, from `Segmenter.noise_names`."""
    unusual: str | None = None
    """Why the image around the point does not look like a training image; None if it does or this is unknown."""

    @property
    def volume(self) -> Volume:
        """The scan as it was read, (I, J, K) or (I, J, K, C)."""
        return self.stack.volume

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, background first."""
        return self.stack.preprocessing.classes

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """(S,) true for samples whose lesion may be cut off by a limit."""
        truncated: NDArray[np.bool_] = np.any(
            [np.zeros(len(self.labels), bool), *self.truncated_by.values()], axis=0
        )
        return truncated

    @property
    def truncation_warning(self) -> str | None:
        """Warning that the lesion may be cut off: by which limit, in how many samples, and how to avoid it."""
        limits: dict[Limit, tuple[str, str]] = {
            "reach": ("the last slice within --reach", " (use a larger --reach)"),
            "crop": ("the border of the crop", " (use a model with larger crops)"),
            "scan": ("the first or last slice of the scan", ""),
        }
        found = [
            f"{where} in {100 * self.truncated_by[limit].mean():.0f} % of the samples{advice}"
            for limit, (where, advice) in limits.items()
            if limit in self.truncated_by and self.truncated_by[limit].any()
        ]
        return f"the lesion may be larger than measured: it extends to {', to '.join(found)}" if found else None

    def voxel(self, number: int, row: int, column: int) -> tuple[int, int, int]:
        """Return the voxel (i, j, k) of the volume at a slice, row and column of the stack."""
        place = np.linalg.inv(self.volume.affine) @ self.stack.stack.affine @ [number, row, column, 1]
        i, j, k = (int(index) for index in np.rint(place[:3]))
        return i, j, k

    @property
    def box_in_file(self) -> Box:
        """The box along the axes of the volume."""
        first = self.voxel(*(part.start for part in self.box))
        last = self.voxel(*(part.stop - 1 for part in self.box))
        i, j, k = (slice(min(ends), max(ends) + 1) for ends in zip(first, last, strict=True))
        return i, j, k

    def at_slice(self, number: int) -> Self:
        """Return the part of the prediction in one slice of the box."""
        place = number - self.box[0].start
        part = slice(place, place + 1)
        return replace(
            self,
            box=(slice(number, number + 1), *self.box[1:]),
            labels=self.labels[:, part],
            mean_probs=self.mean_probs[:, part],
            mean_log_probs=self.mean_log_probs[:, part],
            level_variance=None if self.level_variance is None else self.level_variance[:, part],
        )

    def on_grid(self, values: NDArray[np.generic]) -> Volume:
        """Return values of the box, (n, h, w) or (n, h, w, C), on the grid of the volume; 0 outside the box."""
        full = np.zeros((*self.stack.stack.grid, *values.shape[3:]), dtype=values.dtype)
        full[self.box] = values
        return replace(from_slices(full, self.stack.plane, like=self.volume), box=self.box_in_file)

    @property
    def gamma(self) -> NDArray[np.float32]:
        """Gamma map (n, h, w), which is large where the samples disagree."""
        parts = (torch.from_numpy(part).flatten(1, 2) for part in (self.mean_probs, self.mean_log_probs))
        gamma: NDArray[np.float32] = expected_cross_entropy(*parts).numpy()  # (n * h, w)
        return gamma.reshape(self.mean_probs.shape[1:])

    @property
    def consensus(self) -> NDArray[np.uint8]:
        """Most probable class of the mean prediction, (n, h, w)."""
        most_probable: NDArray[np.uint8] = self.mean_probs.argmax(0).astype(np.uint8)
        return most_probable

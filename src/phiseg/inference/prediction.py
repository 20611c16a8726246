"""What was sampled of a volume, and where it lies.

Shapes: N slices of H x W pixels, n of them in a box of h x w pixels, S samples, K classes, L latent levels.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from phiseg.imaging.volume import Volume, from_slices
from phiseg.inference.preprocessing import PreparedStack
from phiseg.inference.slice_sampler import Box
from phiseg.metrics import expected_cross_entropy

Limit = Literal["reach", "crop", "scan"]
"""What can cut a lesion off: the last slice within the reach, the border of the crop, the first or last slice."""


@dataclass(frozen=True)
class Prediction:
    """What was sampled of one volume, inside a box of its slices; everything outside of it is background."""

    stack: PreparedStack
    """The scan that was predicted, and its slices."""
    box: Box
    labels: NDArray[np.uint8]
    """(S, n, h, w), the most probable class of every sample."""
    mean_probs: NDArray[np.float32]
    """(K, n, h, w)."""
    mean_log_probs: NDArray[np.float32]
    """(K, n, h, w), the mean over samples of log(probability + eps)."""
    level_variance: NDArray[np.float32] | None
    """(L, n, h, w), how much the foreground's probability varies when the noise of one level is redrawn and that of
    the others is kept, fine to coarse; None for a model with noise of one kind."""
    cuts: dict[Limit, NDArray[np.bool_]]
    """For each limit, which samples' lesions extend up to it, (S,); empty for a model of whole slices."""
    point: tuple[int, int, int] | None
    """(slice, row, column) that a model of lesion-centred crops was shown."""
    level_names: tuple[str, ...]
    """Of what `level_variance` has, as `Segmenter.noise_names` calls them."""
    doubt: str | None = None
    """Why the image around the point does not look like a training image; None where it does, or none is known."""

    @property
    def volume(self) -> Volume:
        """The scan as it was read, (I, J, K) or (I, J, K, C)."""
        return self.stack.volume

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, the background first."""
        return self.stack.preprocessing.classes

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """(S,), whether a sample's lesion may be cut off by any limit."""
        truncated: NDArray[np.bool_] = np.any([np.zeros(len(self.labels), bool), *self.cuts.values()], axis=0)
        return truncated

    @property
    def cut_warning(self) -> str | None:
        """By what, and in how many samples, the lesion may be cut off, and what would show the whole of it."""
        limits: dict[Limit, tuple[str, str]] = {
            "reach": ("the last slice within --reach", " (give a larger --reach)"),
            "crop": ("the border of the crop", " (use a model with larger crops)"),
            "scan": ("the first or last slice of the scan", ""),
        }
        found = [
            f"{where} in {100 * self.cuts[limit].mean():.0f} % of the samples{advice}"
            for limit, (where, advice) in limits.items()
            if limit in self.cuts and self.cuts[limit].any()
        ]
        return f"the lesion may be larger than measured: it extends to {', to '.join(found)}" if found else None

    def voxel(self, number: int, row: int, column: int) -> tuple[int, int, int]:
        """Return the voxel (i, j, k) of the volume at a slice, row and column of the stack."""
        place = np.linalg.inv(self.volume.affine) @ self.stack.stack.affine @ [number, row, column, 1]
        i, j, k = (int(index) for index in np.rint(place[:3]))
        return i, j, k

    def on_grid(self, values: NDArray[np.generic]) -> Volume:
        """Put values of the box, (n, h, w) or (n, h, w, C), onto the grid of the volume, which is 0 elsewhere."""
        full = np.zeros((*self.stack.stack.grid, *values.shape[3:]), dtype=values.dtype)
        full[self.box] = values
        return from_slices(full, self.stack.plane, like=self.volume)

    @property
    def gamma(self) -> NDArray[np.float32]:
        """The gamma map (n, h, w): where the samples disagree."""
        parts = (torch.from_numpy(part).flatten(1, 2) for part in (self.mean_probs, self.mean_log_probs))
        gamma: NDArray[np.float32] = expected_cross_entropy(*parts).numpy()  # (n * h, w)
        return gamma.reshape(self.mean_probs.shape[1:])

    @property
    def consensus(self) -> NDArray[np.uint8]:
        """The most probable class of the mean prediction, (n, h, w)."""
        most_probable: NDArray[np.uint8] = self.mean_probs.argmax(0).astype(np.uint8)
        return most_probable

"""A few cases of an evaluation with their samples and maps, for the figures.

E example cases, A annotators, s stored samples, K classes, L latent levels, H x W pixels.
"""

from dataclasses import dataclass, fields
from typing import Annotated, Any, get_type_hints

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Examples:
    """The content of `examples.npz`. Each array is declared with its axes and type.

    Raises:
        ValueError: an array has another shape or type, or is not finite.
    """

    cases: Annotated[np.ndarray, "E", "U"]
    image: Annotated[np.ndarray, "EHW", "f"]
    """The first channel of the network's input, in [-0.5, 0.5]."""
    annotations: Annotated[np.ndarray, "EAHW", "u"]
    valid: Annotated[np.ndarray, "EA", "b"]
    """False for missing annotations."""
    samples: Annotated[np.ndarray, "EsHW", "u"]
    mean_probs: Annotated[np.ndarray, "EKHW", "f"]
    error: Annotated[np.ndarray | None, "EHW", "f"] = None
    """The mean cross entropy over annotators and samples, E_{y,s} CE(y, s); absent without probabilities."""
    gamma: Annotated[np.ndarray | None, "EHW", "f"] = None
    """The cross entropy of mean and samples, E_s CE(s-bar, s); absent without probabilities."""
    level_probs: Annotated[np.ndarray | None, "ELKHW", "f"] = None
    """Softmax of one sample's accumulated logits at every level, fine to coarse."""
    level_residuals: Annotated[np.ndarray | None, "ELKHW", "f"] = None
    """Residual logits of each level."""
    spacing_mm: Annotated[np.ndarray | None, "E2", "f"] = None
    """Pixel spacing (vertical, horizontal) in mm; absent unless it is known for all examples."""
    plane: Annotated[np.ndarray | None, "", "U"] = None
    """Name of the plane of the pictures of volumes; absent for images."""
    heights: Annotated[np.ndarray | None, "E", "i"] = None
    """Number of rows of each picture; rows below are padding. Absent unless pictures differ in height."""
    colours: Annotated[np.ndarray | None, "E3HW", "f"] = None
    """Red, green and blue of pictures, in [-0.5, 0.5]; absent for other images."""
    annotators: Annotated[np.ndarray | None, "A", "U"] = None
    """Names of the annotators; absent in older evaluations."""
    classes: Annotated[np.ndarray | None, "K", "U"] = None
    """Names of the classes; absent in older evaluations."""
    other_planes: tuple["Examples", ...] = ()
    """The same volumes in the other planes."""

    @property
    def annotator_names(self) -> list[str]:
        """Names of the annotators, or numbers if they are unknown."""
        if self.annotators is None:
            return [f"annotator {number}" for number in range(self.valid.shape[1])]
        return [str(name) for name in self.annotators]

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, or numbers if they are unknown."""
        if self.classes is None:
            return [f"class {number}" for number in range(self.mean_probs.shape[1])]
        return [str(name) for name in self.classes]

    @property
    def views(self) -> tuple["Examples", ...]:
        """The examples in all planes, one for images."""
        return (self, *self.other_planes)

    def picture(self, name: str, index: int) -> NDArray[Any]:
        """Return an array (..., H, W) of an example without padding."""
        height = None if self.heights is None else int(self.heights[index])
        array: NDArray[Any] = getattr(self, name)[index][..., :height, :]
        return array

    def shown_image(self, index: int) -> NDArray[Any]:
        """Return the image of an example without padding: (H, W), or (H, W, 3) with colours."""
        return self.picture("image", index) if self.colours is None else np.moveaxis(self.colours[index], 0, 2)

    def __post_init__(self) -> None:
        sizes = {"2": 2, "3": 3}
        for name, hint in get_type_hints(Examples, include_extras=True).items():
            if name == "other_planes":
                continue
            (axes, kind), array = hint.__metadata__, getattr(self, name)
            if array is None:
                continue
            if array.ndim != len(axes) or array.dtype.kind != kind:
                raise ValueError(f"'{name}' is {array.dtype} {array.shape}, expected ({', '.join(axes)})")
            for axis, size in zip(axes, array.shape, strict=True):
                if sizes.setdefault(axis, size) != size:
                    raise ValueError(f"'{name}' has {axis} = {size}, but other arrays have {sizes[axis]}")
            if kind == "f" and not np.isfinite(array).all():
                raise ValueError(f"'{name}' contains values that are not finite")
        if (self.level_probs is None) != (self.level_residuals is None):
            raise ValueError("'level_probs' and 'level_residuals' must both be present or absent")
        if self.spacing_mm is not None and (self.spacing_mm <= 0).any():
            raise ValueError("'spacing_mm' contains values that are not positive")
        if self.heights is not None and not ((self.heights > 0) & (self.heights <= sizes["H"])).all():
            raise ValueError(f"'heights' contains values outside 1..{sizes['H']}")
        if any(view.cases.tolist() != self.cases.tolist() for view in self.other_planes):
            raise ValueError("the planes have different cases")


EXAMPLE_ARRAYS = [field.name for field in fields(Examples) if field.name != "other_planes"]
"""Names of the arrays of `examples.npz`."""

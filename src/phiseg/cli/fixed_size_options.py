"""What `phiseg prepare arrays` and `phiseg prepare legacy` can be told alike."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from phiseg.data.prepare.fixed_size import FixedSizeOptions
    from phiseg.data.store import SlicePlane


@dataclass(kw_only=True)
class FixedSizeArguments:
    """Options of a source that is a stack of images of one size."""

    rescale: Annotated[tuple[float, float] | None, tyro.conf.arg(metavar="SLOPE INTERCEPT")] = None
    """Multiply stored values by SLOPE and add INTERCEPT first, as DICOM's rescale does. Integers with a slope of at
    least 1 (or at most -1) are rounded to int16 if the result fits; all else becomes float32."""
    window: Annotated[tuple[float, float] | None, tyro.conf.arg(metavar="LOW HIGH")] = None
    """Pixel values, after --rescale, that become the darkest and the brightest (lung CT: -1000 400). By default
    0 255 for 8 bits, 0 1 or -0.5 0.5 for fractions, and else percentiles 0.5 and 99.5 of the images (of split
    train, if there is one), which are printed."""
    size: Annotated[int | None, tyro.conf.arg(metavar="PIXELS")] = None
    """Cut or pad the images to this height and width around their middle; by default they stay as they are."""
    resplit: bool = False
    """Leave the source's own splits out of account, and split by patient anew."""
    fractions: str = "60,20,20"
    """Shares of train, val and test in percent of the patients, for a source without splits or with --resplit."""
    seed: int = 0
    """The same seed gives the same split."""
    name: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Name of the dataset; by default that of the file."""
    overwrite: bool = False
    """Replace OUT if it is a dataset."""

    def fixed_size_options(
        self,
        *,
        classes: tuple[str, ...] | None,
        centred_on: str | None,
        modality: str | None,
        plane: "SlicePlane | None",
        zscore: bool = False,
    ) -> "FixedSizeOptions":
        """Return what was chosen, checked."""
        from phiseg.data.prepare.fixed_size import FixedSizeOptions
        from phiseg.data.splits import parse_fractions

        return FixedSizeOptions(
            rescale=self.rescale,
            window=self.window,
            zscore=zscore,
            classes=classes,
            size=self.size,
            centred_on=centred_on,
            modality=modality,
            plane=plane,
            resplit=self.resplit,
            seed=self.seed,
            fractions=parse_fractions(self.fractions),
            name=self.name,
        )

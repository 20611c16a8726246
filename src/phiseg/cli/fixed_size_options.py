"""Options shared by `phiseg prepare arrays` and `phiseg prepare legacy`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from phiseg.cli.parsing import Flag, optional

if TYPE_CHECKING:
    from phiseg.data.manifest import SlicePlane
    from phiseg.data.prepare.fixed_size_source import FixedSizeOptions


@dataclass(kw_only=True)
class FixedSizeArguments:
    """Options of a source that is a stack of images of the same size."""

    rescale: Annotated[tuple[float, float] | None, optional("SLOPE INTERCEPT", "keep the stored values")] = None
    """Factor and offset applied to the stored values first, as for DICOM. Integers with a slope of at least 1 (or
    at most -1) are rounded to int16 if they are in its range; all others become float32."""
    window: Annotated[tuple[float, float] | None, optional("LOW HIGH", "estimated from the values")] = None
    """Pixel values, after --rescale, that are mapped to the darkest and brightest value (lung CT: -1000 400). The
    default is 0 255 for 8 bits, 0 1 or -0.5 0.5 for fractions, otherwise the percentiles 0.5 and 99.5 of the images
    (of split train, if there is one), which are printed."""
    size: Annotated[int | None, optional("PIXELS", "keep the size")] = None
    """Height and width to crop or pad the images to around their centre."""
    resplit: Flag = False
    """Ignore the splits of the source and make new ones."""
    fractions: str = "60,20,20"
    """Shares of train, val and test in percent, for a source without splits or with --resplit."""
    seed: int = 0
    """Random seed of the split by patient."""
    name: Annotated[str | None, optional("NAME", "name of the file")] = None
    """Name of the dataset."""
    overwrite: Flag = False
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
        """Return the options, validated."""
        from phiseg.data.prepare.fixed_size_source import FixedSizeOptions
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

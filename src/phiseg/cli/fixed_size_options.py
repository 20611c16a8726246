"""Options shared by `phiseg prepare arrays` and `phiseg prepare legacy`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from phiseg.cli.parsing import Flag, optional

if TYPE_CHECKING:
    from phiseg.data.prepare.fixed_size_source import FixedSizeOptions


@dataclass(kw_only=True)
class FixedSizeArguments:
    """Options of a source that is a stack of images of the same size."""

    rescale: Annotated[tuple[float, float] | None, optional("SLOPE INTERCEPT", "keep the stored values")] = None
    """Factor and offset applied to the stored values first, as for DICOM. Integers with a slope of at least 1 (or
    at most -1) are rounded to int16 if they are in its range; all others become float32."""
    window: Annotated[
        tuple[float, float] | None,
        optional(
            "LOW HIGH",
            "0 255 for 8 bits, 0 1 or -0.5 0.5 for fractions, otherwise the percentiles 0.5 and 99.5 of the images "
            "(of split train, if there is one), which are printed",
        ),
    ] = None
    """Pixel values, after --rescale, that are mapped to -0.5 and 0.5 (lung CT: -1000 400)."""
    zscore: Flag = False
    """Normalise each image to mean 0 and standard deviation 1 instead of using a window (MR)."""
    classes: Annotated[tuple[str, ...] | None, optional("NAME ...", "numbered, as many as in the masks")] = None
    """Names of the classes, background first."""
    centred_on: Annotated[str | None, optional("NAME", "images are whole slices")] = None
    """Object at the centre of every image, if the images are crops. `phiseg predict` then needs a point inside
    it."""
    modality: Annotated[Literal["CT", "MR", "PT"] | None, optional("{CT,MR,PT}", "not recorded")] = None
    """Modality of the images (PT is PET). `phiseg predict` then rejects DICOM series of another modality."""
    plane: Annotated[
        Literal["axial", "coronal", "sagittal"] | None, optional("{axial,coronal,sagittal}", "not recorded")
    ] = None
    """Plane of the images. `phiseg predict` then slices scans along this plane."""
    size: Annotated[int | None, optional("PIXELS", "keep the size")] = None
    """Height and width to crop or pad the images to around their centre."""
    resplit: Flag = False
    """Ignore the splits of the source and make new ones."""
    fractions: str = "60,20,20"
    """Shares of train, val and test, as percentages or as fractions such as 0.6,0.2,0.2, for a source without
    splits or with --resplit."""
    seed: int = 0
    """Random seed of the split by patient."""
    name: Annotated[str | None, optional("NAME", "name of the file")] = None
    """Name of the dataset."""
    overwrite: Flag = False
    """Replace OUT if it is a dataset."""

    def fixed_size_options(self) -> "FixedSizeOptions":
        """Return the options, validated."""
        from phiseg.data.prepare.fixed_size_source import FixedSizeOptions
        from phiseg.data.prepare.option_checks import MIN_SIZE, check_size
        from phiseg.data.splits import parse_fractions

        if self.size is not None:
            check_size(self.size, smallest=MIN_SIZE)
        return FixedSizeOptions(
            rescale=self.rescale,
            window=self.window,
            zscore=self.zscore,
            classes=self.classes,
            size=self.size,
            centred_on=self.centred_on,
            modality=self.modality,
            plane=self.plane,
            resplit=self.resplit,
            seed=self.seed,
            fractions=parse_fractions(self.fractions),
            name=self.name,
        )

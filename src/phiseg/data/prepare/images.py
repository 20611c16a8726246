"""Prepare 2-D pictures with one mask file per annotator.

    phiseg prepare images SRC DATA --size 256

`images_files` finds and checks the files. `fixed_size` writes the dataset.
"""

from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from phiseg.core.files import AnyPath, check_replaceable
from phiseg.data.prepare.fixed_size import default_classes, write_fixed_size
from phiseg.data.prepare.fixed_size_source import FixedSizeOptions
from phiseg.data.prepare.images_files import PictureSource, find_pictures, plan_pictures
from phiseg.data.prepare.patterns import FilePatterns
from phiseg.data.prepare.preview import Preview, PreviewedCase
from phiseg.data.prepare.skipped import SkippedCases
from phiseg.data.store import Dataset


def prepare_images(
    source: AnyPath,
    out: AnyPath,
    options: FixedSizeOptions | None = None,
    *,
    patterns: FilePatterns | None = None,
    values: Mapping[int, int] | None = None,
    size: tuple[int, int] | None = None,
    grey: bool = False,
    strict: bool = False,
    overwrite: bool = False,
    command: str = "",
    progress: bool = True,
) -> Dataset:
    """Write pictures and the masks of their annotators as a prepared dataset.

    Args:
        source: folder in one of the layouts of `images_files` or with files that match `patterns`, or a table.
        out: folder of the dataset to write.
        options: names of classes, intensity and splits. Its `size` must be None.
        patterns: where the pictures and masks are, if the folder has another layout.
        values: class of each value of the masks; None for masks with two values or with class indices.
        size: height and width to resize the pictures to, with padding; None if all have the same size.
        grey: convert colours to grey values.
        strict: raise an error for the first unusable case instead of skipping it.
        overwrite: replace an existing dataset.
        command: command line to store in the dataset.
        progress: show progress bars.

    Raises:
        ConfigError: a pattern, the values or the size do not match the files.
        DataError: the source has no usable case.
        OutputError: `out` exists and `overwrite` is false, or it cannot be written.
    """
    source, out, options = Path(source), Path(out), options or FixedSizeOptions()
    check_replaceable(out, overwrite=overwrite, marker="dataset.json")
    skipped = SkippedCases(strict)
    found = find_pictures(source, patterns, skipped)
    plan = plan_pictures(source, found, values, size, grey, skipped, progress)
    provenance: dict[str, JsonValue] = {
        "kind": "images",
        "layout": found.layout,
        "raters": [*plan.annotators],
        "values": {str(value): label for value, label in plan.values.items()},
        "num_cases": found.num_cases,
        "left_out": skipped.reasons,  # filled while reading, before the manifest is written
    }
    return write_fixed_size(
        out,
        PictureSource(source, plan, skipped),
        options,
        provenance=provenance,
        overwrite=overwrite,
        command=command,
        progress=progress,
    )


def preview_images(
    source: AnyPath,
    options: FixedSizeOptions | None = None,
    *,
    patterns: FilePatterns | None = None,
    values: Mapping[int, int] | None = None,
    size: tuple[int, int] | None = None,
    grey: bool = False,
    strict: bool = False,
    progress: bool = True,
) -> Preview:
    """Return what `prepare_images` would read."""
    source, skipped = Path(source), SkippedCases(strict)
    plan = plan_pictures(source, find_pictures(source, patterns, skipped), values, size, grey, skipped, progress)
    cases = [
        PreviewedCase(files, f"{header.height} x {header.width} pixels")
        for files, header in zip(plan.cases, plan.headers, strict=True)
    ]
    classes = (options and options.classes) or default_classes(max(plan.values.values()))
    return Preview(cases=cases, annotators=plan.annotators, classes=classes, size=plan.size, channels=plan.channels)

"""Prepare NIfTI volumes with one label file per annotator, slice by slice or as volumes.

    phiseg prepare nifti SRC DATA --spacing 0.6 --size 192

`nifti_layout` finds the files. A first pass over the headers determines the properties that all cases share. Then
`nifti_slices` reads and slices one volume at a time. Unusable cases are skipped.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import JsonValue
from tqdm import tqdm

from phiseg.core.errors import ConfigError, DataError
from phiseg.core.files import AnyPath, check_replaceable
from phiseg.core.processes import in_order
from phiseg.data.intensity import Intensity
from phiseg.data.manifest import MISSING
from phiseg.data.prepare.found_files import AnnotatedImage, FoundFiles
from phiseg.data.prepare.nifti_layout import find_annotated_scans, read_class_names
from phiseg.data.prepare.nifti_slices import (
    Slicing,
    SlicingPlan,
    Window,
    cases_of_scan,
    frame_of,
    on_one_grid,
    pixel_mm,
    plane_of,
    read_merged,
)
from phiseg.data.prepare.option_checks import check_resampled
from phiseg.data.prepare.patterns import FilePatterns
from phiseg.data.prepare.patterns_search import find_by_patterns
from phiseg.data.prepare.preview import Preview, PreviewedCase
from phiseg.data.prepare.skipped import SkippedCases
from phiseg.data.prepare.table import find_in_table
from phiseg.data.splits import split_patients
from phiseg.data.store import Dataset
from phiseg.data.writer import Case, write_dataset
from phiseg.imaging.nifti_files import SUFFIXES, read_nifti_header
from phiseg.imaging.volume import Volume, to_slices


def prepare_nifti(
    source: AnyPath,
    out: AnyPath,
    *,
    patterns: FilePatterns | None = None,
    slicing: Slicing | None = None,
    merge: Mapping[int, int] | None = None,
    classes: Sequence[str] | None = None,
    modality: str | None = None,
    seed: int = 0,
    fractions: Sequence[float] = (0.6, 0.2, 0.2),
    workers: int = 1,
    strict: bool = False,
    overwrite: bool = False,
    command: str = "",
    progress: bool = True,
) -> Dataset:
    """Write the slices of NIfTI volumes, or the volumes themselves, as a prepared dataset.

    The entry `source` of `dataset.json` lists the names of the annotators in their order, and the skipped cases.

    Args:
        source: folder in one of the layouts of `nifti_layout`, or with files that match `patterns`; or a table.
        out: folder of the dataset to write.
        patterns: where the images and labels are, if the folder has another layout.
        slicing: slicing options.
        merge: mapping from old to new labels, applied at once; other labels are kept.
        classes: class names, background first; by default those of dataset.json, or numbers.
        modality: DICOM modality of the images (CT, MR, PT), if known.
        seed: seed of the split.
        fractions: shares of train, val and test, by patient.
        workers: number of processes; does not affect the result.
        strict: raise an error for the first unusable case instead of skipping it.
        overwrite: replace an existing dataset.
        command: command line to store in the dataset.
        progress: show progress bars.

    Raises:
        ConfigError: an option is invalid.
        DataError: the source has no usable case, or its labels are not 0 to K-1.
        OutputError: `out` exists and `overwrite` is false, or it cannot be written.
    """
    source, out = Path(source), Path(out)
    check_replaceable(out, overwrite=overwrite, marker="dataset.json")
    split_patients([], seed=seed, fractions=fractions)  # validate before reading
    slicing = slicing or Slicing()
    skipped = SkippedCases(strict)
    found = _find(source, patterns, skipped)
    scans, _, plan = _survey(source, found, slicing, dict(merge or {}), classes, skipped, progress)
    splits: dict[str, list[str]] = {}  # filled while reading, before splits.json is written

    def cases() -> Iterator[Case]:
        results = in_order(partial(cases_of_scan, plan=plan), scans, workers)
        for scan, result in tqdm(results, desc="volumes", unit="volume", total=len(scans), disable=not progress):
            slices: list[Case] = []
            with skipped.unless_good(scan.case):
                slices = result()
            if slices and scan.split and scan.patient not in (members := splits.setdefault(scan.split, [])):
                members.append(scan.patient)
            yield from slices

    origin: dict[str, JsonValue] = {
        "kind": "nifti",
        "layout": found.layout,
        "raters": [*plan.annotators],
        "slices": slicing.slices,
        "merge": {str(old): new for old, new in plan.merge.items()},
        "num_cases": found.num_cases,
        "left_out": skipped.reasons,  # filled while reading, before the manifest is written
    }
    return write_dataset(
        out,
        name=source.resolve().name,
        classes=plan.classes,
        num_annotators=len(plan.annotators),
        image_shape=(plan.channels, *plan.size),
        image_dtype=plan.dtype,
        intensity=_intensity(slicing.window),
        cases=cases(),
        dims=3 if slicing.volumes else 2,
        splits=splits if found.has_splits else None,
        seed=seed,
        fractions=fractions,
        spacing_mm=plan.spacing_mm,
        plane=slicing.plane,
        modality=modality,
        source=origin,
        command=command,
        overwrite=overwrite,
    )


def preview_nifti(
    source: AnyPath,
    *,
    patterns: FilePatterns | None = None,
    slicing: Slicing | None = None,
    merge: Mapping[int, int] | None = None,
    classes: Sequence[str] | None = None,
    strict: bool = False,
    progress: bool = True,
) -> Preview:
    """Return what `prepare_nifti` would read, from headers and, without `classes`, from labels."""
    source, skipped = Path(source), SkippedCases(strict)
    found = _find(source, patterns, skipped)
    slicing = slicing or Slicing()
    scans, stacks, plan = _survey(source, found, slicing, dict(merge or {}), classes, skipped, progress)
    cases = []
    for scan, stack in zip(scans, stacks, strict=True):
        grid = " x ".join(map(str, stack.grid))
        spacing = " x ".join(f"{mm:.3g}" for mm in stack.spacing_mm)
        cases.append(PreviewedCase(scan, f"{grid} voxels of {spacing} mm"))
    return Preview(
        cases=cases, annotators=plan.annotators, classes=plan.classes, size=plan.size, channels=plan.channels
    )


def _find(source: Path, patterns: FilePatterns | None, skipped: SkippedCases) -> FoundFiles:
    if source.suffix.lower() == ".csv":
        return find_in_table(source)
    if patterns is None:
        return find_annotated_scans(source, skipped)
    return find_by_patterns(source, patterns, SUFFIXES, skipped)


def _survey(
    folder: Path,
    found: FoundFiles,
    slicing: Slicing,
    merge: dict[int, int],
    classes: Sequence[str] | None,
    skipped: SkippedCases,
    progress: bool,
) -> tuple[list[AnnotatedImage], list[Volume], SlicingPlan]:
    """Determine the properties that all cases share from headers; read labels only if no class names are given.

    Returns:
        Usable cases, their headers as stacks of slices, and the common properties.
    """
    names = tuple(classes) if classes else _merged_names(read_class_names(folder), merge)
    if names and not 2 <= len(names) <= MISSING:
        raise ConfigError(
            f"there are {len(names)} class names; give 2 to {MISSING}, background first, separated by spaces"
        )
    if names and len(set(names)) < len(names):
        raise ConfigError(f"two of the classes {', '.join(names)} have the same name; set --classes")
    read_labels = read_nifti_header if names else partial(read_merged, merge=merge)
    scans: list[AnnotatedImage] = []
    stacks: list[Volume] = []
    labels, types, channels = {0}, set[np.dtype[Any]](), Counter[int]()
    for scan in tqdm(found.cases, desc="reading headers", unit="volume", disable=not progress):
        with skipped.unless_good(scan.case):
            images, drawn = on_one_grid(scan, partial(read_nifti_header, channels=True), read_labels)
            scans.append(scan)
            stacks.append(to_slices(images[0], plane_of(slicing, images[0])))
            types |= {image.values.dtype for image in images}
            channels[sum(image.values.shape[3] for image in images)] += 1
            if not names:
                labels |= {int(label) for volume in drawn.values() for label in np.unique(volume.values)}
    if not scans:
        raise DataError(f"{folder} has no usable case; see the messages above")
    frames = [frame_of(stack, slicing, size=None) for stack in stacks]
    check_resampled(slicing.spacing, [stack.grid[1:] for stack in stacks], [frame.size for frame in frames])
    height, width = (max(frame.size[axis] for frame in frames) for axis in (0, 1))
    return (
        scans,
        stacks,
        SlicingPlan(
            slicing=slicing,
            size=slicing.size or (height, width),
            channels=channels.most_common(1)[0][0],
            dtype=_stored_type(slicing.window, types),
            spacing_mm=_common([pixel_mm(stack, frame) for stack, frame in zip(stacks, frames, strict=True)]),
            classes=names or _numbered(labels, folder),
            merge=merge,
            annotators=tuple(found.annotators),
        ),
    )


def _merged_names(names: dict[int, str] | None, merge: Mapping[int, int]) -> tuple[str, ...] | None:
    """Return the names of the labels after merging; labels that keep their number keep their name."""
    if names is None:
        return None
    left: dict[int, str] = {}
    for old in sorted(names, key=lambda label: (label in merge, label)):
        left.setdefault(merge.get(old, old), names[old])
    if sorted(left) != list(range(len(left))):
        numbers = ", ".join(map(str, sorted(left)))
        raise DataError(f"after merging, the labels of dataset.json are {numbers}, not 0 to K-1; change --merge")
    return tuple(left[label] for label in range(len(left)))


def _numbered(labels: set[int], folder: Path) -> tuple[str, ...]:
    """Return names for the labels found."""
    found = [0, *sorted(labels - {0})]
    if len(found) == 1:
        raise DataError(f"{folder}: all labels are 0; check the label files")
    wrong = [f"{label}:{index}" for index, label in enumerate(found) if label != index]
    if wrong or len(found) > MISSING:
        listed = ", ".join(map(str, found[:10])) + (", ..." if len(found) > 10 else "")
        raise DataError(
            f"{folder}: the labels are {listed}, but they must be 0 to K-1; renumber them "
            f"(such as --merge {' '.join(wrong[:10])}), or name all classes with --classes"
        )
    return ("background", *(f"class {label}" for label in found[1:]))


def _common(spacings: list[tuple[float, float]]) -> tuple[float, float] | None:
    return spacings[0] if np.allclose(spacings, spacings[0], rtol=1e-4) else None


def _intensity(window: Window | None) -> Intensity:
    return Intensity(kind="window", low=window[0], high=window[1]) if window else Intensity(kind="zscore")


def _stored_type(window: Window | None, types: set[np.dtype[Any]]) -> np.dtype[Any]:
    """Return int16 if it can represent every value, otherwise float32."""
    limits = np.iinfo(np.int16)
    low_fits = window is not None and limits.min <= window[0] <= limits.max  # value of the padding
    fits = low_fits and all(np.can_cast(dtype, np.int16) for dtype in types)
    return np.dtype(np.int16 if fits else np.float32)

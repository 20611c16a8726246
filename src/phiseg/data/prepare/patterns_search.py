"""Find images and the labels of their annotators by patterns."""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from tqdm import tqdm

from phiseg.core.errors import ConfigError, DataError
from phiseg.data.prepare.found_files import (
    AnnotatedImage,
    FoundFiles,
    annotators_of,
    by_numbers,
    read_patients,
    split_name,
)
from phiseg.data.prepare.patterns import FilePatterns, compile_pattern
from phiseg.data.prepare.patterns_hints import no_image, no_label, unknown_layout
from phiseg.data.prepare.patterns_match import case_names, labels_by_case, labels_of_target, matches
from phiseg.data.prepare.skipped import SkippedCases
from phiseg.data.splits import SPLIT_NAMES


def find_by_patterns(
    folder: Path, patterns: FilePatterns, suffixes: Sequence[str], skipped: SkippedCases
) -> FoundFiles:
    """List the cases of a folder whose files match patterns; images without labels are skipped.

    Args:
        folder: folder to search, with all folders in it.
        patterns: patterns of images and labels.
        suffixes: suffixes of the files to consider, in lower case.
        skipped: collects images without labels and labels without images.

    Raises:
        ConfigError: no file matches a pattern, no label belongs to an image, or the target is missing or unknown.
        DataError: two files are the same image or the same label.
    """
    image_patterns = [compile_pattern(text, "--image") for text in patterns.images]
    rater_pattern = compile_pattern(patterns.rater, "--rater")
    paths = _files(folder, suffixes)
    channels = [matches(pattern, paths) for pattern in image_patterns]
    for text, found in zip(patterns.images, channels, strict=True):
        if not found:
            raise no_image(text, paths, folder, patterns)
    labels = matches(rater_pattern, [path for path in paths if not any(path in found for found in channels)])
    if not labels or "rater" not in rater_pattern.groupindex:
        raise no_label(paths, folder, patterns)
    names = case_names(channels)
    drawn, unmatched = labels_by_case(
        labels_of_target(labels, patterns), {path: case for case_of in names for path, case in case_of.items()}
    )
    if not drawn:
        raise ConfigError(
            f"{folder}: no label of --rater '{patterns.rater}' belongs to an image of --image "
            f"'{patterns.images[0]}'; write {{case}} in both patterns"
        )
    if unmatched:
        skipped.note(f"{len(unmatched)} labels without an image, such as {folder / unmatched[0]}")
    images_by_case: dict[str, dict[int, str]] = defaultdict(dict)
    for number, case_of in enumerate(names):
        for path, case in case_of.items():
            images_by_case[case][number] = path
    listed = read_patients(folder / "patients.csv", set(images_by_case))
    if "patient" not in image_patterns[0].groupindex:
        _note_patients({case: path for path, case in names[0].items() if case not in listed})
    cases = []
    for case, images in sorted(images_by_case.items(), key=lambda item: by_numbers(item[0])):
        with skipped.unless_good(case):
            if len(images) < len(patterns.images):
                first = next(iter(images.values()))
                raise DataError(f"{folder / first} has no image of the same case for each pattern of --image")
            if case not in drawn:
                raise DataError(f"{folder / images[0]} has no label that matches --rater '{patterns.rater}'")
            parts = channels[0][images[0]].groupdict()
            patient = listed.get(case) or parts.get("patient") or case
            files = tuple(folder / images[number] for number in range(len(images)))
            labels_of_case = {rater: folder / path for rater, path in drawn[case].items()}
            cases.append(AnnotatedImage(case, patient, files, labels_of_case, split_name(parts.get("split"))))
    if not cases:
        raise DataError(f"{folder} has no complete case; see the messages above")
    return FoundFiles("patterns", cases, len(images_by_case), annotators_of(cases))


def _note_patients(images: dict[str, str]) -> None:
    """Print a note if the folders of images suggest that several cases are of one patient.

    Args:
        images: image of each case whose patient is not known.
    """
    repeated = [case for case in images if "/" in case]
    shared = [folder for folder in _shared_folders(images.values()) if split_name(folder.name) not in SPLIT_NAMES]
    if repeated:
        what = f"cases of one name in several folders, such as {repeated[0]},"
    elif len(shared) > 1:
        what = f"cases in one folder, such as {max(shared)},"
    else:
        return
    tqdm.write(
        f"phiseg: {what} count as different patients; if they are not, write {{patient}} in --image, or list them "
        "in patients.csv",
        file=sys.stderr,
    )


def _shared_folders(images: Iterable[str]) -> set[PurePosixPath]:
    """Return, for each image, the nearest folder that contains several images.

    >>> sorted(map(str, _shared_folders(["a/1/i.png", "a/2/i.png", "b/3/i.png"])))
    ['.', 'a']
    """
    parents = [PurePosixPath(image).parents for image in images]
    numbers = Counter(folder for each in parents for folder in each)
    nearest = (next((folder for folder in each if numbers[folder] > 1), None) for each in parents)
    return {folder for folder in nearest if folder is not None}


def layout_error(folder: Path, expected: str, suffixes: Sequence[str]) -> ConfigError:
    """Return the error for a folder without a known layout.

    Args:
        folder: folder that was searched.
        expected: known layouts.
        suffixes: suffixes of the files to consider, in lower case.
    """
    return unknown_layout(_files(folder, suffixes), folder, expected)


def _files(folder: Path, suffixes: Sequence[str]) -> list[str]:
    """Return the relative paths of all files with one of the suffixes, except hidden ones."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give the folder that contains the cases")
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.name.lower().endswith(tuple(suffixes)))
    shown = [path.as_posix() for path in found if not any(part.startswith(".") for part in path.parts)]
    return sorted(shown, key=by_numbers)

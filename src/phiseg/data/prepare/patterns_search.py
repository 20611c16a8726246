"""Find images and the labels of their annotators by patterns, and match labels to images."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from phiseg.core.errors import ConfigError, DataError
from phiseg.data.prepare.found_files import (
    AnnotatedImage,
    FoundFiles,
    annotators_of,
    by_numbers,
    read_patients,
    split_name,
    stem_of,
    unique_names,
)
from phiseg.data.prepare.patterns import FilePatterns, compile_pattern, no_match
from phiseg.data.prepare.skipped import SkippedCases

_Found = dict[str, re.Match[str]]
"""Match of each path relative to the folder."""


def find_by_patterns(
    folder: Path, patterns: FilePatterns, suffixes: Sequence[str], skipped: SkippedCases
) -> FoundFiles:
    """List the cases of a folder whose files match patterns; images without labels are skipped.

    A label without the part `case` belongs to the image whose name begins the name of the label, or to the only
    image in its folder.

    Args:
        folder: folder to search, with all folders in it.
        patterns: patterns of images and labels.
        suffixes: suffixes of the files to consider, in lower case.
        skipped: collects images without labels and labels without images.

    Raises:
        ConfigError: no file matches a pattern, or the target is missing or unknown.
        DataError: two files are the same image or the same label.
    """
    image_patterns = [compile_pattern(text, "--image") for text in patterns.images]
    rater_pattern = compile_pattern(patterns.rater, "--rater")
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give the folder that contains the cases")
    paths = _files(folder, suffixes)
    channels = [
        _matches(pattern, text, "--image", paths, folder)
        for pattern, text in zip(image_patterns, patterns.images, strict=True)
    ]
    names = [_case_names(found, patterns.images[number]) for number, found in enumerate(channels)]
    images_by_case: dict[str, dict[int, str]] = defaultdict(dict)
    for number, case_of in enumerate(names):
        for path, case in case_of.items():
            images_by_case[case][number] = path
    taken = {path for found in channels for path in found}
    others = [path for path in paths if path not in taken]
    labels = _of_target(_matches(rater_pattern, patterns.rater, "--rater", others, folder), patterns)
    drawn = _by_case(labels, {path: case for case_of in names for path, case in case_of.items()}, skipped, folder)
    listed = read_patients(folder / "patients.csv", set(images_by_case))
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
            cases.append(AnnotatedImage(case, patient, files, drawn[case], split_name(parts.get("split"))))
    if not cases:
        raise DataError(
            f"{folder}: no label of --rater '{patterns.rater}' belongs to an image of --image "
            f"'{patterns.images[0]}'; write {{case}} in both patterns"
        )
    return FoundFiles("patterns", cases, len(images_by_case), annotators_of(cases))


def _files(folder: Path, suffixes: Sequence[str]) -> list[str]:
    """Return the relative paths of all files with one of the suffixes, except hidden ones."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.name.lower().endswith(tuple(suffixes)))
    shown = [path.as_posix() for path in found if not any(part.startswith(".") for part in path.parts)]
    return sorted(shown, key=by_numbers)


def _matches(pattern: re.Pattern[str], text: str, option: str, paths: list[str], folder: Path) -> _Found:
    found = {path: match for path in paths if (match := pattern.fullmatch(path))}
    if not found:
        raise no_match(option, text, paths, str(folder))
    return found


def _case_names(found: _Found, text: str) -> dict[str, str]:
    """Return the case of each image: the part `case`, or a unique name."""
    first = next(iter(found.values()))
    if "case" in first.re.groupindex:
        names = [match["case"] for match in found.values()]
        twice = [name for name, number in Counter(names).items() if number > 1]
        if twice:
            same = [path for path, name in zip(found, names, strict=True) if name == twice[0]]
            raise DataError(
                f"{same[0]} and {same[1]} are both images of case '{twice[0]}' by --image '{text}'; use a pattern "
                "that matches only one of them"
            )
    else:
        names = unique_names([Path(path) for path in found])
    return dict(zip(found, names, strict=True))


def _of_target(labels: _Found, patterns: FilePatterns) -> _Found:
    """Return the labels of the target."""
    has_part = any("target" in match.re.groupindex for match in labels.values())
    if not has_part:
        if patterns.target:
            raise ConfigError(
                f"--target {patterns.target} has no effect without the part {{target}} in --rater "
                f"'{patterns.rater}'; add it, such as 'task{{target}}_seg{{rater}}.nii.gz'"
            )
        return labels
    targets = sorted({match["target"] for match in labels.values()}, key=by_numbers)
    if patterns.target is None and len(targets) > 1:
        raise ConfigError(f"the labels have {len(targets)} targets: {', '.join(targets)}; choose one with --target")
    if patterns.target is not None and patterns.target not in targets:
        raise ConfigError(f"no label has the target '{patterns.target}'; the targets are {', '.join(targets)}")
    return {path: match for path, match in labels.items() if match["target"] == (patterns.target or targets[0])}


def _by_case(
    labels: _Found, case_of: dict[str, str], skipped: SkippedCases, folder: Path
) -> dict[str, dict[str, Path]]:
    """Return the label file of each annotator of each case."""
    matcher = _Matcher(case_of)
    drawn: dict[str, dict[str, Path]] = defaultdict(dict)
    homeless = []
    for path, match in labels.items():
        case, rater = matcher.case_of_label(path, match), match["rater"]
        if case is None:
            homeless.append(path)
        elif rater in drawn[case]:
            raise DataError(
                f"{drawn[case][rater]} and {folder / path} are both labels of annotator '{rater}' for case "
                f"'{case}'; use a pattern that distinguishes them"
            )
        else:
            drawn[case][rater] = folder / path
    if homeless:
        skipped.note(f"{len(homeless)} labels without an image, such as {folder / homeless[0]}")
    return drawn


class _Matcher:
    """Assignment of labels to the cases of images."""

    def __init__(self, case_of: dict[str, str]) -> None:
        self._cases = set(case_of.values())
        stems = Counter(stem_of(Path(path)) for path in case_of)
        self._stems = {case: case for case in self._cases}
        self._stems |= {stem: case for path, case in case_of.items() if stems[stem := stem_of(Path(path))] == 1}
        self._folders: dict[str, set[str]] = defaultdict(set)
        for path, case in case_of.items():
            for parent in PurePosixPath(path).parents:
                self._folders[str(parent)].add(case)

    def case_of_label(self, path: str, match: re.Match[str]) -> str | None:
        """Return the case of a label, or None if it has no image."""
        if case := match.groupdict().get("case"):
            return case if case in self._cases else None
        name = stem_of(Path(path))
        ends = [len(name), *(place.start() for place in re.finditer(r"[^a-zA-Z0-9]", name))]
        for end in sorted(ends, reverse=True):
            if name[:end] in self._stems:
                return self._stems[name[:end]]
        for parent in PurePosixPath(path).parents:
            if len(inside := self._folders[str(parent)]) == 1 and str(parent) != ".":
                return next(iter(inside))
        return None

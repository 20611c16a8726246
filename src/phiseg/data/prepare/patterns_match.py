"""Match the paths of a folder with patterns, and assign labels to the cases of images."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from phiseg.core.errors import ConfigError, DataError
from phiseg.data.prepare.found_files import by_numbers, stem_of, unique_names
from phiseg.data.prepare.patterns import FilePatterns

Found = dict[str, re.Match[str]]
"""Match of each path relative to the folder."""


def matches(pattern: re.Pattern[str], paths: Iterable[str]) -> Found:
    """Return the paths that match a pattern."""
    return {path: match for path in paths if (match := pattern.fullmatch(path))}


def case_names(channels: Sequence[Found]) -> list[dict[str, str]]:
    """Return the case of each image: the part `case`, or a unique name.

    If two folders have images of the same case, the names of all cases begin with their folders. This is not
    possible with several channels, which may be in different folders.

    Args:
        channels: images of each channel.

    Raises:
        DataError: two images of a folder are the same channel of a case.
    """
    names = [_names(found, with_folder=False) for found in channels]
    if len(channels) == 1 and any(_twice(case_of) for case_of in names):
        names = [_names(found, with_folder=True) for found in channels]
    for case_of in names:
        if case := _twice(case_of):
            first, second = [path for path, name in case_of.items() if name == case][:2]
            raise DataError(
                f"{first} and {second} are both images of case '{case}'; use a pattern of --image that matches "
                "only one of them"
            )
    return names


def _names(found: Found, *, with_folder: bool) -> dict[str, str]:
    if not all("case" in match.re.groupindex for match in found.values()):
        return dict(zip(found, unique_names([Path(path) for path in found]), strict=True))
    if not with_folder:
        return {path: match["case"] for path, match in found.items()}
    return {
        path: (PurePosixPath(path[: match.start("case")] + "-").parent / match["case"]).as_posix()
        for path, match in found.items()
    }


def _twice(case_of: dict[str, str]) -> str | None:
    return next((case for case, number in Counter(case_of.values()).items() if number > 1), None)


def labels_of_target(labels: Found, patterns: FilePatterns) -> Found:
    """Return the labels of the target.

    Raises:
        ConfigError: the target is missing or unknown.
    """
    has_part = any("target" in match.re.groupindex for match in labels.values())
    if not has_part:
        if patterns.target:
            raise ConfigError(
                f"--target {patterns.target} has no effect without the part {{target}} in --rater "
                f"'{patterns.rater}'; add it, such as 'task{{target}}_seg{{rater}}.nii.gz'"
            )
        return labels
    targets = targets_of(labels)
    if patterns.target is None and len(targets) > 1:
        raise ConfigError(f"the labels have {len(targets)} targets: {', '.join(targets)}; choose one with --target")
    if patterns.target is not None and patterns.target not in targets:
        raise ConfigError(f"no label has the target '{patterns.target}'; the targets are {', '.join(targets)}")
    return {path: match for path, match in labels.items() if match["target"] == (patterns.target or targets[0])}


def targets_of(labels: Found) -> list[str]:
    """Return the sorted names of all targets."""
    return sorted({match["target"] for match in labels.values()}, key=by_numbers)


def labels_by_case(labels: Found, case_of: dict[str, str]) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Assign labels to the cases of images.

    A label without the part `case` belongs to the image whose name begins the name of the label, or to the only
    image in its folder.

    Args:
        labels: labels of one target.
        case_of: case of each image.

    Returns:
        Path of the label of each annotator of each case, and the labels without an image.

    Raises:
        DataError: two labels of a case have the same annotator, or a label could belong to several cases.
    """
    matcher = _Matcher(case_of)
    drawn: dict[str, dict[str, str]] = defaultdict(dict)
    unmatched = []
    for path, match in labels.items():
        case, rater = matcher.case_of_label(path, match), match["rater"]
        if case is None:
            unmatched.append(path)
        elif rater in drawn[case]:
            raise DataError(
                f"{drawn[case][rater]} and {path} are both labels of annotator '{rater}' for case '{case}'; use a "
                "pattern of --rater that distinguishes them"
            )
        else:
            drawn[case][rater] = path
    return drawn, unmatched


class _Matcher:
    """Assignment of labels to the cases of images."""

    def __init__(self, case_of: dict[str, str]) -> None:
        stems = {path: stem_of(Path(path)) for path in case_of}
        number = Counter(stems.values())
        self._unique = {case: case for case in case_of.values()}
        for path, case in case_of.items():
            if number[stems[path]] == 1 and "/" not in case:  # names with folders depend on the folder of the label
                self._unique[stems[path]] = case
        self._folders: dict[str, set[str]] = defaultdict(set)
        self._named: dict[tuple[str, str], set[str]] = defaultdict(set)  # by folder, and by name without folder
        for path, case in case_of.items():
            for parent in PurePosixPath(path).parents:
                self._folders[str(parent)].add(case)
                self._named[str(parent), PurePosixPath(case).name].add(case)

    def case_of_label(self, path: str, match: re.Match[str]) -> str | None:
        """Return the case of a label, or None if it has no image."""
        if name := match.groupdict().get("case"):
            cases = self._cases_named(name, path)
            if len(cases) > 1:
                raise DataError(
                    f"{path} is a label of case '{name}', which could be {' or '.join(sorted(cases))}; use a "
                    "pattern of --image that matches only one of them"
                )
            return next(iter(cases), None)
        name = stem_of(Path(path))
        ends = [len(name), *(place.start() for place in re.finditer(r"[^a-zA-Z0-9]", name))]
        for end in sorted(ends, reverse=True):
            if len(cases := self._cases_named(name[:end], path)) == 1:
                return next(iter(cases))
        for parent in PurePosixPath(path).parents:
            if len(inside := self._folders.get(str(parent), ())) == 1 and str(parent) != ".":
                return next(iter(inside))
        return None

    def _cases_named(self, name: str, path: str) -> set[str]:
        """Return the case of this name, or those of this name in the nearest folder that has images."""
        if name in self._unique:
            return {self._unique[name]}
        nearest = next(parent for parent in PurePosixPath(path).parents if str(parent) in self._folders)
        return self._named.get((str(nearest), name), set())

"""Errors for patterns that find nothing: the files of the folder, and patterns that work on them.

The kind of a path is its form, such as `task*_seg*.nii.gz`. To suggest patterns, the `*` of kinds are replaced by
named parts, and the resulting patterns are tested on the files.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import islice, product, takewhile
from pathlib import Path

from phiseg.core.errors import ConfigError, PhisegError
from phiseg.data.prepare.patterns import FilePatterns, compile_pattern
from phiseg.data.prepare.patterns_match import case_names, labels_by_case, labels_of_target, matches, targets_of

MAX_KINDS = 6
"""Number of kinds of file names that an error shows."""
MAX_FOLDERS = 2
"""Number of forms of folder names up to which they are part of a kind."""
MAX_FILES = 300
"""Number of files of a kind on which suggestions are tested."""
MAX_CANDIDATES = 60
"""Number of pairs of patterns that are tested, the most plausible first."""

_NUMBER = re.compile(r"(?<![^\W_])[0-9a-fA-F]{8,}(?![^\W_])|\d+")
"""A hash or a number in a name."""
_LABEL_WORD = re.compile(r"seg|mask|label|annot|rater|reader|expert|truth|contour", re.IGNORECASE)
"""Part of the names of labels, which are not suggested as images."""


def no_image(text: str, paths: Sequence[str], folder: Path, patterns: FilePatterns) -> ConfigError:
    """Return the error for a pattern of the images that no file matches.

    Args:
        text: pattern.
        paths: relative paths of all files of the right type.
        folder: folder that was searched.
        patterns: patterns of the user.
    """
    if not paths:
        return ConfigError(f"{folder} contains no files of this type; check the folder")
    better = None
    if len(patterns.images) == 1:
        better = suggest(paths, rater=patterns, near=text) or suggest(paths, near=text)
    hint = f"did you mean {_shown(better, patterns)}?" if better else "write the form of the names of the images"
    return ConfigError(f"no file matches --image '{text}'; {_kinds_in(folder, paths)}; {hint}")


def no_label(paths: Sequence[str], folder: Path, patterns: FilePatterns) -> ConfigError:
    """Return the error for a pattern of the labels that no file matches, or that does not have the part `rater`."""
    if "rater" in compile_pattern(patterns.rater, "--rater").groupindex:
        problem = f"no file matches --rater '{patterns.rater}'"
    else:
        problem = f"--rater '{patterns.rater}' does not show which part of the name is the annotator"
    images = [compile_pattern(text, "--image") for text in patterns.images]
    others = [path for path in paths if not any(image.fullmatch(path) for image in images)]
    if not others:
        return ConfigError(f"{problem}; {folder} has only files that match --image")
    better = suggest(paths, images=patterns, near=patterns.rater)
    hint = f"write {{rater}} where the annotator is, in names such as {folder / others[0]}"
    if better:
        hint = f"did you mean {_shown(better, patterns)}?"
    return ConfigError(f"{problem}; {_kinds_in(folder, others)}; {hint}")


def unknown_layout(paths: Sequence[str], folder: Path, expected: str) -> ConfigError:
    """Return the error for a folder without a known layout, for which the user gave no patterns."""
    if not paths:
        return ConfigError(f"{folder} has no cases; expected {expected}")
    better = suggest(paths)
    hint = f", such as {_shown(better)}" if better else " with --image and --rater; write {rater} for the annotator"
    return ConfigError(f"{_kinds_in(folder, paths)}, which is not a known layout; give the form of the names{hint}")


def suggest(
    paths: Sequence[str],
    *,
    images: FilePatterns | None = None,
    rater: FilePatterns | None = None,
    near: str | None = None,
) -> FilePatterns | None:
    """Return patterns that work on the files of a folder, or None if there are none.

    Args:
        paths: relative paths of the files.
        images: patterns whose images are used.
        rater: patterns whose labels are used.
        near: pattern that the missing one should resemble; None prefers rare files as images.
    """
    kinds = kinds_of_names(paths)
    files = {
        kind: kinds[kind][:MAX_FILES] for kind in sorted(kinds, key=lambda kind: -len(kinds[kind]))[:MAX_KINDS]
    }
    closest = sorted(files, key=_distance(near) if near else lambda kind: len(kinds[kind]))
    image_kinds = [kind for kind in closest if not _LABEL_WORD.search(kind)]
    label_kinds = sorted(closest, key=lambda kind: not _LABEL_WORD.search(kind)) if images is None else closest
    if images:
        image_kinds = _matched(files, compile_pattern(images.images[0], "--image"))
    if rater:
        label_kinds = _matched(files, compile_pattern(rater.rater, "--rater"))
    tested = [path for members in files.values() for path in members]

    def candidates() -> Iterator[FilePatterns]:
        for with_folder, image_kind, label_kind in product((False, True), image_kinds, label_kinds):
            shared = _shared_beginning(image_kind, label_kind)
            image_globs = (
                [images.images] if images else [(glob,) for glob in _globs(image_kind, shared, with_folder)]
            )
            rater_globs = [rater.rater] if rater else _rater_globs(label_kind, shared, with_folder)
            for image, label in product(image_globs, rater_globs):
                yield FilePatterns(images=image, rater=label, target=rater.target if rater else None)

    working = (_working(patterns, tested) for patterns in islice(candidates(), MAX_CANDIDATES))
    return next(filter(None, working), None)


def kinds_of_names(paths: Iterable[str]) -> dict[str, list[str]]:
    """Group paths by their kind: the name and, if it has one or two forms, the last folder, with `*` for numbers.

    >>> kinds_of_names(["case1/image.nii", "case2/image.nii", "case1/seg01.nii"])
    {'case*/image.nii': ['case1/image.nii', 'case2/image.nii'], 'case*/seg*.nii': ['case1/seg01.nii']}
    """
    forms = {path: [_without_numbers(part) for part in path.split("/")[-2:]] for path in paths}
    folders: dict[str, set[str]] = {}
    for *folder, name in forms.values():
        folders.setdefault(name, set()).update(folder)
    kinds: dict[str, list[str]] = {}
    for path, form in forms.items():
        kind = "/".join(form) if len(folders[form[-1]]) <= MAX_FOLDERS else form[-1]
        kinds.setdefault(kind, []).append(path)
    return kinds


def _without_numbers(name: str) -> str:
    stem, dot, suffixes = name.partition(".")
    return _NUMBER.sub("*", stem) + dot + suffixes


def _kinds_in(folder: Path, paths: Sequence[str]) -> str:
    counts = Counter({kind: len(members) for kind, members in kinds_of_names(paths).items()})
    shown = ", ".join(f"{kind} ({number})" for kind, number in counts.most_common(MAX_KINDS))
    return f"{folder} has {shown}{', ...' if len(counts) > MAX_KINDS else ''}"


def _shown(better: FilePatterns, given: FilePatterns | None = None) -> str:
    """Return the options that differ from the given ones."""
    options = []
    if given is None or better.images != given.images:
        options.append(f"--image '{better.images[0]}'")
    if given is None or better.rater != given.rater:
        options.append(f"--rater '{better.rater}'")
        options += [f"--target {better.target}"] if better.target else []
    return " ".join(options)


def _distance(text: str) -> Callable[[str], float]:
    """Return a function that measures how much the name of a kind differs from that of a pattern."""
    return lambda kind: -SequenceMatcher(None, _plain(text), _plain(kind)).ratio()


def _plain(text: str) -> str:
    """Return the letters in the name of a pattern."""
    return re.sub(r"\(\?P<\w+>[^)]*\)|\{\w+\}|\\d\+?|[*\\]", "", text).rpartition("/")[2].lower()


def _matched(files: dict[str, list[str]], pattern: re.Pattern[str]) -> list[str]:
    return [kind for kind, members in files.items() if matches(pattern, members)]


def _shared_beginning(first: str, second: str) -> str:
    """Return what the names of two kinds have in common up to the last `*`, which identifies a case.

    >>> _shared_beginning("sub-*_ses-*_FLAIR.nii", "sub-*_ses-*_rater*.nii")
    'sub-*_ses-*'
    """
    pairs = zip(first.rpartition("/")[2], second.rpartition("/")[2], strict=False)
    shared = "".join(letter for letter, other in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return shared[: shared.rfind("*") + 1]


def _globs(kind: str, case: str, with_folder: bool) -> list[str]:
    """Return the name of a kind and the same with {case} for its beginning, then both with the folder."""
    folder, slash, name = kind.rpartition("/")
    names = [name, "{case}" + name.removeprefix(case)] if case else [name]
    return [*names, *(f"{folder}/{name}" for name in names)] if slash and with_folder else names


def _rater_globs(kind: str, case: str, with_folder: bool) -> Iterator[str]:
    """Yield globs of a kind with {rater} for a `*`, the last one first; then also with {target} for another one."""
    forms = [glob.split("*") for glob in _globs(kind, case, with_folder)]
    for form in forms:
        for rater in reversed(range(1, len(form))):
            yield _joined(form, {rater: "{rater}"})
    for form in forms:
        for rater in reversed(range(1, len(form))):
            for target in range(1, len(form)):
                if target != rater:
                    yield _joined(form, {rater: "{rater}", target: "{target}"})


def _joined(pieces: list[str], parts: dict[int, str]) -> str:
    """Return pieces of a glob joined by `*`, or by the part before a piece."""
    return pieces[0] + "".join(parts.get(number, "*") + piece for number, piece in enumerate(pieces[1:], start=1))


def _working(patterns: FilePatterns, paths: Sequence[str]) -> FilePatterns | None:
    """Return patterns that distinguish cases and annotators, with a target if they need one; otherwise None."""
    channels = [matches(compile_pattern(text, "--image"), paths) for text in patterns.images]
    others = [path for path in paths if not any(path in found for found in channels)]
    labels = matches(compile_pattern(patterns.rater, "--rater"), others)
    if not all(channels) or not labels:
        return None
    if "{target}" in patterns.rater and patterns.target is None:
        if len(targets := targets_of(labels)) == len(labels):
            return None
        patterns = replace(patterns, target=targets[0])
    try:
        case_of = {path: case for names in case_names(channels) for path, case in names.items()}
        drawn, unmatched = labels_by_case(labels_of_target(labels, patterns), case_of)
    except PhisegError:
        return None
    raters = [rater for labels_of_case in drawn.values() for rater in labels_of_case]
    annotated = 2 * len(drawn) >= len(set(case_of.values()))
    return patterns if annotated and len(set(raters)) < len(raters) > len(unmatched) else None

r"""Patterns that find the images and the labels of a folder.

A pattern is a glob or a regular expression. It is compared with the end of each path:

    image.nii.gz                             every file of this name, in any folder
    annotation_*.nii.gz                      * is part of a name, ** any folders; a single * is the annotator
    {case}/task{target}_seg{rater}.nii.gz    named parts of a glob
    task01_seg(?P<rater>\d+)\.nii\.gz        a regular expression has at least one named group
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher

from phiseg.core.errors import ConfigError, nearest

PARTS = ("case", "rater", "target", "patient", "split")
"""Named parts of a pattern."""
MAX_KINDS = 6
"""Number of kinds of file names that an error shows."""
MAX_FOLDERS = 2
"""Number of forms of folder names up to which they are part of a kind."""

_TOKEN = re.compile(
    r"\{(?P<part>\w+)\}|(?P<folders>\*\*/)|(?P<rest>\*\*)|(?P<star>\*)|\?|\[!?[^\]]+\]|.", re.DOTALL
)


@dataclass(frozen=True, kw_only=True)
class FilePatterns:
    """Where the images and labels are."""

    images: tuple[str, ...]
    """Pattern of the images, or one pattern per channel."""
    rater: str
    """Pattern of the label files."""
    target: str | None = None
    """Value of the part `target` in the names of the label files; None if there is only one."""


def compile_pattern(text: str, option: str) -> re.Pattern[str]:
    """Compile a pattern.

    >>> compile_pattern("{case}/seg{rater}.nii", "--rater").fullmatch("a/b/seg01.nii").groupdict()
    {'case': 'b', 'rater': '01'}

    Args:
        text: glob or regular expression.
        option: option for error messages. In a glob of `--rater`, a single `*` is the annotator.

    Raises:
        ConfigError: the pattern is invalid or has an unknown part.
    """
    expression = text if "(?P<" in text else _from_glob(text, star_is_rater=option == "--rater")
    try:
        pattern = re.compile(rf"(?:.*/)?(?:{expression})", re.DOTALL)
    except re.error as error:
        raise ConfigError(f"{option} '{text}' is not a valid pattern ({error}); fix it") from None
    for part in pattern.groupindex:
        if part not in PARTS:
            raise ConfigError(f"{option} '{text}': unknown part '{part}' ({nearest(part, PARTS)})")
    if option == "--rater" and "rater" not in pattern.groupindex:
        raise ConfigError(
            f"{option} '{text}' does not show which part of the name is the annotator; write {{rater}} there, "
            f"such as '{with_rater(text)}'"
        )
    return pattern


def _from_glob(text: str, *, star_is_rater: bool) -> str:
    tokens = list(_TOKEN.finditer(text))
    seen: set[str] = set()
    if star_is_rater and "{rater}" not in text and sum(bool(token["star"]) for token in tokens) == 1:
        tokens = list(_TOKEN.finditer(text.replace("*", "{rater}") if "**" not in text else text))
    return "".join(_expression(token, seen) for token in tokens)


def _expression(token: re.Match[str], seen: set[str]) -> str:
    if part := token["part"]:
        known = part in seen
        seen.add(part)
        # names of cases often contain the separator before the annotator, so they take as much as they can
        return f"(?P={part})" if known else f"(?P<{part}>[^/]+{'' if part == 'case' else '?'})"
    if token["folders"]:
        return "(?:.*/)?"
    if token["rest"]:
        return ".*"
    if token["star"]:
        return "[^/]*"
    if token[0] == "?":
        return "[^/]"
    if len(token[0]) > 1:
        return token[0].replace("[!", "[^")
    return re.escape(token[0])


def with_rater(text: str) -> str:
    """Return a glob in which the last number or `*` of the file name is the annotator.

    >>> with_rater("task*_seg*.nii.gz")
    'task*_seg{rater}.nii.gz'
    """
    folder, slash, name = text.rpartition("/")
    stem, dot, suffixes = name.partition(".")
    marked, count = re.subn(r"(\*|\d+)(?!.*(\*|\d))", "{rater}", stem)
    return f"{folder}{slash}{marked if count else stem + '{rater}'}{dot}{suffixes}"


def no_match(option: str, text: str, paths: Iterable[str], where: str) -> ConfigError:
    """Return the error for a pattern that no file matches: what there is, and the most similar glob.

    Args:
        option: option of the pattern.
        text: pattern.
        paths: relative paths of all files of the right type.
        where: folder that was searched.
    """
    kinds = kinds_of_names(paths)
    if not kinds:
        return ConfigError(f"{where} contains no files of this type; check the folder")
    shown = ", ".join(f"{kind} ({number})" for kind, number in kinds.most_common(MAX_KINDS))
    more = ", ..." if len(kinds) > MAX_KINDS else ""
    candidates = [kind for kind in kinds if option == "--image" or "*" in kind] or list(kinds)
    closest = max(candidates, key=lambda kind: (SequenceMatcher(None, _plain(text), _plain(kind)).ratio(), kind))
    reading = with_rater(closest) if option == "--rater" else closest
    return ConfigError(
        f"no file matches {option} '{text}'; {where} has {shown}{more}; did you mean {option} '{reading}'?"
    )


def kinds_of_names(paths: Iterable[str]) -> Counter[str]:
    """Count the kinds of paths: the name and, if it has one or two forms, the last folder, with `*` for numbers.

    >>> kinds_of_names(["case1/image.nii", "case2/image.nii", "case1/seg01.nii"])
    Counter({'case*/image.nii': 2, 'case*/seg*.nii': 1})
    """
    forms = [[_without_numbers(part) for part in path.split("/")[-2:]] for path in paths]
    folders: dict[str, set[str]] = {}
    for *folder, name in forms:
        folders.setdefault(name, set()).update(folder)
    return Counter("/".join(form) if len(folders[form[-1]]) <= MAX_FOLDERS else form[-1] for form in forms)


def _without_numbers(name: str) -> str:
    stem, dot, suffixes = name.partition(".")
    return re.sub(r"\d+", "*", stem) + dot + suffixes


def _plain(text: str) -> str:
    """Return the letters of a pattern that name files."""
    return re.sub(r"\(\?P<\w+>[^)]*\)|\{\w+\}|\\d\+?|[*\\]", "", text).lower()

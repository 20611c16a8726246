r"""Patterns that find the images and the labels of a folder.

A pattern is a glob or a regular expression. It is compared with the end of each path:

    image.nii.gz                             every file of this name, in any folder
    annotation_*.nii.gz                      * is part of a name, ** any folders; a single * is the annotator
    {case}/task{target}_seg{rater}.nii.gz    named parts of a glob
    task01_seg(?P<rater>\d+)\.nii\.gz        a regular expression has at least one named group
    (?P<case>p\d+)-{rater}\.png              and may have named parts as well
"""

import re
from dataclasses import dataclass
from functools import cache

from phiseg.core.errors import ConfigError, nearest

PARTS = ("case", "rater", "target", "patient", "split")
"""Named parts of a pattern."""

_TOKEN = re.compile(
    r"\{(?P<part>\w+)\}|(?P<folders>\*\*/)|(?P<rest>\*\*)|(?P<star>\*)|\?|\[!?[^\]]+\]|.", re.DOTALL
)
_GROUP = re.compile(r"\(\?P<(?P<group>\w+)>|\{(?P<part>[a-z]+)\}")
"""Named group or named part in a regular expression; {2} is a number of repetitions."""


@dataclass(frozen=True, kw_only=True)
class FilePatterns:
    """Where the images and labels are."""

    images: tuple[str, ...]
    """Pattern of the images, or one pattern per channel."""
    rater: str
    """Pattern of the label files."""
    target: str | None = None
    """Value of the part `target` in the names of the label files; None if there is only one."""


@cache
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
    expression = _with_parts(text) if "(?P<" in text else _from_glob(text, star_is_rater=option == "--rater")
    try:
        pattern = re.compile(rf"(?:.*/)?(?:{expression})", re.DOTALL)
    except re.error as error:
        raise ConfigError(f"{option} '{text}' is not a valid pattern ({error}); fix it") from None
    for part in pattern.groupindex:
        if part not in PARTS:
            raise ConfigError(f"{option} '{text}': unknown part '{part}' ({nearest(part, PARTS)})")
    return pattern


def _with_parts(expression: str) -> str:
    """Return a regular expression with its named parts as groups."""
    seen: set[str] = set()

    def group(match: re.Match[str]) -> str:
        if part := match["part"]:
            return _group_of(part, seen)
        seen.add(match["group"])
        return match[0]

    return _GROUP.sub(group, expression)


def _from_glob(text: str, *, star_is_rater: bool) -> str:
    tokens = list(_TOKEN.finditer(text))
    seen: set[str] = set()
    if star_is_rater and "{rater}" not in text and sum(bool(token["star"]) for token in tokens) == 1:
        tokens = list(_TOKEN.finditer(text.replace("*", "{rater}") if "**" not in text else text))
    return "".join(_expression(token, seen) for token in tokens)


def _expression(token: re.Match[str], seen: set[str]) -> str:
    if part := token["part"]:
        return _group_of(part, seen)
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


def _group_of(part: str, seen: set[str]) -> str:
    """Return the group of a part: any part of a name, or the same text again if the part was seen before."""
    if part in seen:
        return f"(?P={part})"
    seen.add(part)
    # names of cases often contain the separator before the annotator, so they take as much as they can
    return f"(?P<{part}>[^/]+{'' if part == 'case' else '?'})"

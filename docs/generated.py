"""The parts of the documentation that are made from the code: help of commands, keys of recipes, table of scores.

The first two are filled in when the site is built. `python docs/generated.py` writes the table of scores into
`docs/explanation/metrics.md`.
"""

import html
import io
import os
import re
import textwrap
from contextlib import redirect_stdout, suppress
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from phiseg.core.config import OneOf


def command_reference() -> str:
    """Return the output of `phiseg COMMAND --help` for each command."""
    from phiseg.cli.main import COMMANDS

    return "\n\n".join(f"## phiseg {name}\n\n{_help(name)}" for name in COMMANDS)


def config_reference() -> str:
    """Return every key of a recipe with its type, its default and what it does."""
    from phiseg.data.augment import AugmentConfig
    from phiseg.models import MODELS
    from phiseg.training.recipe import TrainConfig

    parts = ["## `train`: training", _key_table(TrainConfig.model_fields)]
    parts += ["## `augment`: augmentation", _key_table(AugmentConfig.model_fields)]
    parts.append("## `model`: network\n\n`model.name` selects the network; the other keys depend on it.")
    listed_keys: set[str] = set()
    for base in _config_bases():
        names = [name for name, model in MODELS.items() if issubclass(model.Config, base)]
        listed = ", ".join(f"`{name}`" for name in names)
        own = {key: field for key, field in base.model_fields.items() if key not in listed_keys and key != "name"}
        everywhere = "every model" if len(names) == len(MODELS) else listed
        parts.append(f"### Keys of {everywhere}\n\n{_key_table(own)}")
        listed_keys |= own.keys()
    for name, model in MODELS.items():
        parents = [other for other in MODELS if other != name and issubclass(model.Config, MODELS[other].Config)]
        known = listed_keys.union(*(MODELS[parent].Config.model_fields for parent in parents))
        own = {
            key: field
            for key, field in model.Config.model_fields.items()
            if key != "name" and (key not in known or key in vars(model.Config).get("__annotations__", {}))
        }
        first = (model.Config.__doc__ or "").strip().splitlines()[0]
        shared = " and ".join(f"[`{parent}`](#{parent})" for parent in parents)
        also = f" All keys of {shared}{', and:' if own else '.'}" if shared else "" if own else " No further keys."
        parts.append(f"### `{name}`\n\n{first}{also}" + (f"\n\n{_key_table(own)}" if own else ""))
    return "\n\n".join(parts)


def score_table() -> str:
    """Return tables of all scores, by where they appear: name, heading, what is averaged, and definition."""
    from phiseg.metrics.score_registry import SCORES

    places = {
        "main": "Main table of `phiseg compare`",
        "further": "Second table of `phiseg compare`",
        "summary": "In `summary.json`, but in no table",
        "case": "Only in `cases.csv`",
    }
    parts = []
    for group, place in places.items():
        rows = [
            f"| `{score.name}` | {score.heading} {score.arrow} | {score.pooled} | {_cell(score.description)} |"
            for score in SCORES.values()
            if score.group == group
        ]
        lines = [f"**{place}**", "", "| score | heading | pooled over | definition |", "|---|---|---|---|", *rows]
        parts.append("\n".join(lines).replace("  |", " |"))
    return "\n\n".join(parts)


def with_score_table(page: str) -> str:
    """Return the text of `docs/explanation/metrics.md` with the current table between its two markers."""
    begin, end = "<!-- scores: made by docs/generated.py -->\n", "\n<!-- end of scores -->"
    before, _, rest = page.partition(begin)
    return before + begin + "\n" + score_table() + "\n" + end + rest.partition(end)[2]


def _config_bases() -> list[type[BaseModel]]:
    """List the classes that several models' settings inherit from, the most general first."""
    from phiseg.models import MODELS, SegmenterConfig

    configs = {model.Config for model in MODELS.values()}
    bases = {base for config in configs for base in config.__mro__ if issubclass(base, SegmenterConfig)} - configs
    return sorted(bases, key=lambda base: (len(base.__mro__), base.__name__))


def _key_table(fields: dict[str, FieldInfo]) -> str:
    rows = [
        f"| `{key}` | {_cell(_values(field))} | {_default(field)} | {_cell(field.description or '')} |"
        for key, field in fields.items()
    ]
    return "\n".join(["| key | value | default | effect |", "|---|---|---|---|", *rows])


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    value = list(value) if isinstance(value, tuple) else value
    return "none" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _values(field: FieldInfo) -> str:
    """Describe the values that a key accepts."""
    choices = [item.choices() for item in field.metadata if isinstance(item, OneOf)]
    return ", ".join(f"`{name}`" for name in choices[0]) if choices else _type(field.annotation)


def _type(annotation: Any) -> str:
    """Describe a type in words."""
    names = {int: "whole number", float: "number", bool: "true or false", str: "text", type(None): "null"}
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(map(_type, arguments))
    if origin is tuple:
        item = _type(arguments[0])
        return f"list of {item.replace('list', 'lists', 1) if item.startswith('list') else f'{item}s'}"
    return names.get(annotation, str(annotation))


def _cell(text: str) -> str:
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")


def _help(name: str) -> str:
    """Return a command's help in Markdown: its description as text, its options and examples as code blocks."""
    from phiseg.cli.main import main

    os.environ["COLUMNS"] = "98"  # width of the printed help
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # an encoding that can show boxes
    with redirect_stdout(printed), suppress(SystemExit):
        main([*name.split(), "--help"])
    printed.seek(0)
    words, _, rest = printed.read().partition("╭")
    boxes, _, examples = rest.partition("\nExamples:\n")
    usage, *paragraphs = words.strip().split("\n\n")
    whole = re.sub(r"\[[^]]+\]", lambda option: option[0].replace(" ", "\xa0"), usage)  # no break within an option
    lines = textwrap.fill(whole, 90, subsequent_indent="    ", break_on_hyphens=False).replace("\xa0", " ")
    parts = [f"```text\n{lines}\n```"]
    parts += [html.escape(" ".join(paragraph.split()), quote=False) for paragraph in paragraphs]
    options = [line.strip("│╭╮╰╯─ \n") if line[0] in "╭╰" else line[2:-1].rstrip() for line in _lines("╭" + boxes)]
    listed = textwrap.dedent("\n".join(options)).strip()
    parts.append(f"```text\n{listed}\n```")
    parts.append(f"```sh\n{textwrap.dedent(examples).strip()}\n```")
    return "\n\n".join(parts)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


if __name__ == "__main__":
    path = Path(__file__).parent / "explanation" / "metrics.md"
    path.write_text(with_score_table(path.read_text(encoding="utf-8")), encoding="utf-8")

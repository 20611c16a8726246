"""Strict configuration: frozen pydantic models, YAML files and dotted overrides from the command line.

An unknown key is an error that suggests the nearest valid key. An override changes a single value.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from reprlib import Repr
from typing import Any, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, PydanticSerializationError
from pydantic_core.core_schema import no_info_after_validator_function

from phiseg.core.errors import ConfigError, nearest

# Errors that PyYAML raises; the last three for a malformed date, number or boolean.
_YAML_ERRORS = (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError)
_MAX_VALUES = 10_000
"""Maximum number of values in a YAML file with all aliases expanded: a few lines can expand to billions."""
_MAX_REPORTED = 5
"""Maximum number of invalid keys in one error message."""


class StrictConfig(BaseModel):
    """Base class of every configuration: frozen, finite numbers only, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @classmethod
    def parse(cls, values: Any, *, where: str) -> Self:
        """Validate `values` (from YAML or JSON) and return the config.

        Args:
            values: content of the file, normally a dict.
            where: name of the file, for error messages.

        Raises:
            ConfigError: one line with each invalid key, its value and how to fix it.
        """
        try:
            config = cls.model_validate(values)
            config.model_dump_json()  # reject values that cannot be written back
        except PydanticSerializationError:
            raise ConfigError(f"{where}: contains text that is not valid Unicode; save the file as UTF-8") from None
        except ValidationError as error:
            problems = error.errors()
            explained = "; ".join(_explain(cls, values, item) for item in problems[:_MAX_REPORTED])
            more = f"; and {len(problems) - _MAX_REPORTED} more" if len(problems) > _MAX_REPORTED else ""
            raise ConfigError(f"{where}: {explained}{more}") from None
        return config

    def to_yaml(self) -> str:
        """Return the config as YAML, with every key. `parse` reads it back."""
        return str(yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False))


@dataclass(frozen=True)
class OneOf:
    """Annotation of a text that must be one of `choices()`, for choices that are not known to the type checker."""

    choices: Callable[[], Iterable[str]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of the text, followed by the check."""
        return no_info_after_validator_function(self.check, handler(source))

    def check(self, value: str) -> str:
        """Return `value` if it is one of the choices.

        Raises:
            ValueError: it is not.
        """
        if value not in (choices := list(self.choices())):
            raise ValueError(f"use one of {', '.join(choices)}")
        return value


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        ConfigError: the file is missing, unreadable or not YAML.
    """
    try:
        value = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - subclass of SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    except _YAML_ERRORS as error:
        problem = str(getattr(error, "problem", None) or type(error).__name__)
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{path} is not valid YAML{line}: {problem}") from None
    if _exceeds(value, _MAX_VALUES):
        raise ConfigError(f"{path} expands to more than {_MAX_VALUES:,} values; remove nested aliases")
    return value


class _Loader(yaml.SafeLoader):
    """Safe loader that limits the number of keys."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge the keys of other mappings (<<: *alias)."""
        super().flatten_mapping(node)
        if len(node.value) > _MAX_VALUES:
            raise yaml.constructor.ConstructorError(
                problem="its aliases expand to too many keys", problem_mark=node.start_mark
            )


def _exceeds(value: Any, limit: int) -> bool:
    """Return whether nested lists and dicts hold more than `limit` values; shared values count each time."""
    waiting = [value]
    for _ in range(limit):
        if not waiting:
            return False
        inner = waiting.pop()
        waiting += inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else ()
    return bool(waiting)


def apply_overrides(values: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return `values` with command-line overrides such as `--train.steps 500` or `--train.steps=500` applied.

    Values are parsed as YAML: `[1, 2]`, `true`, `null` and `1e-3` have the same meaning as in a recipe.

    >>> apply_overrides({"train": {"steps": 5, "seed": 0}}, ["--train.steps", "7"])
    {'train': {'steps': 7, 'seed': 0}}

    Raises:
        ConfigError: an override has no value or no dotted name.
    """
    result = _copy(values)
    words = list(overrides)
    while words:
        name, equals, text = words.pop(0).partition("=")
        key = name.removeprefix("--").replace("-", "_")
        if not name.startswith("--") or "." not in key:
            raise ConfigError(f"unknown argument '{name}'; pass a recipe key as --section.key VALUE")
        if not equals:
            if not words or words[0].startswith("--"):
                raise ConfigError(f"{name} needs a value: {name} VALUE")
            text = words.pop(0)
        *sections, last = key.split(".")
        place = result
        for section in sections:
            inner = place.setdefault(section, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{name}: '{section}' is a value, not a section")
            place = inner
        place[last] = _value(text)
    return result


def _value(text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except _YAML_ERRORS:
        return text
    if isinstance(value, str):  # YAML 1.1 reads 1e-3 as a string, but a recipe means the number
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _copy(values: dict[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, dict) else value for key, value in values.items()}


def _explain(config: type[BaseModel], values: Any, item: Any) -> str:
    location = [str(part) for part in item["loc"]]
    path = list(_user_path(values, item["loc"]))
    name = ".".join(path)
    problem = item["msg"].removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        return f"unknown key '{name}' ({nearest(location[-1], keys_at(config, location[:-1]))})"
    if item["type"] == "missing":
        return f"'{'.'.join([*path, location[-1]])}' is missing"
    if isinstance(item["input"], dict):  # a whole section: the message names the keys
        return f"'{name}': {problem}" if name else problem
    value = _SHORT.repr(item["input"])
    return f"'{name}' = {value}: {problem}" if name else f"{problem}, not {value}"


_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 100


def _user_path(values: Any, location: Iterable[str | int]) -> Iterator[str]:
    """Yield the parts of pydantic's path that occur in the file: pydantic adds the branches of unions."""
    for part in location:
        if isinstance(values, dict | list):
            try:
                values = values[part]  # type: ignore[index]
            except (LookupError, TypeError):
                continue
            yield str(part)


def keys_at(config: type[BaseModel], location: list[str]) -> list[str]:
    """List the keys that are valid at `location`, following sections and tagged unions."""
    found: list[type[BaseModel]] = [config]
    for part in location:
        inner: list[type[BaseModel]] = []
        for model in found:
            if part in model.model_fields:
                inner += _models_in(model.model_fields[part].annotation)
            elif any(part in get_args(field.annotation) for field in model.model_fields.values()):
                inner.append(model)  # pydantic adds the tag of a tagged union to the path
        found = inner or found
    return sorted({key for model in found for key in model.model_fields})


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]

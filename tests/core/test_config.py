"""Strict configuration: error messages, YAML files and overrides."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError, model_validator

from phiseg.core.config import OneOf, StrictConfig, apply_overrides, read_yaml
from phiseg.core.errors import ConfigError


class Circle(StrictConfig):
    kind: Literal["circle"] = "circle"
    radius: float = 1.0


class Box(StrictConfig):
    kind: Literal["box"] = "box"
    width: float = 1.0
    sides: tuple[int, ...] | Literal["square"] = "square"


class Scene(StrictConfig):
    title: str
    repeats: int = Field(default=1, ge=1)
    shape: Annotated[Circle | Box, Field(discriminator="kind")] = Circle()
    frame: Box = Box()

    @model_validator(mode="after")
    def _check_repeats(self):
        if self.repeats > 100:
            raise ValueError("repeats must be at most 100")
        return self


def error_message(values):
    with pytest.raises(ConfigError) as caught:
        Scene.parse(values, where="scene.yaml")
    message = str(caught.value)
    assert message.startswith("scene.yaml: ")
    assert "\n" not in message
    return message.removeprefix("scene.yaml: ")


def test_parse_fills_defaults_and_freezes():
    scene = Scene.parse({"title": "a", "shape": {"kind": "box", "width": 2}}, where="x")
    assert scene == Scene(title="a", shape=Box(width=2.0))
    assert isinstance(scene.shape, Box)
    with pytest.raises(ValidationError):
        scene.repeats = 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"titel": "a", "title": "b"}, "unknown key 'titel' (did you mean 'title'?)"),
        ({"title": "a", "zzz": 1}, "unknown key 'zzz' (valid: frame, repeats, shape, title)"),
        ({"title": "a", "frame": {"widht": 1}}, "unknown key 'frame.widht' (did you mean 'width'?)"),
        # a tagged union suggests the keys of the chosen branch and names the key as written
        ({"title": "a", "shape": {"kind": "box", "widht": 1}}, "unknown key 'shape.widht' (did you mean 'width'?)"),
        ({"title": "a", "shape": {"kind": "circle", "radios": 1}}, "'shape.radios' (did you mean 'radius'?)"),
        ({}, "'title' is missing"),
        ({"title": "a", "repeats": 0}, "'repeats' = 0: Input should be greater than or equal to 1"),
        ({"title": "a", "repeats": 101}, "repeats must be at most 100"),
        ({"title": "a", "shape": {"kind": "box", "width": "x"}}, "'shape.width' = 'x': Input should be a valid"),
        ({"title": "a", "frame": {"width": float("nan")}}, "'frame.width' = nan: Input should be a finite number"),
        ({"title": "a", "frame": {"width": float("inf")}}, "'frame.width' = inf: Input should be a finite number"),
        ({"title": "a", "frame": {"sides": [1, "x"]}}, "'frame.sides.1' = 'x': Input should be a valid integer"),
        ({"title": "a", "frame": None}, "'frame' = None: Input should be a valid dictionary"),
        ({"title": "a", "shape": {"kind": "bxo"}}, "'shape': Input tag 'bxo' found using 'kind' does not match"),
        ({1: 2, "title": "a"}, "'1' = 1: Keys should be strings"),
        ([], "Input should be a valid dictionary or instance of Scene, not []"),
        (None, "Input should be a valid dictionary or instance of Scene, not None"),
    ],
)  # fmt: skip
def test_parse_error_names_key_value_and_fix(values, message):
    assert message in error_message(values)


def test_one_of_looks_up_its_choices_on_each_use():
    colours = ["red", "green"]

    class Paint(StrictConfig):
        colour: Annotated[str, OneOf(lambda: colours)] = "red"

    with pytest.raises(ConfigError, match=r"p: 'colour' = 'blue': use one of red, green$"):
        Paint.parse({"colour": "blue"}, where="p")
    colours.append("blue")
    assert Paint.parse({"colour": "blue"}, where="p").colour == "blue"


def test_parse_error_suggests_keys_of_the_chosen_union_branch():
    assert error_message({"title": "a", "shape": {"kind": "circle", "widht": 1}}).endswith("(valid: kind, radius)")


def test_parse_reports_all_errors_at_once():
    message = error_message({"titel": "a", "frame": {"widht": 1}, "repeats": 0})
    for part in ("'title' is missing", "'titel'", "'frame.widht'", "'repeats' = 0"):
        assert part in message


def test_to_yaml_round_trip(tmp_path):
    scene = Scene(title="a: b", repeats=3, shape=Box(width=0.001, sides=(1, 2)))
    (tmp_path / "scene.yaml").write_text(scene.to_yaml())
    assert Scene.parse(read_yaml(tmp_path / "scene.yaml"), where="x") == scene


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (b"a: [1, 2", " in line 1"),
        (b"a: 1\nb: 2: 3\n", " in line 2"),
        (b"a: \x00", ""),
        (b"a: !!python/object/apply:os.system ['touch harm']", " in line 1"),
        (b"a: 2024-13-45", ""),  # PyYAML parses it as a date
        (b"a: !!bool perhaps", ""),
        (b"a: !!timestamp soon", ""),
        (b"[" * 1500, ""),
    ],
)
def test_read_yaml_rejects_invalid_yaml(tmp_path, monkeypatch, text, where):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recipe.yaml"
    path.write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert str(caught.value).startswith(f"{path} is not valid YAML{where}: ")
    assert "\n" not in str(caught.value)
    assert not Path("harm").exists()


@pytest.mark.parametrize(
    "make", [lambda path: None, Path.mkdir, lambda path: path.write_bytes(b"\xff\xfe\x00a: 1")]
)
def test_read_yaml_rejects_unreadable_files(tmp_path, make):
    path = tmp_path / "recipe.yaml"
    make(path)
    with pytest.raises(ConfigError, match=r"^cannot read .*recipe\.yaml: ") as caught:
        read_yaml(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("-3", -3),
        ("1e-3", 1e-3),
        ("1.5E4", 1.5e4),
        ("0.5", 0.5),
        ("true", True),
        ("false", False),
        ("null", None),
        ("", None),
        ("[1, 2]", [1, 2]),
        ("[a, 1e-3]", ["a", "1e-3"]),  # plain YAML inside a list; the config converts it to a number
        ("{a: 1}", {"a": 1}),
        ("group", "group"),
        ("a=b", "a=b"),
        ("[1, 2", "[1, 2"),
        ("2024-13-45", "2024-13-45"),
    ],
)
@pytest.mark.parametrize("form", ["two words", "equals"])
def test_override_value_is_parsed_as_yaml(text, value, form):
    words = ["--a.b", text] if form == "two words" else [f"--a.b={text}"]
    result = apply_overrides({"a": {"b": 0}}, words)["a"]["b"]
    assert result == value
    assert type(result) is type(value)


def test_overrides_leave_other_values_and_the_input_unchanged():
    base = {"train": {"steps": 5, "inner": {"x": [1], "y": 2}}, "name": "n"}
    result = apply_overrides(base, ["--train.inner.y", "3", "--model.norm=group", "--train.steps", "7"])
    assert result == {
        "train": {"steps": 7, "inner": {"x": [1], "y": 3}},
        "name": "n",
        "model": {"norm": "group"},
    }
    assert base == {"train": {"steps": 5, "inner": {"x": [1], "y": 2}}, "name": "n"}


def test_override_accepts_dashes_and_last_one_wins():
    assert apply_overrides({}, ["--train.batch-size=1", "--train.batch_size", "2"]) == {"train": {"batch_size": 2}}


keys = st.text("abc_", min_size=1, max_size=4)
sections = st.dictionaries(keys, st.dictionaries(keys, st.integers(), max_size=4), max_size=4)


@settings(max_examples=50)
@given(sections, keys, keys, st.integers())
def test_override_changes_exactly_one_value(values, section, key, number):
    result = apply_overrides(values, [f"--{section}.{key}", str(number)])
    assert result[section].pop(key) == number
    expected = {name: dict(inner) for name, inner in values.items()}
    expected.setdefault(section, {}).pop(key, None)
    assert result == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "5"], "unknown argument '--steps'; pass a recipe key as --section.key VALUE"),
        (["train.steps", "5"], "unknown argument 'train.steps'"),
        (["--train.steps"], "--train.steps needs a value: --train.steps VALUE"),
        (["--train.steps", "--train.seed", "1"], "--train.steps needs a value"),
        (["--train.steps.x", "1"], "--train.steps.x: 'steps' is a value, not a section"),
    ],
)
def test_override_error_states_the_fix(words, message):
    with pytest.raises(ConfigError) as caught:
        apply_overrides({"train": {"steps": 5}}, words)
    assert message in str(caught.value)


def test_read_yaml_rejects_alias_bombs(tmp_path):
    lists = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lists += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 12)]
    merged = ["a0: &a0 {k: 1, l: 1}"]
    merged += [f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 9)}]}}" for level in range(1, 12)]
    for name, lines, message in (
        ("lists", lists, "more than 10,000 values"),
        ("merged", merged, "expand to too many keys"),
    ):
        path = tmp_path / f"{name}.yaml"
        path.write_text("\n".join(lines))
        with pytest.raises(ConfigError, match=message):
            read_yaml(path)


def test_read_yaml_rejects_recursive_aliases(tmp_path):
    (tmp_path / "loop.yaml").write_text("a: &a [*a]")
    with pytest.raises(ConfigError, match="more than 10,000 values"):
        read_yaml(tmp_path / "loop.yaml")


def test_read_yaml_accepts_small_aliases(tmp_path):
    (tmp_path / "few.yaml").write_text("a: &a [1, 2]\nb: *a\nc: {<<: {d: 3}}")
    assert read_yaml(tmp_path / "few.yaml") == {"a": [1, 2], "b": [1, 2], "c": {"d": 3}}


def test_parse_error_is_short_for_huge_values():
    assert len(error_message({"title": ["x" * 10_000] * 10_000, "repeats": "y" * 10_000})) < 1500
    many = error_message({"title": "a", "frame": {"sides": ["z"] * 5000}})
    assert "more" in many
    assert len(many) < 1500


def test_parse_rejects_invalid_unicode():
    assert error_message({"title": "\ud800"}) == "contains text that is not valid Unicode; save the file as UTF-8"
    assert error_message({"title": "a", "frame": {"kind": "box", "sides": "\udfff"}})

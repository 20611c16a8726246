"""The command `phiseg info`."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from phiseg.cli.parsing import optional, parse
from phiseg.core.bundled import bundled_models, find_model, find_recipe, recipe_names
from phiseg.core.errors import ConfigError, nearest
from phiseg.core.hub import is_hub_name

if TYPE_CHECKING:
    from phiseg.data.store import Dataset


@dataclass
class Info:
    """Show information about a recipe, model, run, dataset or this installation.

    A recipe is printed with all keys and values. Save the output to a .yaml file, edit it, and train with it.

    Examples:
        phiseg info
        phiseg info phiseg
        phiseg info data
        phiseg info lidc-nodule
    """

    what: Annotated[str | None, tyro.conf.Positional, optional("[WHAT]", "this installation")] = None
    """Name of a recipe or model (or hf:owner/name@revision), .yaml file, model folder, run folder or dataset."""


def run(arguments: Sequence[str], *, prog: str) -> None:
    """Parse and run the command."""
    command = parse(Info, arguments, prog=prog)
    what = command.what
    if what is None:
        print(_installation())
    elif (Path(what) / "dataset.json").exists():
        print(_dataset(Path(what)))
    elif Path(what).is_dir() or what in bundled_models() or is_hub_name(what):
        print(_model(Path(what)))
    else:
        print(_recipe(what))


def _installation() -> str:
    import torch

    from phiseg import __version__
    from phiseg.models import MODELS

    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] or ["CPU only"]
    return "\n".join(
        [
            f"phiseg {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
            f"devices: {', '.join(devices)}; CPU threads: {torch.get_num_threads()}",
            f"networks: {', '.join(MODELS)}",
            f"recipes: {', '.join(recipe_names())}",
            f"bundled models: {', '.join(bundled_models())}",
            "Run `phiseg info RECIPE` to see all keys of a recipe.",
        ]
    )


def _recipe(name: str) -> str:
    if Path(name).suffix not in {".yaml", ".yml"} and name not in recipe_names():
        known = nearest(name, [*bundled_models(), *recipe_names()])
        raise ConfigError(f"'{name}' is not a folder, bundled model or recipe ({known})")
    find_recipe(name)
    from phiseg.models import build_model
    from phiseg.training.recipe import load_recipe

    recipe = load_recipe(name)
    model = build_model(recipe.model)
    parts = "\n".join(f"#   {part}: {count:,}" for part, count in _parameters(model).items())
    return f"# parameters with {recipe.model.num_classes} classes:\n{parts}\n{recipe.to_yaml()}".rstrip()


def _model(name: Path) -> str:
    folder = find_model(name)
    from phiseg.models.model_folder import load_model

    model = load_model(folder)
    lines = [f"model: {model.config.name} in {folder}"]
    for title, values in (
        ("settings", model.config.model_dump(mode="json")),
        ("preprocessing", model.preprocessing),
        ("provenance", model.provenance),
        ("calibration", model.calibration.model_dump(mode="json")),
        ("parameters", {part: f"{count:,}" for part, count in _parameters(model).items()}),
    ):
        lines += [f"{title}:", *(f"  {key}: {_short(value)}" for key, value in values.items())]
    return "\n".join(lines)


def _short(value: object) -> object:
    """Return a value, abbreviated if it is too long for the screen."""
    if isinstance(value, list) and len(value) > 16:
        return f"{len(value)} values"
    text = str(value)
    return f"{text[:500]} ... ({len(text):,} characters)" if len(text) > 1000 else value


def _dataset(folder: Path) -> str:
    from phiseg.data.store import Dataset

    dataset = Dataset.open(folder)
    dataset.verify()
    info = dataset.info
    splits = ", ".join(
        f"{name} {len(dataset.rows(name)) if patients else 0} cases of {len(patients)} patients"
        for name, patients in dataset.splits.items()
    )
    missing = int((~dataset.valid).sum())
    source = f" ({dataset.split_source})" if dataset.split_source else ""
    split_file = [f"  split file: {dataset.split_name}{source}"] if dataset.split_name else []
    return "\n".join(
        [
            f"dataset: {info.name} in {folder}",
            f"  cases: {dataset.num_cases} ({splits})",
            *split_file,
            f"  image: {info.image_channels} channel(s), {dataset.describe_size()}, "
            f"{dataset.images.dtype}, spacing {_spacing(dataset)}",
            f"  classes: {', '.join(f'{i} {name}' for i, name in enumerate(info.classes))}",
            f"  annotators: {info.num_annotators} per case, {missing} of {dataset.valid.size} annotations missing",
            f"  fingerprint: {dataset.fingerprint}",
            "  arrays: checksums match",
            f"  created by: {info.command or 'unknown'}",
        ]
    )


def _spacing(dataset: "Dataset") -> str:
    """Return the spacing along each axis: a number, or the range over the cases."""
    known = [spacing for row in range(dataset.num_cases) if (spacing := dataset.axis_spacing_mm(row))]
    axes = [(f"{min(axis):.4g}", f"{max(axis):.4g}") for axis in zip(*known, strict=True)]
    text = " x ".join(low if low == high else f"{low}-{high}" for low, high in axes)
    missing = dataset.num_cases - len(known)
    note = f" (unknown for {missing} of {dataset.num_cases} cases)" if known and missing else ""
    return f"{text} mm{note}" if known else "unknown"


def _parameters(model: "object") -> dict[str, int]:
    import torch

    assert isinstance(model, torch.nn.Module)
    parts = {name: sum(p.numel() for p in child.parameters()) for name, child in model.named_children()}
    return {**parts, "total": sum(parts.values())}

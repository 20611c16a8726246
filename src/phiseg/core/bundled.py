"""Models and recipes by path, or by name if they are part of the package. Importing this module is fast."""

from importlib.resources import files
from pathlib import Path

from phiseg.core.errors import ConfigError, ModelError, nearest
from phiseg.core.hub import download_model, is_hub_name


def bundled_models() -> dict[str, Path]:
    """Return the folders of the bundled models by name."""
    folders = sorted(Path(str(files("phiseg.weights"))).iterdir())
    return {folder.name: folder for folder in folders if (folder / "config.json").is_file()}


def find_model(folder: Path) -> Path:
    """Return the model folder of a path, of a run folder, of a bundled model or of a model on the Hub.

    Raises:
        ModelError: there is no such model.
        ConfigError: the name of a model of the Hub is invalid, or huggingface_hub is not installed.
    """
    if not folder.is_dir():
        if is_hub_name(folder):
            return download_model(str(folder))
        if (bundled := bundled_models().get(str(folder))) is not None:
            return bundled
        known = ", ".join(bundled_models()) or "none yet"
        raise ModelError(
            f"there is no model folder {folder}; pass a folder written by `phiseg train`, the name of a bundled "
            f"model ({known}), or hf:owner/name@revision"
        )
    for candidate in (folder, folder / "model"):
        if (candidate / "config.json").is_file():
            return candidate
    raise ModelError(
        f"{folder} contains no model: there is no config.json in it or in its subfolder model/; "
        "a run writes its model after the first validation"
    )


def recipe_names() -> list[str]:
    """Return the names of the recipes in the package."""
    folder = files("phiseg.recipes")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def find_recipe(name: str | Path) -> Path:
    """Return the file of a recipe: the path of a .yaml file, or the recipe of the package with that name.

    Raises:
        ConfigError: there is no recipe of that name, or no such file.
    """
    path, named = Path(name), str(name)
    if path.suffix in {".yaml", ".yml"}:
        if not path.exists():
            raise ConfigError(f"cannot read {path}: No such file or directory")
        return path
    if named not in recipe_names():
        raise ConfigError(
            f"there is no recipe '{named}' ({nearest(named, recipe_names())}); pass a name or a .yaml file"
        )
    return Path(str(files("phiseg.recipes") / f"{named}.yaml"))

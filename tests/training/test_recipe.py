"""Recipes: the recipes of the package are valid, and errors are reported."""

from pathlib import Path

import pytest
import yaml

from helpers.small_volumes import write_volumes
from phiseg.core.bundled import recipe_names
from phiseg.core.errors import ConfigError
from phiseg.data.store import Dataset
from phiseg.models import MODELS
from phiseg.training.recipe import Recipe, TrainConfig, criteria, load_recipe


@pytest.mark.parametrize("name", recipe_names())
def test_recipe_yaml_round_trip(name, tmp_path):
    recipe = load_recipe(name)
    assert recipe.name == name
    path = tmp_path / f"{name}.yaml"
    path.write_text(recipe.to_yaml())
    assert load_recipe(str(path)) == recipe


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.endswith("-small")])
def test_small_recipes_differ_in_model_and_learning_rate_only(name):
    recipe = load_recipe(name)
    phiseg = load_recipe("phiseg-small" if recipe.model.dims == 2 else "phiseg3d-small")
    assert name.startswith(recipe.model.name)
    own = ("learning_rate", "annotations_per_image")
    assert recipe.train.model_copy(update={key: getattr(phiseg.train, key) for key in own}) == phiseg.train
    assert (recipe.train.annotations_per_image > 1) == recipe.model.takes_sets
    assert recipe.augment == phiseg.augment
    assert recipe.model.channels == phiseg.model.channels
    assert recipe.model.blocks_per_level == phiseg.model.blocks_per_level


def test_small_recipes_of_volumes_have_the_network_of_images():
    for name in ("phiseg", "probunet", "unet"):
        flat, deep = load_recipe(f"{name}-small"), load_recipe(f"{name}3d-small")
        assert deep.model == flat.model.model_copy(update={"dims": 3})
        assert deep.augment == flat.augment
        assert deep.train == flat.train.model_copy(update={"batch_size": 4})


def test_every_model_has_a_small_recipe():
    assert {f"{name}-small" for name in MODELS} <= set(recipe_names())


@pytest.mark.parametrize("key", ["batch_size", "validation_samples"])
def test_recipe_rejects_huge_numbers(key):
    with pytest.raises(ConfigError, match=key):
        load_recipe("phiseg-small", [f"--train.{key}", str(2**63)])


def test_train_config_defaults_follow_the_paper():
    train = TrainConfig()
    assert (train.batch_size, train.learning_rate, train.annotator, train.select_by) == (12, 1e-3, "random", "loss")
    assert train.precision == "32-true"


def test_every_criterion_knows_its_better_end():
    lower = {name for name, better in criteria().items() if better(1.0, 2.0) == 1}
    assert lower >= {"loss", "ged", "ged_unbiased", "area_crps"}
    assert criteria().keys() - lower >= {"elbo", "s_ncc", "dice", "hm_iou", "best_dice"}
    assert not criteria().keys() & {"ged_floor", "diversity", "area_coverage", "ece", "num_annotators"}
    for name in criteria():
        assert TrainConfig(select_by=name).select_by == name


def test_load_recipe_applies_override():
    before, after = load_recipe("phiseg-small"), load_recipe("phiseg-small", ["--train.batch_size", "4"])
    assert after.train.batch_size == 4
    assert after == before.model_copy(update={"train": before.train.model_copy(update={"batch_size": 4})})


@pytest.mark.parametrize(
    ("name", "overrides", "problem"),
    [
        ("phiseg-smal", [], "did you mean 'phiseg-small'"),
        ("phiseg-small", ["--train.stepz=3"], "unknown key 'train.stepz' \\(did you mean 'steps'"),
        ("phiseg-small", ["--model.num_level=3"], "unknown key 'model.num_level' \\(did you mean 'num_levels'"),
        ("unet-small", ["--model.num_levels=3"], "unknown key 'model.num_levels'"),
        ("phiseg-small", ["--train.steps=0"], "'train.steps' = 0"),
        ("phiseg-small", ["--train.learning_rate=nan"], "'train.learning_rate'"),
        ("phiseg-small", ["--train.seed=-1"], "'train.seed' = -1"),
        ("phiseg-small", ["--train.annotator=every"], "'train.annotator' = 'every'"),
        ("phiseg-small", ["--train.select_by=diversity"], "'train.select_by' = 'diversity'.* loss, elbo, ged"),
        ("phiseg-small", ["--train.precision=64"], "'train.precision' = 64"),
        ("phiseg-small", ["--train.annotations_per_image=4"], "with model phiseg, which takes one annotation"),
        ("phiseg-small", ["--model.num_levels=9"], "num_levels = 9"),
        ("missing.yaml", [], "cannot read missing.yaml"),
    ],
)
def test_load_recipe_rejects_invalid_settings(name, overrides, problem):
    with pytest.raises(ConfigError, match=problem):
        load_recipe(name, overrides)


@pytest.mark.parametrize("content", ["", "[1, 2]", "model", "train: {steps: 5}", "model: {name: vnet}"])
def test_load_recipe_rejects_other_files(content, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"recipe\.yaml"):
        load_recipe(str(path))


def test_for_dataset_sets_classes_and_channels(zones):
    recipe = load_recipe("phiseg-small").for_dataset(Dataset.open(zones))
    assert (recipe.model.num_classes, recipe.model.image_channels) == (3, 1)


def test_for_dataset_accepts_matching_numbers(zones):
    recipe = load_recipe("phiseg-small", ["--model.num_classes=3", "--model.image_channels=1"])
    assert recipe.for_dataset(Dataset.open(zones)).model == recipe.model


@pytest.mark.parametrize("key", ["num_classes", "image_channels"])
def test_for_dataset_rejects_other_numbers(key, zones):
    with pytest.raises(ConfigError, match=f"model.{key} = 2, but .* has [31]"):
        load_recipe("phiseg-small", [f"--model.{key}=2"]).for_dataset(Dataset.open(zones))


def test_recipe_yaml_contains_all_keys():
    written = yaml.safe_load(load_recipe("phiseg-small").to_yaml())
    assert written.keys() == Recipe.model_fields.keys()
    assert written["train"].keys() == TrainConfig.model_fields.keys()


@pytest.mark.parametrize("settings", [{"steps": 7}, {"train.steps": 7}, {"train": {"steps": 7}}])
def test_with_settings_takes_a_key_with_or_without_its_section(settings):
    recipe = load_recipe("phiseg-small")
    changed = recipe.with_settings(settings)
    assert changed.train == recipe.train.model_copy(update={"steps": 7})
    assert (changed.model, changed.augment, changed.name) == (recipe.model, recipe.augment, recipe.name)
    assert load_recipe("phiseg-small", settings=settings) == changed


@pytest.mark.parametrize("settings", [{"initial_weights": Path("a")}, {"train": {"initial_weights": Path("a")}}])
def test_with_settings_takes_paths(settings):
    assert load_recipe("phiseg-small", settings=settings).train.initial_weights == "a"


def test_with_settings_keeps_what_the_dataset_decides(lesions):
    """A key that nobody set stays open, so that a training takes it from the dataset."""
    recipe = load_recipe("phiseg-small").with_settings(num_levels=3)
    assert "num_classes" not in recipe.model.model_fields_set
    assert recipe.for_dataset(Dataset.open(lesions)).model.num_classes == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stpes": 7}, "no setting 'stpes' .did you mean 'steps'"),
        ({"train.stpes": 7}, "'train.stpes' .did you mean 'steps'"),
        ({"model": {"levels": 7}}, "unknown key 'model.levels'"),
        ({"train": 7}, "'train' = 7"),
        ({"steps": 0}, "'train.steps' = 0"),
        ({"train.steps.x": 7}, "'steps' is a value, not a section"),
        ({"model.kl_weights": "unit", "model.kl_weights.x": 1}, "'kl_weights' is a value, not a section"),
    ],
)
def test_with_settings_names_the_wrong_key(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_recipe("phiseg-small").with_settings(settings)


def test_recipe_for_volumes_gets_their_patch_size(make_recipe, tmp_path):
    volumes = write_volumes(tmp_path / "volumes")
    recipe = make_recipe("unet", settings={"dims": 3})
    assert recipe.for_dataset(volumes).train.patch_size == (7, 5, 8)
    own = recipe.with_settings(patch_size=[3, 4, 8])
    assert own.for_dataset(volumes).train.patch_size == (3, 4, 8)
    with pytest.raises(ConfigError, match="in the order slices, height, width"):
        recipe.with_settings(patch_size=[5, 8, 3]).for_dataset(volumes)


def test_recipe_for_volumes_plans_strides_and_kernels(tmp_path):
    """At 2.5 x 0.5 x 0.7 mm, slices are pooled after the second level; the patch limits how often."""
    volumes = write_volumes(tmp_path / "volumes")
    recipe = load_recipe("phiseg3d-small", channels=[4, 4, 4, 4], num_levels=2)
    model = recipe.with_settings(patch_size=[7, 5, 8]).for_dataset(volumes).model
    assert model.kernels == ((1, 3, 3), (3, 3, 3), (3, 3, 3), (3, 3, 3))
    assert model.strides == ((1, 2, 2), (2, 1, 2), (2, 1, 1))  # the height of 5 is halved once
    again = type(model).parse(model.model_dump(mode="json"), where="config.yaml")
    assert again == model
    own = ((2, 2, 2),) * 3
    changed = recipe.with_settings(strides=own).for_dataset(volumes).model
    assert (changed.strides, changed.kernels) == (own, model.kernels)


def test_recipe_for_volumes_of_unknown_spacing_plans_for_cubes(tmp_path):
    volumes = write_volumes(tmp_path / "volumes", spacing_mm=None)
    model = load_recipe("unet3d-small", channels=[4, 4]).for_dataset(volumes).model
    assert (model.strides, model.kernels) == (((2, 2, 2),), ((3, 3, 3),) * 2)


def test_dimensions_of_model_and_dataset_must_match(make_recipe, lesions, tmp_path):
    volumes, images = write_volumes(tmp_path / "volumes"), Dataset.open(lesions)
    with pytest.raises(ConfigError, match=r"contains volumes, but the model takes images \(model\.dims 2\)"):
        make_recipe("unet").for_dataset(volumes)
    with pytest.raises(ConfigError, match=r"contains images, but the model takes volumes \(model\.dims 3\)"):
        make_recipe("unet", settings={"dims": 3}).for_dataset(images)
    assert make_recipe("unet").for_dataset(images).train.patch_size is None

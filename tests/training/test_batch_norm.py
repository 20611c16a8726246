"""Batch-norm statistics: which path they come from, compared with the inputs of the layers."""

import copy

import pytest
import torch
import torch.nn.functional as F

from phiseg.core.errors import ConfigError
from phiseg.core.random import derive_seed
from phiseg.data.augment import AugmentConfig
from phiseg.data.loader import TrainingStream
from phiseg.data.store import Dataset
from phiseg.models import build_model
from phiseg.models.blocks import BatchNorm
from phiseg.models.ccdm import CCDM, CCDMConfig
from phiseg.models.noise import seeded_generator
from phiseg.training.averaging import WeightAverage
from phiseg.training.batch_norm import follow_sampling_path, recalibrate
from phiseg.training.checkpoints import load_state
from phiseg.training.loop import train
from phiseg.training.recipe import load_recipe

SEED = 3


@pytest.fixture
def batches(make_recipe, lesions):
    stream = TrainingStream(Dataset.open(lesions), batch_size=4, seed=SEED, augment=make_recipe().augment)
    return [stream.batch(step) for step in range(3)]


@pytest.fixture
def model(request, make_recipe):
    torch.manual_seed(0)
    return build_model(make_recipe(getattr(request, "param", "phiseg")).model)


def norm_layers(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, BatchNorm)}


def inputs_of(model, run):
    """Return mean and unbiased variance of the inputs of each batch norm of a copy of the model during `run`."""
    twin = copy.deepcopy(model).train()
    seen = {}

    def note(name):
        def hook(_, inputs):
            values = inputs[0].detach().double().movedim(1, 0).flatten(1)
            seen.setdefault(name, []).append((values.mean(1), values.var(1, correction=1)))

        return hook

    for name, layer in norm_layers(twin).items():
        layer.register_forward_pre_hook(note(name))
    with torch.no_grad():
        run(twin)
    return seen


def training_path(batches):
    def run(model):
        for number, batch in enumerate(batches):
            generators = [seeded_generator(SEED, "statistics", "posterior", number, int(r)) for r in batch.rows]
            model(batch.image, batch.labels, generator=generators)

    return run


def sampling_path(batches):
    def run(model):
        for number, batch in enumerate(batches):
            generators = [seeded_generator(SEED, "statistics", number, int(r)) for r in batch.rows]
            model.sample(batch.image, 1, generator=generators)

    return run


def average(statistics):
    return [torch.stack(values).mean(0) for values in zip(*statistics, strict=True)]


def is_close(layer, statistics):
    mean, variance = average(statistics)
    return torch.allclose(layer.running_mean.double(), mean, rtol=1e-4, atol=1e-5) and torch.allclose(
        layer.running_var.double(), variance, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("model", ["phiseg", "probunet"], indirect=True)
def test_recalibrate_uses_training_path_for_posterior_only(model, batches):
    in_training, in_sampling = inputs_of(model, training_path(batches)), inputs_of(model, sampling_path(batches))
    recalibrate(model, iter(batches), seed=SEED)
    layers = norm_layers(model)
    posterior = {name for name in layers if name.startswith("posterior.")}
    assert posterior
    assert in_sampling.keys() == layers.keys() - posterior
    for name, layer in layers.items():
        statistics = (in_training if name in posterior else in_sampling)[name]
        assert len(statistics) == len(batches)
        assert is_close(layer, statistics), name
        assert layer.num_batches_tracked == len(batches)
    # the two paths differ; otherwise the test could not fail
    decoder = "likelihood." if any(name.startswith("likelihood.") for name in layers) else "combine."
    assert not any(is_close(layer, in_training[n]) for n, layer in layers.items() if n.startswith(decoder))


@pytest.mark.parametrize("model", ["unet", "ensemble", "mcdropout", "multihead"], indirect=True)
def test_recalibrate_model_with_single_path(model, batches):
    expected = inputs_of(model, sampling_path(batches))
    recalibrate(model, batches, seed=SEED)
    assert all(is_close(layer, expected[name]) for name, layer in norm_layers(model).items())


def test_recalibrate_changes_averaged_models_as_others(model, batches):
    averaged = WeightAverage(model, 0.9).model
    recalibrate(averaged, batches, seed=SEED)
    recalibrate(model, batches, seed=SEED)
    for name, tensor in averaged.state_dict().items():
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=0, atol=0)


def test_recalibrate_discards_previous_statistics(model, batches):
    twin = copy.deepcopy(model)
    for layer in norm_layers(twin).values():
        layer.running_mean.fill_(1e6)
        layer.running_var.fill_(float("nan"))
    recalibrate(model, batches, seed=SEED)
    recalibrate(twin, batches, seed=SEED)
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=0, atol=0)


@pytest.mark.parametrize("training", [True, False])
def test_recalibrate_changes_statistics_only(model, batches, training):
    model.train(training)
    weights = {name: parameter.clone() for name, parameter in model.named_parameters()}
    momenta = {name: layer.momentum for name, layer in norm_layers(model).items()}
    recalibrate(model, batches, seed=SEED)
    assert all(torch.equal(parameter, weights[name]) for name, parameter in model.named_parameters())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert {name: layer.momentum for name, layer in norm_layers(model).items()} == momenta
    assert all(not layer._forward_pre_hooks for layer in norm_layers(model).values())
    assert all(module.training is training for module in model.modules())


@pytest.mark.parametrize("norm", ["group", "none"])
def test_recalibrate_without_batch_norm_has_no_effect(norm, make_recipe, batches):
    model = build_model(make_recipe(settings={"norm": norm}).model)
    before = copy.deepcopy(model.state_dict())
    recalibrate(model, batches, seed=SEED)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_follow_sampling_path_updates_sampling_layers_only(model, batches):
    model.train()
    before = copy.deepcopy(model.state_dict())
    follow_sampling_path(model, batches[0], seed=SEED, step=0)
    moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == {
        f"{name}.{statistic}"
        for name in norm_layers(model)
        if not name.startswith("posterior.")
        for statistic in ("running_mean", "running_var", "num_batches_tracked")
    }


@pytest.fixture
def after_one_step(make_recipe, lesions, tmp_path):
    """Return a function that trains a single step and returns the weights and statistics."""

    def run(mode):
        recipe = make_recipe(steps=1, norm_statistics=mode, seed=SEED)
        train(recipe, lesions, tmp_path / mode, progress=False)
        return load_state(tmp_path / mode / "state" / "last.pt").weights

    return run


def test_norm_statistics_running_uses_training_path(after_one_step, make_recipe, batches):
    weights = after_one_step("running")
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(SEED, "weights"))
        model = build_model(make_recipe().model)
    first = batches[0]  # same seed and batch as the run
    generators = [seeded_generator(SEED, "noise", 0, row) for row in range(4)]
    seen = inputs_of(model, lambda twin: twin(first.image, first.labels, generator=generators))
    for name in norm_layers(model):
        ((mean, variance),) = seen[name]
        expected = {"running_mean": 0.01 * mean, "running_var": 0.99 + 0.01 * variance, "num_batches_tracked": 1}
        for statistic, value in expected.items():
            found = weights[f"{name}.{statistic}"].double()
            torch.testing.assert_close(found, torch.as_tensor(value).double(), rtol=1e-5, atol=1e-6)


def test_norm_statistics_both_adds_sampling_path(after_one_step, make_recipe, batches):
    running, both = after_one_step("running"), after_one_step("both")
    model = build_model(make_recipe().model)
    model.load_state_dict(running)
    seen = inputs_of(model, sampling_path(batches[:1]))
    assert seen
    for name in norm_layers(model):
        mean, variance = (running[f"{name}.{statistic}"].double() for statistic in ("running_mean", "running_var"))
        if name in seen:
            ((batch_mean, batch_variance),) = seen[name]
            mean, variance = 0.99 * mean + 0.01 * batch_mean, 0.99 * variance + 0.01 * batch_variance
        torch.testing.assert_close(both[f"{name}.running_mean"].double(), mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(both[f"{name}.running_var"].double(), variance, rtol=1e-5, atol=1e-6)
    for name, _ in model.named_parameters():
        assert torch.equal(running[name], both[name]), "statistics must not change the weights"


def test_norm_statistics_recalibrated_uses_images_without_augmentation(after_one_step, make_recipe, lesions):
    weights = after_one_step("recalibrated")
    model = build_model(make_recipe().model)
    model.load_state_dict(weights)
    stream = TrainingStream(Dataset.open(lesions), batch_size=4, seed=SEED, augment=AugmentConfig(enabled=False))
    recalibrate(model, [stream.batch(0), stream.batch(1)], seed=SEED)  # recalibration_batches is 2
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, weights[name], rtol=1e-6, atol=1e-7)


def test_norm_statistics_training_averages_the_training_path(after_one_step, make_recipe, lesions):
    weights = after_one_step("training")
    model = build_model(make_recipe().model)
    model.load_state_dict(weights)
    stream = TrainingStream(Dataset.open(lesions), batch_size=4, seed=SEED, augment=AugmentConfig(enabled=False))
    layer = model.likelihood.embed[0][0]  # convolution, batch norm, ReLU
    seen = []
    layer[0].register_forward_hook(lambda _module, _args, output: seen.append(output.double()))
    model.train()
    for number in (0, 1):  # recalibration_batches is 2
        batch = stream.batch(number)
        generators = [seeded_generator(SEED, "statistics", "posterior", number, int(row)) for row in batch.rows]
        with torch.no_grad():
            model(batch.image, batch.labels, generator=generators)
    means = torch.stack([output.mean((0, 2, 3)) for output in seen])
    stored = weights["likelihood.embed.0.0.1.running_mean"].double()
    torch.testing.assert_close(stored, means.mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("statistics", ["recalibrated", "both"])
def test_presence_refuses_statistics_of_the_sampling_path(statistics):
    overrides = ["--model.presence", "true", "--train.norm_statistics", statistics]
    with pytest.raises(ConfigError, match=r"use train.norm_statistics training"):
        load_recipe("phiseg-small", overrides)
    assert load_recipe("phiseg-small", [*overrides[:3], "training"]).train.norm_statistics == "training"
    group = load_recipe("phiseg-small", [*overrides, "--model.norm", "group"])
    assert group.train.norm_statistics == statistics, "there are no batch statistics"


@pytest.mark.parametrize("statistics", ["recalibrated", "both"])
def test_ccdm_refuses_statistics_of_the_sampling_path(statistics):
    with pytest.raises(ConfigError, match=r"removes the time; use train.norm_statistics training"):
        load_recipe("ccdm-small", ["--train.norm_statistics", statistics])


@pytest.mark.parametrize(
    ("recipe", "settings", "resolved"),
    [
        ("phiseg-small", [], "recalibrated"),
        ("phiseg-small", ["--model.presence", "true"], "training"),
        ("phiseg-small", ["--train.norm_statistics", "both"], "both"),
        ("ccdm-small", [], "training"),
        ("ccdm-small", ["--train.norm_statistics", "running"], "running"),
        ("flow-ssn-small", [], "training"),
    ],
)
def test_default_norm_statistics_depend_on_the_model(recipe, settings, resolved, lesions):
    assert load_recipe(recipe, settings).for_dataset(Dataset.open(lesions)).train.norm_statistics == resolved


@torch.no_grad()
def test_batch_norm_in_training_mode_removes_the_time():
    torch.manual_seed(0)
    model = CCDM(CCDMConfig(channels=(8,), kernels=((1, 1),), blocks_per_level=1))  # no borders
    image, labels = torch.randn(4, 1, 16, 16), F.one_hot(torch.randint(0, 2, (4, 16, 16)), 2).movedim(-1, 1).float()

    def depends_on(*times: list[int]) -> bool:
        first, second = (model._predict(image, labels, torch.tensor(time), (16, 16)) for time in times)
        return not torch.allclose(first, second, atol=1e-3)

    model.train()
    assert depends_on([20, 230, 20, 230], [230, 20, 230, 20])
    assert not depends_on([20] * 4, [230] * 4)
    model.eval()
    assert depends_on([20] * 4, [230] * 4)

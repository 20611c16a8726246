"""Contract of `phiseg.models.segmenter` for all models in the registry.

A new model passes by being registered; at most it adds its own settings for a small network below. Images of
3-D models have `DEPTH` slices.
"""

import copy

import pytest
import torch

from phiseg.core.errors import ConfigError, ModelError
from phiseg.models import MODELS, build_model, load_model, save_model
from phiseg.models.bfloat16 import compute_in_bfloat16
from phiseg.models.blocks import Encoder
from phiseg.models.noise import draw_noise, seeded_generator

SMALL = {"channels": (4, 5, 6, 7), "blocks_per_level": 1}  # stride 8
EXTRA = {  # a larger head_init gives KLs that are visible in the total
    "cvae": {"latent_dimensions": 3, "kl_weight": 0.5, "head_init": 1.0},
    "ensemble": {"members": 4},
    "ccdm": {"diffusion_steps": 4, "num_steps": 2},
    "flow-ssn": {"flow_channels": (4, 6), "num_steps": 2, "monte_carlo": 4},
    "hprobunet": {"num_levels": 3, "head_init": 0.3},
    "mcdropout": {"dropout": 0.4, "dropout_levels": 2},
    "mose": {"experts": 3, "training_samples": 2, "kl_weight": 0.5},
    "multihead": {"heads": 5},
    "phiseg": {"num_levels": 3, "kl_weights": "paper", "head_init": 0.3},
    "phiseg-ensemble": {"members": 2, "num_levels": 3, "kl_weights": "paper", "head_init": 0.3},
    "probunet": {"latent_dimensions": 3, "kl_weight": 0.5, "head_init": 1.0},
}
PRESENCE = {"presence": True}
VOLUMES = {
    "dims": 3,
    "strides": ((1, 2, 2), (2, 2, 2), (2, 2, 2)),  # strides 4, 8, 8
    "kernels": ((1, 3, 3), (3, 3, 3), (3, 3, 3), (3, 3, 3)),
}
VARIANTS = {
    "phiseg with presence": ("phiseg", PRESENCE),
    "phiseg-ensemble with presence": ("phiseg-ensemble", PRESENCE),
    "phiseg of volumes": ("phiseg", VOLUMES | PRESENCE),
    "probunet of volumes": ("probunet", VOLUMES),
    "unet of volumes": ("unet", VOLUMES),
}
"""Settings that change what a model draws, by name: the model and the settings."""
for variant, (plain, extra) in VARIANTS.items():
    EXTRA[variant] = EXTRA.get(plain, {}) | extra
LOSS_WITHOUT_NOISE = {"ensemble", "multihead", "unet"}  # training without noise
ODD = (19, 27)
DEPTH = 3

pytestmark = pytest.mark.parametrize("name", [*MODELS, *VARIANTS])


def config_class(name):
    plain, _ = VARIANTS.get(name, (name, {}))
    return MODELS[plain].Config


def full_size(config, size):
    """Return (H, W), or (D, H, W) for a 3-D model."""
    return size if config.dims == 2 else (DEPTH, *size)


def build(name, *, seed=0, **settings):
    torch.manual_seed(seed)
    return build_model(config_class(name)(**SMALL, **EXTRA.get(name, {}) | settings))


def settled(name, **settings):
    """Return a model in eval mode after batch norm has seen training and sampling."""
    model = build(name, **settings).train()
    with torch.no_grad():
        for seed in range(3):
            image, labels = batch(model, seed=seed)
            model(image, labels, generator=seeded_generator(seed))
            model.sample(image, 1, generator=seeded_generator(seed))
    return model.eval()


def batch(model, size=(16, 16), number=4, *, seed=0):
    generator = torch.Generator().manual_seed(seed)
    size = full_size(model.config, size)
    image = torch.randn(number, model.config.input_channels, *size, generator=generator)
    return image, torch.randint(model.config.num_classes, (number, *size), generator=generator)


def generators(*seeds):
    return [seeded_generator(seed) for seed in seeds]


@torch.no_grad()
def sample(model, image, number, *seeds, **options):
    """Draw samples with one generator per image, or with a single one."""
    generator = seeded_generator(0) if not seeds else generators(*seeds)
    return model.sample(image, number, generator=generator, **options)


def is_stochastic(model):
    return bool(model.noise_shapes(model.strides))


def close(first, second):
    """Assert equality up to rounding of convolutions with different batch sizes."""
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


def documented_weights(config):
    """Return alpha of each KL term, finest first, as documented in the configs."""
    match config.name:
        case "phiseg" | "phiseg-ensemble":
            base = {"paper": 2, "reference": 4, "unit": 1}[config.kl_weights]
            return [base**level for level in range(config.num_levels)]
        case "cvae" | "mose" | "probunet":
            return [config.kl_weight]
        case "hprobunet":
            return [1] * config.num_levels
        case "multihead":
            return [1]
        case _:
            return []


@pytest.mark.parametrize("size", [(16, 16), ODD])
def test_loss_is_finite_scalar_with_named_terms(name, size):
    model = build(name).train()
    loss = model(*batch(model, size), generator=seeded_generator(0))
    assert loss.total.shape == ()
    assert loss.total.dtype == torch.float32
    assert loss.total.isfinite()
    assert loss.total.requires_grad
    for term in loss.terms.values():
        assert term.shape == ()
        assert term.dtype == torch.float32
        assert term.isfinite()
        assert not term.requires_grad


def test_loss_terms_sum_to_total_and_elbo(name):
    model = settled(name)
    loss = model(*batch(model, ODD), generator=seeded_generator(0))
    kls = [value for term, value in loss.terms.items() if term.startswith("kl/")]
    named = [term for term in loss.terms if term.startswith(("cross_entropy/", "transport"))]
    reconstructions = [loss.terms[term] for term in named]
    presence = [value for term, value in loss.terms.items() if term == "presence"]
    weights = documented_weights(model.config)
    total = sum(reconstructions) + sum(weight * kl for weight, kl in zip(weights, kls, strict=True)) + sum(presence)
    torch.testing.assert_close(loss.total.detach(), total)
    torch.testing.assert_close(loss.terms["elbo"], -reconstructions[0] - sum(kls) - sum(presence))
    assert len(loss.terms) == len(kls) + len(reconstructions) + len(presence) + 1
    assert [*loss.terms][: len(named)] == named
    assert named in ([f"cross_entropy/{i}" for i in range(len(named))], ["transport"])


@torch.no_grad()
def test_num_levels_counts_the_first_parts_of_the_noise(name):
    model = settled(name)
    number = model.num_levels
    assert number == getattr(model.config, "num_levels", 0)
    assert model.noise_names[:number] == tuple(f"level {level + 1}" for level in range(number))
    assert not any(part.startswith("level") for part in model.noise_names[number:])
    assert all(model.takes_temperature[:number])
    image, _ = batch(model, number=1)
    encoding = model.encode(image)
    noise = draw_noise(model.noise_shapes(encoding.size), 1, 2, generators(0))
    outputs = model.sample_levels(encoding, noise, 2)
    assert len(outputs) in (1, number)
    close(outputs[0], model.decode_samples(encoding, noise, 2))
    for level in range(number):
        changed = [-part if place == level else part for place, part in enumerate(noise)]
        assert not torch.allclose(model.decode_samples(encoding, changed, 2), outputs[0], atol=1e-6)


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_gradients_reach_all_parameters(name, norm):
    model = build(name, norm=norm).train()
    for seed in range(3):
        model(*batch(model, seed=seed), generator=seeded_generator(seed)).total.backward()
    for parameter, tensor in model.named_parameters():
        assert tensor.grad is not None, parameter
        assert tensor.grad.isfinite().all(), parameter
        assert tensor.grad.any(), parameter


TRAINED_BY_ANOTHER_LOSS = {
    "flow-ssn": ("body", "combine", "marginal", "factor"),
    "mose": ("body", "combine", "output"),
}
"""Parts whose gradient leaves out a part of the loss on purpose: the flow does not train its base, and the plan
that moves annotations to samples has no gradient."""


def test_gradient_matches_finite_difference(name):
    """A small step of each submodule along its gradient changes the loss as predicted.

    A high floor under the standard deviations keeps the KL from hiding the other terms.
    """
    model = settled(name, **({"min_std": 0.3} if "min_std" in config_class(name).model_fields else {}))
    image, labels = batch(model)

    def total():
        return model(image, labels, generator=seeded_generator(0)).total

    total().backward()
    for part, module in model.named_children():
        if part in TRAINED_BY_ANOTHER_LOSS.get(name, ()):
            continue
        gradients = [parameter.grad.clone() for parameter in module.parameters()]
        slope = torch.nn.utils.get_total_norm(gradients).item()
        change, values = min(0.02, 0.02 * slope), []
        with torch.no_grad():
            for share in (0.5, -1.0):
                for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                    parameter += share * change * gradient / slope**2
                values.append(total().item())
            for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                parameter += 0.5 * change * gradient / slope**2
        assert values[0] - values[1] == pytest.approx(change, rel=0.05), part


def test_model_learns_to_threshold_an_image(name):
    model = build(name).train()
    image, _ = batch(model)
    labels = (image[:, 0] > 0).long()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for step in range(12):
        optimizer.zero_grad()
        loss = model(image, labels, generator=seeded_generator(step)).total
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.85 * losses[0]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("size", [ODD, (16, 8), (1, 5)])
def test_samples_have_image_size(name, channels, classes, size):
    model = settled(name, image_channels=channels, num_classes=classes)
    assert model.strides == ((8, 8) if model.config.dims == 2 else (4, 8, 8))
    logits = sample(model, batch(model, size, 2)[0], 3)
    assert logits.shape == (2, 3, classes, *full_size(model.config, size))
    assert logits.isfinite().all()


@pytest.mark.parametrize(("number", "chunk_size"), [(1, None), (5, None), (5, 1), (5, 2)])
def test_image_is_encoded_once(name, number, chunk_size, monkeypatch):
    model = settled(name)
    image, _ = batch(model, ODD, 2)
    encodings, calls = [], []
    encode = model.encode
    monkeypatch.setattr(model, "encode", lambda image: encodings.append(len(image)) or encode(image))
    encoders = [module for module in model.modules() if isinstance(module, Encoder)]
    for encoder in encoders:
        encoder.register_forward_hook(lambda module, args, output: calls.append((module, len(args[0]))))
    sample(model, image, number, chunk_size=chunk_size)
    assert encodings == [2]
    assert encoders
    if hasattr(model.config, "num_steps"):  # networks that refine a sample in several passes
        return
    assert len(calls) == len({module for module, _ in calls})
    assert {items for _, items in calls} == {2}


def test_samples_depend_on_seed(name):
    model = settled(name)
    image, _ = batch(model, ODD, 2)
    first, again, other = (sample(model, image, 8, *seeds) for seeds in ((1, 2), (1, 2), (3, 4)))
    assert torch.equal(first, again)
    assert torch.equal(first, other) != is_stochastic(model)
    assert torch.equal(first[:, :4], first[:, 4:]) != is_stochastic(model)


def test_loss_depends_on_seed(name):
    model = settled(name)
    first, again, other = (
        model(*batch(model), generator=seeded_generator(seed)).total.item() for seed in (0, 0, 1)
    )
    assert first == again
    assert (first == other) == (model.config.name in LOSS_WITHOUT_NOISE)


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 5, 9])
def test_samples_do_not_depend_on_chunk_size(name, chunk_size):
    model = settled(name)
    image, _ = batch(model, ODD, 2)
    with torch.no_grad():
        chunks = list(model.sample_chunks(image, 5, generator=generators(1, 2), chunk_size=chunk_size))
    assert [chunk.shape[1] for chunk in chunks] == [min(chunk_size, 5 - start) for start in range(0, 5, chunk_size)]
    close(torch.cat(chunks, dim=1), sample(model, image, 5, 1, 2))
    close(sample(model, image, 5, chunk_size=chunk_size), sample(model, image, 5))


def test_samples_do_not_depend_on_other_images(name):
    model = settled(name)
    image, _ = batch(model, ODD, 3)
    together = sample(model, image, 2, 1, 2, 3)
    for row in range(3):
        close(sample(model, image[row : row + 1], 2, row + 1), together[row : row + 1])
    close(sample(model, image.flip(0), 2, 3, 2, 1), together.flip(0))


def test_first_samples_do_not_depend_on_num_samples(name):
    model = settled(name)
    image, _ = batch(model, ODD, 2)
    close(sample(model, image, 2, 1, 2), sample(model, image, 5, 1, 2)[:, :2])


def test_sample_levels_end_in_the_sample(name):
    model = settled(name)
    image, _ = batch(model, ODD, 2)
    noise = draw_noise(model.noise_shapes(full_size(model.config, ODD)), 2, 3, seeded_generator(0))
    with torch.no_grad():
        levels = model.sample_levels(model.encode(image), noise, 3)
    assert {level.shape for level in levels} == {(2, 3, 2, *full_size(model.config, ODD))}
    close(levels[0], sample(model, image, 3))


@pytest.mark.parametrize("channels", [2, 3])
@pytest.mark.parametrize("dims", [0, 1, 2, 3, 4])
def test_model_rejects_image_of_wrong_shape(name, channels, dims):
    model = settled(name, image_channels=2)
    size = (16,) * model.config.dims
    if (channels, dims) == (2, model.config.dims):
        pytest.skip("this shape is correct")
    image, labels = torch.zeros(1, channels, *(16,) * dims), torch.zeros(1, *size, dtype=torch.long)
    for use in (
        lambda: model.encode(image),
        lambda: model.sample(image, 1, generator=seeded_generator(0)),
        lambda: model(image, labels, generator=seeded_generator(0)),
    ):
        with pytest.raises(ModelError) as caught:
            use()
        expected = "images (batch, 2, height, width)"
        if model.config.dims == 3:
            expected = "volumes (batch, 2, depth, height, width)"
        assert expected in str(caught.value)
        assert str(tuple(image.shape)) in str(caught.value)
        other = f"use a model with dims = {dims}"
        assert (other in str(caught.value)) == (dims in (2, 3) and dims != model.config.dims)
        raw = "model.prepare(image)" if model.config.dims == 2 else "model.predict(scan)"
        assert (raw in str(caught.value)) != (other in str(caught.value))


@pytest.mark.parametrize(
    ("number", "chunk_size", "wrong"), [(0, None, "num_samples is 0"), (2, 0, "chunk_size is 0")]
)
def test_sample_rejects_invalid_numbers(name, number, chunk_size, wrong):
    model = settled(name)
    with pytest.raises(ModelError, match=wrong):
        sample(model, batch(model)[0], number, chunk_size=chunk_size)


def test_saved_model_gives_identical_samples(name, tmp_path):
    model = settled(name, num_classes=3)
    save_model(tmp_path, model, preprocessing={"a": 1}, provenance={"b": 2}, card="card")
    loaded = load_model(tmp_path)
    assert type(loaded) is type(model)
    assert loaded.config == model.config
    assert not loaded.training
    assert (loaded.preprocessing, loaded.provenance) == ({"a": 1}, {"b": 2})
    image, labels = batch(model, ODD)
    assert torch.equal(sample(loaded, image, 2), sample(model, image, 2))
    losses = [m(image, labels, generator=seeded_generator(0)).total for m in (model, loaded)]
    assert torch.equal(*losses)


def test_sampling_has_no_side_effects(name):
    """Weights, statistics and the global generator of torch do not change."""
    model = settled(name)
    image, labels = batch(model, ODD)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    state, given = torch.get_rng_state(), image.clone()
    sample(model, image, 2)
    model(image, labels, generator=seeded_generator(0))
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(image, given)


def test_state_dict_names_depend_on_config_only(name):
    first, second = (build(name, seed=seed).state_dict() for seed in (0, 1))
    assert [(k, v.shape, v.dtype) for k, v in first.items()] == [(k, v.shape, v.dtype) for k, v in second.items()]


def test_deep_copy_is_equal_and_independent(name):
    model = settled(name)
    twin = copy.deepcopy(model)
    image, _ = batch(model, ODD)
    before = sample(model, image, 2)
    assert list(twin.state_dict()) == list(model.state_dict())
    assert torch.equal(sample(twin, image, 2), before)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert torch.equal(sample(model, image, 2), before)


@pytest.mark.parametrize("training", [True, False])
def test_loss_is_float32_and_finite_under_autocast(name, training):
    model = settled(name).train(training)
    image, labels = batch(model, ODD)
    exact = copy.deepcopy(model)(image, labels, generator=seeded_generator(0)).total.item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(image, labels, generator=seeded_generator(0))
        samples = sample(model.eval(), image, 2)
    assert {loss.total.dtype, *(term.dtype for term in loss.terms.values())} == {torch.float32}
    assert loss.total.item() == pytest.approx(exact, rel=0.1)
    assert samples.isfinite().all()
    loss.total.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.requires_grad)


def test_bfloat16_samples_are_close_to_float32(name, bfloat16):
    model = settled(name)
    low = copy.deepcopy(model)
    compute_in_bfloat16(low)
    image, _ = batch(model, ODD)
    exact, drawn = sample(model, image, 3), sample(low, image, 3)
    assert drawn.dtype == torch.float32
    assert not torch.equal(drawn, exact)
    assert (drawn.softmax(2) - exact.softmax(2)).abs().mean() < 0.02
    assert (drawn.argmax(2) != exact.argmax(2)).float().mean() < 0.05
    assert {tensor.dtype for tensor in low.state_dict().values()} == {t.dtype for t in model.state_dict().values()}


def test_model_exposes_its_config(name):
    model = build(name)
    assert type(model.config) is config_class(name)
    assert config_class(name).parse(model.config.model_dump(mode="json"), where="x") == model.config
    assert model.preprocessing == model.provenance == {}


def test_context_adds_channels_and_accepts_single_slices(name):
    """A slice without adjacent slices is repeated in their place. Volumes have their slices already."""
    if EXTRA.get(name, {}).get("dims") == 3:
        with pytest.raises(ConfigError, match="with dims = 3, use context = 0"):
            config_class(name).parse({**SMALL, **EXTRA[name], "context": 1}, where="recipe.yaml")
        return
    model = settled(name, context=1)
    image, _ = batch(model)
    assert image.shape[1] == 3
    assert sample(model, image, 2, *range(4)).isfinite().all()
    alone = image[:, :1]
    repeated = sample(model, alone.repeat(1, 3, 1, 1), 2, *range(4))
    close(sample(model, alone, 2, *range(4)), repeated)
    with pytest.raises(ModelError, match=r"images \(batch, 3, height, width\), including 1 slice on each side"):
        sample(model, image[:, :2], 2, *range(4))

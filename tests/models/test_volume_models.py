"""3-D models: strides and kernels for each axis, and equality with 2-D models for a single slice."""

import copy
from itertools import pairwise

import pytest
import torch

from helpers.tiny_models import batch
from phiseg.core.errors import ConfigError, ModelError
from phiseg.models.noise import draw_noise, seeded_generator
from phiseg.models.phiseg import PHiSegConfig
from phiseg.models.registry import MODELS, build_model
from phiseg.models.segmenter import unpad

CHANNELS = (4, 5, 6, 7)
SMALL = {"channels": CHANNELS, "blocks_per_level": 1}
IN_PLANE = {"dims": 3, "strides": ((1, 2, 2),) * 3, "kernels": ((1, 3, 3),) * 4}
ANISOTROPIC = {
    "dims": 3,
    "strides": ((1, 2, 2), (2, 2, 1), (2, 2, 2)),
    "kernels": ((1, 3, 3), (3, 3, 3), (3, 3, 1), (3, 3, 3)),
}
EXTRA = {
    "hprobunet": {"num_levels": 2},
    "phiseg": {"num_levels": 3, "presence": True},
    "phiseg-ensemble": {"num_levels": 3, "members": 2, "presence": True},
}
OPTIONS = {
    "latents at the finest levels": {"latents_at": "finest"},
    "bilinear": {"upsampling": "bilinear"},
    "residual": {"channels": (4,) * 4, "residual": True},
    "shared encoder": {"shared_encoder": True},
    "group norm": {"norm": "group"},
}


def build(name, seed=0, **settings):
    torch.manual_seed(seed)
    return build_model(MODELS[name].Config(**SMALL | EXTRA.get(name, {}) | settings))


def volume_batch(model, size, number=2):
    return batch(model.config, size, number)


def assert_single_slices_match(name, **settings):
    """Train a 2-D model and its 3-D copy for a step, and compare losses, gradients and samples."""
    flat, deep = build(name, **settings).train(), build(name, **IN_PLANE, **settings).train()
    weights = {key: value if value.ndim != 4 else value[:, :, None] for key, value in flat.state_dict().items()}
    deep.load_state_dict(weights)
    image, labels = batch(flat.config, (19, 27), 4)
    losses = [
        model(images, targets, generator=seeded_generator(1))
        for model, images, targets in ((flat, image, labels), (deep, image[:, :, None], labels[:, None]))
    ]
    assert losses[0].terms.keys() == losses[1].terms.keys()
    for key, value in losses[0].terms.items():
        torch.testing.assert_close(losses[1].terms[key], value, rtol=1e-4, atol=1e-3)
    for loss in losses:
        loss.total.backward()
    for (key, parameter), other in zip(flat.named_parameters(), deep.parameters(), strict=True):
        if not parameter.requires_grad:  # frozen
            continue
        change = other.grad.reshape(parameter.shape) - parameter.grad
        assert change.norm() <= 0.01 * parameter.grad.norm() + 0.01, key  # rounding may flip a few ReLUs
    samples = flat.eval().sample(image, 3, generator=seeded_generator(2))
    volumes = deep.eval().sample(image[:, :, None], 3, generator=seeded_generator(2))
    assert volumes.shape == (4, 3, 2, 1, 19, 27)
    torch.testing.assert_close(volumes[:, :, :, 0], samples, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_model_of_single_slices_equals_model_of_images(name):
    assert_single_slices_match(name)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_phiseg_of_single_slices_equals_phiseg_of_images(options):
    assert_single_slices_match("phiseg", **options)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", [(1, 5, 3), (5, 9, 6)])
def test_anisotropic_strides_pad_and_crop_all_axes(name, size):
    model = build(name, **ANISOTROPIC).train()
    assert model.strides == (4, 8, 4)
    image, labels = volume_batch(model, size)
    padded = model.pad(image)
    assert tuple(padded.shape[2:]) == model.padded_size(size) == ((4, 8, 4) if size[0] == 1 else (8, 16, 8))
    assert torch.equal(unpad(padded, size), image)
    indices = [torch.arange(new).clamp(max=old - 1) for new, old in zip(padded.shape[2:], size, strict=True)]
    depth, rows, columns = indices
    assert torch.equal(padded, image[:, :, depth][:, :, :, rows][..., columns])
    loss = model(image, labels, generator=seeded_generator(0)).total
    loss.backward()
    assert loss.isfinite()
    assert model.eval().sample(image, 2, generator=seeded_generator(0)).shape == (2, 2, 2, *size)


def test_latents_are_volumes_of_each_level():
    model = build("phiseg", presence=False, **ANISOTROPIC)
    shapes = [(2, 16, 8, 4), (2, 8, 4, 4), (2, 4, 2, 2)]  # of the 3 coarsest of 4 levels
    assert model.noise_shapes((16, 16, 8)) == shapes
    encoding = model.encode(torch.randn(1, 1, 16, 16, 8))
    assert [tuple(feature.shape[2:]) for feature in encoding.features] == [shape[1:] for shape in shapes]
    latents = model.sample_latents(encoding, draw_noise(shapes, 1, 2, seeded_generator(0)))
    assert [tuple(latent.shape) for latent in latents] == [(1, 2, *shape) for shape in shapes]


def test_kernels_limit_the_view_along_an_axis():
    """With kernels of 1 and strides of 1 along an axis, its slices do not see each other."""
    model = build("unet", **IN_PLANE).eval()
    image = torch.randn(1, 1, 3, 8, 8)
    changed = image.clone()
    changed[:, :, 1] += 1
    with torch.no_grad():
        (before,), _ = model.encode(image)
        (after,), _ = model.encode(changed)
    moved = (before - after).abs().amax((0, 1, 3, 4))
    assert moved[1] > 1e-3
    assert moved[[0, 2]].max() < 1e-6


def test_slices_see_each_other():
    model = build("unet", **ANISOTROPIC).eval()
    image = torch.randn(1, 1, 8, 8, 8)
    changed = image.clone()
    changed[:, :, 3] += 1
    with torch.no_grad():
        (before,), _ = model.encode(image)
        (after,), _ = model.encode(changed)
    assert (before - after).abs().amax((0, 1, 3, 4)).min() > 1e-6


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_checkpointed_step_gives_same_weights_and_statistics(norm):
    keeping = build("phiseg", norm=norm, **ANISOTROPIC).train()
    forgetting = copy.deepcopy(keeping)
    forgetting.checkpoint_activations(True)
    image, labels = volume_batch(keeping, (5, 16, 9))
    losses = [model(image, labels, generator=seeded_generator(0)).total for model in (keeping, forgetting)]
    assert losses[0].item() == losses[1].item()
    for loss in losses:
        loss.backward()
    for (name, parameter), other in zip(keeping.named_parameters(), forgetting.parameters(), strict=True):
        assert torch.equal(parameter.grad, other.grad), name
    for (name, buffer), other in zip(keeping.named_buffers(), forgetting.buffers(), strict=True):
        assert torch.equal(buffer, other), name


def test_sizes_of_other_dimensions_are_refused():
    with pytest.raises(ModelError, match=r"the model has 3 dimensions, but the size \(16, 16\) has 2"):
        build("phiseg", **ANISOTROPIC).noise_shapes((16, 16))
    with pytest.raises(ModelError, match=r"the model has 2 dimensions, but the size \(4, 16, 16\) has 3"):
        build("phiseg").noise_shapes((4, 16, 16))


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"dims": 4}, "dims"),
        ({"strides": ((2, 2),) * 4}, "strides must have 3 entries for these channels, each with 2 numbers 1 or 2"),
        ({"dims": 3, "strides": ((2, 2),) * 3}, "each with 3 numbers 1 or 2"),
        ({"strides": ((2, 3),) * 3}, "each with 2 numbers 1 or 2"),
        ({"kernels": ((3, 3),) * 3}, "kernels must have 4 entries"),
        ({"dims": 3, "kernels": ((5, 3, 3),) * 4}, "each with 3 numbers 1 or 3"),
    ],
    ids=str,
)
def test_config_rejects_invalid_axes(settings, wrong):
    with pytest.raises(ConfigError) as caught:
        PHiSegConfig.parse({"name": "phiseg", "num_levels": 3, **SMALL, **settings}, where="recipe.yaml")
    assert wrong in str(caught.value)


def test_strides_of_images_can_differ():
    model = build("phiseg", strides=((2, 1), (2, 2), (1, 2)), kernels=((3, 1), (3, 3), (3, 3), (1, 1)))
    assert model.strides == (4, 4)
    image, labels = batch(model.config, (7, 5))
    assert model(image, labels, generator=seeded_generator(0)).total.isfinite()
    shapes = model.noise_shapes((8, 8))[:3]
    assert shapes == [(2, 4, 8), (2, 2, 4), (2, 2, 2)]
    assert all(a[1] >= b[1] for a, b in pairwise(shapes))

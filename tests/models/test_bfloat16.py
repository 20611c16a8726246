"""Sampling in bfloat16: results are float32, close to those in float32, and autocast ends with each call."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from helpers.tiny_models import trained
from phiseg.models import load_model, save_model
from phiseg.models.bfloat16 import compute_in_bfloat16
from phiseg.models.noise import draw_noise, seeded_generator
from phiseg.models.phiseg import PHiSeg, PHiSegConfig

CONFIG = PHiSegConfig(channels=(8, 12, 16), num_levels=3, kl_weights="paper")

pytestmark = pytest.mark.usefixtures("bfloat16")


@pytest.fixture(scope="module")
def models():
    """Return a trained model in float32, and the same in bfloat16."""
    exact = trained(CONFIG, steps=20, size=(16, 16))
    low = copy.deepcopy(exact)
    compute_in_bfloat16(low)
    return exact, low


def image(number=2):
    return torch.randn(number, 1, 16, 16, generator=torch.Generator().manual_seed(1))


def draw(model, number=8, **options):
    generators = [seeded_generator(0, "image", n) for n in range(2)]
    return model.sample(image(), number, generator=generators, **options)


def close(first, second):
    """Assert equality up to rounding in bfloat16, which has 8 significant bits; single pixels may differ more."""
    assert (first.softmax(2) - second.softmax(2)).abs().mean() < 0.02
    assert (first.argmax(2) != second.argmax(2)).float().mean() < 0.03


def test_bfloat16_results_are_float32_and_close(models):
    exact, low = models
    logits = draw(low)
    assert logits.dtype == torch.float32
    assert not torch.equal(logits, draw(exact))
    close(logits, draw(exact))
    with torch.no_grad():
        encoding = low.encode(image())
        noise = draw_noise(low.noise_shapes((16, 16)), 2, 3, seeded_generator(0))
        outputs = [*encoding.features, *low.sample_levels(encoding, noise, 3)]
        assert len(low.sample_latents(encoding, noise)) == 3  # features are usable without autocast
    assert {tensor.dtype for tensor in outputs} == {torch.float32}


@pytest.mark.parametrize("chunk_size", [1, 3, 5])
def test_bfloat16_samples_do_not_depend_on_the_chunk_size(models, chunk_size):
    close(draw(models[1], chunk_size=chunk_size), draw(models[1]))


def test_bfloat16_samples_are_equal_in_threads(models):
    expected = draw(models[1])
    with ThreadPoolExecutor(2) as threads:
        for found in threads.map(lambda _: draw(models[1]), range(4)):
            close(found, expected)


def test_bfloat16_ends_between_chunks(models):
    chunks = models[1].sample_chunks(image(), 4, generator=seeded_generator(0), chunk_size=2)
    for logits in chunks:
        assert logits.dtype == torch.float32
        assert not torch.is_autocast_enabled("cpu")
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_copy_of_a_bfloat16_model_is_independent(models):
    low = models[1]
    twin, before = copy.deepcopy(low), draw(low)
    assert isinstance(twin, PHiSeg)
    assert torch.equal(draw(twin), before)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not torch.equal(draw(twin), before)
    assert torch.equal(draw(low), before)


def test_load_model_in_both_precisions(models, tmp_path):
    exact, low = models
    save_model(tmp_path / "model", low, preprocessing={}, provenance={}, card="")
    loaded = {
        precision: load_model(tmp_path / "model", precision=precision) for precision in ("float32", "bfloat16")
    }
    assert type(loaded["float32"]) is PHiSeg
    assert torch.equal(draw(loaded["float32"]), draw(exact))
    assert torch.equal(draw(loaded["bfloat16"]), draw(low))

"""Losses compared with loops over the intermediate outputs of the networks."""

import math

import pytest
import torch

from helpers.tiny_models import batch, record, record_phiseg, tiny_phiseg, trained
from phiseg.core.errors import ConfigError
from phiseg.models.gaussian import Gaussian
from phiseg.models.noise import draw_noise, seeded_generator
from phiseg.models.objective import cross_entropy, kl_weights, negative_elbo
from phiseg.models.phiseg import PHiSegConfig
from phiseg.models.probunet import ProbUNetConfig
from phiseg.models.unet import UNetConfig

SIZE = (7, 9)  # not multiples of the stride
ALPHA = {
    "paper": (1.0, 2.0, 4.0),  # 2^(l-1) for l = 1, 2, 3
    "reference": (1.0, 4.0, 16.0),
    "unit": (1.0, 1.0, 1.0),
    (0.5, 0.0, 3.0): (0.5, 0.0, 3.0),
}


def naive_cross_entropy(logits, labels, level=0):
    """-log softmax at the label, pixel by pixel; of logits that may be padded at the bottom and the right.

    Logits of a coarse level are those of each of the 2^level x 2^level pixels of a cell.
    """
    total = 0.0
    logits = logits.repeat_interleave(2**level, 2).repeat_interleave(2**level, 3)
    logits, labels = logits.detach().double().numpy(), labels.numpy()
    for b in range(labels.shape[0]):
        for i in range(labels.shape[1]):
            for j in range(labels.shape[2]):
                scores = [float(score) for score in logits[b, :, i, j]]
                total -= scores[labels[b, i, j]] - math.log(sum(math.exp(score) for score in scores))
    return total / len(labels)


def naive_kl(q, p):
    """KL of two normal distributions, element by element: E_q[log q - log p] in closed form."""
    columns = [tensor.detach().double().flatten().tolist() for tensor in (*q, *p)]
    total = 0.0
    for mq, sq, mp, sp in zip(*columns, strict=True):
        expected_log_q = -math.log(sq) - 0.5
        expected_log_p = -math.log(sp) - (sq**2 + (mq - mp) ** 2) / (2 * sp**2)
        total += expected_log_q - expected_log_p
    return total / len(q.mean)


def close(value):
    return pytest.approx(value, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("setting", ALPHA, ids=str)
@pytest.mark.parametrize("latents_at", ["coarsest", "finest"])
def test_phiseg_loss_is_equation_2_with_deep_supervision(setting, latents_at):
    model = tiny_phiseg(kl_weights=setting, latents_at=latents_at, num_classes=3)
    image, labels = batch(model.config, SIZE)
    with record_phiseg(model) as recorded:
        loss = model(image, labels, generator=seeded_generator(5))
    calls = recorded.calls
    assert all(len(made) == 1 for made in calls.values())

    ((likelihood_input,), level_logits) = calls["likelihood"][0]
    noise = draw_noise(model.noise_shapes(SIZE), len(image), 1, seeded_generator(5))
    latents = []
    for level in range(3):
        mean, std = calls[f"posterior/{level}"][0][1]
        latents.append(mean + std * noise[level][:, 0])
        torch.testing.assert_close(likelihood_input[level], latents[level])
    for level in range(2):  # both networks see the posterior sample of the next coarser level
        for side in ("prior", "posterior"):
            torch.testing.assert_close(calls[f"{side}/{level}"][0][0][1], latents[level + 1])

    ces = [naive_cross_entropy(logits, labels, level) for level, logits in enumerate(level_logits)]
    kls = [naive_kl(calls[f"posterior/{level}"][0][1], calls[f"prior/{level}"][0][1]) for level in range(3)]
    assert loss.terms.keys() == {
        *(f"cross_entropy/{level}" for level in range(3)),
        *(f"kl/{level}" for level in range(3)),
        "elbo",
    }
    for level in range(3):
        assert loss.terms[f"cross_entropy/{level}"].item() == close(ces[level])
        assert loss.terms[f"kl/{level}"].item() == close(kls[level])
    assert loss.terms["elbo"].item() == close(-ces[0] - sum(kls))
    assert loss.total.item() == close(sum(ces) + sum(a * kl for a, kl in zip(ALPHA[setting], kls, strict=True)))


def test_phiseg_posterior_input():
    model = tiny_phiseg(num_classes=3, image_channels=2)
    image, labels = batch(model.config, (8, 8))
    with record_phiseg(model) as recorded:
        model(image, labels, generator=seeded_generator(0))
    ((seen,), _) = recorded.calls["posterior_encoder"][0]
    planes = [(labels == k).float() - 0.5 for k in range(3)]
    assert torch.equal(seen, torch.cat([image, torch.stack(planes, dim=1)], dim=1))


@pytest.mark.parametrize("kl_weight", [1.0, 2.5])
def test_probunet_loss(kl_weight):
    config = ProbUNetConfig(channels=(4, 5, 6), blocks_per_level=1, num_classes=3, head_init=1, kl_weight=kl_weight)
    model = trained(config)
    image, labels = batch(config, SIZE)
    with record(prior=model.prior, posterior=model.posterior, combine=model.combine, out=model.output) as recorded:
        loss = model(image, labels, generator=seeded_generator(5))
    calls = recorded.calls
    (_, posterior), (_, prior), (_, logits) = (calls[name][0] for name in ("posterior", "prior", "out"))
    (noise,) = draw_noise(model.noise_shapes(SIZE), len(image), 1, seeded_generator(5))
    latent = posterior.mean + posterior.std * noise[:, 0]
    ((joined,), _) = calls["combine"][0]
    torch.testing.assert_close(joined[:, 4:], latent[:, :, None, None].expand(-1, -1, *joined.shape[-2:]))
    ce, kl = naive_cross_entropy(logits, labels), naive_kl(posterior, prior)
    assert kl > 0.1
    assert loss.terms["elbo"].item() == close(-ce - kl)
    assert loss.total.item() == close(ce + kl_weight * kl)


def test_unet_loss():
    config = UNetConfig(channels=(4, 5, 6), blocks_per_level=1, num_classes=3)
    model = trained(config)
    image, labels = batch(config, SIZE)
    with record(out=model.output) as recorded:
        loss = model(image, labels, generator=seeded_generator(5))
    ((_, logits),) = recorded.calls["out"]
    assert loss.total.item() == close(naive_cross_entropy(logits, labels))
    assert loss.terms["elbo"].item() == close(-loss.total.item())


@pytest.mark.parametrize(("free", "counted"), [(0.0, 1.0), (0.5, 1.0), (3.0, 3.0)])
def test_negative_elbo_free_nats(free, counted):
    """KL[N(1, 1) || N(0, 1)] is 1/2, KL[N(sqrt 2, 1) || N(0, 1)] is 1: each image has 1."""
    logits, labels = torch.zeros(2, 2, 1, 1), torch.zeros(2, 1, 1, dtype=torch.long)
    mean = torch.tensor([[1.0, 1.0], [0.0, 2**0.5]], requires_grad=True)
    q, p = Gaussian(mean, torch.ones(2, 2)), Gaussian(torch.zeros(2, 2), torch.ones(2, 2))
    loss = negative_elbo([logits], labels, [q], [p], [5.0], free_nats=free)
    assert loss.terms["kl/0"].item() == pytest.approx(1)
    assert loss.total.item() == pytest.approx(math.log(2) + 5 * counted)
    loss.total.backward()
    assert bool(mean.grad.any()) == (free < 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cross_entropy_is_float32(dtype):
    """In half precision, the sum over 16,384 pixels would overflow or be inexact."""
    logits = torch.zeros(2, 2, 128, 128, dtype=dtype)
    result = cross_entropy(logits, torch.zeros(2, 128, 128, dtype=torch.long))
    assert result.dtype == torch.float32
    assert result.item() == pytest.approx(128 * 128 * math.log(2), rel=1e-5)


def test_loss_terms_have_no_gradient():
    logits = torch.randn(2, 2, 3, 3, requires_grad=True)
    q = Gaussian(torch.randn(2, 4, requires_grad=True), torch.rand(2, 4) + 0.1)
    p = Gaussian(torch.zeros(2, 4), torch.ones(2, 4))
    loss = negative_elbo([logits], torch.zeros(2, 3, 3, dtype=torch.long), [q], [p], [1.0])
    assert loss.total.requires_grad
    assert not any(term.requires_grad for term in loss.terms.values())
    loss.total.backward()
    assert logits.grad.any()
    assert q.mean.grad.any()


@pytest.mark.parametrize(
    ("setting", "weights"), [("paper", (1, 2, 4, 8, 16)), ("reference", (1, 4, 16, 64, 256)), ("unit", (1,) * 5)]
)
def test_kl_weights_by_name(setting, weights):
    assert kl_weights(setting, 5) == weights


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0, 2.0], "kl_weights has 2 numbers for 3 levels"),
        ([1.0, 2.0, -1.0], "'kl_weights.2' = -1.0: Input should be greater than or equal to 0"),
        ([1.0, 2.0, float("inf")], "'kl_weights.2' = inf: Input should be a finite number"),
        ("papr", "Input should be 'paper', 'reference' or 'unit'"),
    ],
)
def test_kl_weights_reject_invalid_values(value, message):
    with pytest.raises(ConfigError) as caught:
        PHiSegConfig.parse({"num_levels": 3, "kl_weights": value}, where="recipe")
    assert message in str(caught.value)

"""Categorical diffusion: noise, posterior and samples, compared with naive computations."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from helpers.tiny_models import batch, trained
from phiseg.models.ccdm import CCDMConfig, draw_classes, kept_shares, sampled_steps
from phiseg.models.noise import draw_noise, seeded_generator

SIZE = (5, 7)  # not multiples of the stride 4
CLASSES, STEPS = 3, 6


@pytest.fixture(scope="module")
def model():
    config = CCDMConfig(
        channels=(4, 5, 6), blocks_per_level=1, num_classes=CLASSES, diffusion_steps=STEPS, num_steps=3
    )
    return trained(config)


def transition(kept):
    """Return the matrix of one transition: row s, column s'."""
    return kept * np.eye(CLASSES) + (1 - kept) / CLASSES * np.ones((CLASSES, CLASSES))


def chain(first, last):
    """Return the product of the transition matrices of steps first + 1 .. last."""
    shares = kept_shares(STEPS).double().numpy()
    matrix = np.eye(CLASSES)
    for step in range(first, last):
        matrix = matrix @ transition(shares[step + 1] / shares[step])
    return matrix


@pytest.mark.parametrize(("t", "u"), [(1, 0), (4, 3), (6, 2), (6, 0)])
def test_posterior_equals_bayes_rule_for_a_markov_chain(model, t, u):
    first, second = chain(0, u), chain(u, t)
    for start, end in itertools.product(range(CLASSES), repeat=2):
        joint = first[start] * second[:, end]  # over s_u
        expected = joint / joint.sum()
        one_hot = F.one_hot(torch.tensor([start, end]), CLASSES)[..., None, None].float()
        times = (torch.tensor([t]), torch.tensor([u]))
        found = model.posterior(one_hot[1:], one_hot[:1], *times)
        np.testing.assert_allclose(found[0, :, 0, 0].numpy(), expected, atol=1e-6)


def test_posterior_averages_over_the_predicted_classes(model):
    probs = torch.tensor([0.2, 0.5, 0.3])[None, :, None, None]
    noisy = F.one_hot(torch.tensor([[[2]]]), CLASSES).movedim(-1, 1).float()
    times = (torch.tensor([5]), torch.tensor([3]))
    each = [
        model.posterior(noisy, F.one_hot(torch.tensor([[[k]]]), CLASSES).movedim(-1, 1).float(), *times)
        for k in range(3)
    ]
    expected = sum(float(p) * part for p, part in zip(probs.flatten(), each, strict=True))
    torch.testing.assert_close(model.posterior(noisy, probs, *times), expected)
    torch.testing.assert_close(expected.sum(1), torch.ones(1, 1, 1))


def test_noise_is_complete_after_the_last_step(model):
    labels = F.one_hot(torch.zeros(1, 2, 2, dtype=torch.long), CLASSES).movedim(-1, 1).float()
    probs = model.noisy_probs(labels, torch.tensor([STEPS]))
    assert (probs - 1 / CLASSES).abs().max() < 1e-3


def test_loss_is_the_bound_of_a_known_case(model):
    """With a network that always predicts equal classes, T KL averaged over all steps has a closed form."""
    image, labels = batch(model.config, SIZE, 64)
    shares = kept_shares(STEPS).double().numpy()
    expected = 0.0
    for t in range(1, STEPS + 1):
        q_t = chain(0, t)[0]
        for end in range(CLASSES):

            def posterior(start, t=t, end=end):
                joint = chain(0, t - 1)[start] * transition(shares[t] / shares[t - 1])[:, end]
                return joint / joint.sum()

            true = posterior(0)
            predicted = sum(posterior(start) for start in range(CLASSES)) / CLASSES
            terms = [p * np.log(p / m) for p, m in zip(true, predicted, strict=True) if p > 0]
            expected += q_t[end] * sum(terms)
    original = model._predict
    model._predict = lambda padded, noisy, t, size: torch.zeros_like(noisy)
    try:
        losses = [float(model(image, labels, generator=seeded_generator(seed)).total) for seed in range(40)]
    finally:
        model._predict = original
    per_pixel = np.array(losses) / (SIZE[0] * SIZE[1])
    assert per_pixel.mean() == pytest.approx(expected, abs=4 * per_pixel.std() / np.sqrt(len(losses)))


@torch.no_grad()
def test_samples_match_a_naive_chain(model):
    """Every pixel is drawn from Bayes' rule for the skipped steps, averaged over the predicted classes."""
    image, _ = batch(model.config, SIZE, 2)
    (noise,) = draw_noise(model.noise_shapes(SIZE), 2, 3, seeded_generator(0))
    found = model.decode_samples(model.encode(image), [noise], 3)
    numbers = torch.special.ndtr(noise.double()).numpy()
    for case, sample in np.ndindex(2, 3):
        (padded,), size = model.encode(image[case : case + 1])

        def predict(labels, t, padded=padded, size=size):
            one_hot = F.one_hot(torch.from_numpy(labels)[None], CLASSES).movedim(-1, 1).float()
            return model._predict(padded, one_hot, torch.tensor([t]), size)[0]

        labels = np.floor(numbers[case, sample, 0] * CLASSES).astype(np.int64)
        for number, (t, u) in enumerate([(6, 4), (4, 2)], start=1):
            first, second = chain(0, u), chain(u, t)
            predicted = predict(labels, t).softmax(0).double().numpy()
            for pixel in np.ndindex(SIZE):
                joint = first * second[:, labels[pixel]]  # (s_0, s_u)
                probs = predicted[(slice(None), *pixel)] @ (joint / joint.sum(1, keepdims=True))
                labels[pixel] = np.searchsorted(np.cumsum(probs), numbers[(case, sample, number, *pixel)])
        torch.testing.assert_close(found[case, sample], predict(labels, 2), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_few_steps_of_an_exact_network_keep_the_distribution(model, monkeypatch):
    """With the true p(s_0 | s_t), the labels have the distribution q(s_t) in every step."""
    shares = torch.tensor([0.7, 0.2, 0.1])
    visited = {}

    def exact(padded, noisy, t, size):
        visited[int(t[0])] = noisy.mean((0, 2, 3))
        kept = model.kept[t[0]]
        return (shares[:, None, None] * (kept * noisy + (1 - kept) / CLASSES)).log()

    monkeypatch.setattr(model, "_predict", exact)
    image, _ = batch(model.config, SIZE, 1)
    noise = draw_noise(model.noise_shapes(SIZE), 1, 600, seeded_generator(0))
    probs = model.decode_samples(model.encode(image), noise, 600).softmax(2)
    assert list(visited) == [6, 4, 2]
    for t, found in visited.items():
        expected = torch.from_numpy(shares.double().numpy() @ chain(0, t)).float()
        torch.testing.assert_close(found, expected, atol=0.015, rtol=0)  # four standard errors
    torch.testing.assert_close(probs.mean((0, 1, 3, 4)), shares, atol=0.015, rtol=0)


def test_draw_classes_follows_the_probabilities():
    probs = torch.tensor([0.1, 0.6, 0.3])[None, :, None, None].expand(1, 3, 1, 1000)
    numbers = (torch.arange(1000) + 0.5) / 1000
    shares = draw_classes(probs, numbers[None, None]).mean((0, 2, 3))
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.6, 0.3]), atol=2e-3, rtol=0)
    largest = draw_classes(probs[..., :1], torch.ones(1, 1, 1))
    assert largest[0, :, 0, 0].tolist() == [0, 0, 1]


def test_sampled_steps_start_with_all_noise():
    assert sampled_steps(250, 250) == list(range(250, 0, -1))
    assert sampled_steps(250, 3)[0] == 250
    assert min(sampled_steps(250, 3)) >= 1


def test_more_sampling_steps_than_diffusion_steps_are_refused():
    with pytest.raises(ValidationError, match="more than diffusion_steps"):
        CCDMConfig(diffusion_steps=5, num_steps=6)


def test_noise_cannot_be_scaled(model):
    assert model.takes_temperature == (False,)

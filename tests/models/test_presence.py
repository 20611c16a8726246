"""The classifier that decides whether a sample is empty, and what it changes in the loss."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch

from helpers.tiny_models import batch, record, tiny_phiseg
from phiseg.models.noise import draw_noise, seeded_generator
from phiseg.models.presence import add_absent, choose_present, draw_present, erase_absent


@pytest.mark.parametrize("probability", [0.05, 0.3, 0.9])
def test_draw_present_draws_the_predicted_share_of_samples(probability):
    noise = torch.randn(2, 4000, generator=seeded_generator(1))
    logits = torch.full((2,), math.log(probability / (1 - probability)))
    assert draw_present(logits, noise).double().mean().item() == pytest.approx(probability, abs=0.02)


def test_draw_present_draws_more_samples_where_presence_is_more_likely():
    """The same noise in two slices: a sample that is present in the less likely one is present in the other."""
    noise = torch.randn(1, 500, generator=seeded_generator(1)).expand(2, -1)
    unlikely, likely = draw_present(torch.tensor([-1.0, 1.0]), noise)
    assert unlikely.any()
    assert not likely.all()
    assert (likely | ~unlikely).all()


@pytest.mark.parametrize("present", [[[True, False, True], [False, False, True]], [[False] * 3] * 2])
def test_absent_samples_are_certain_background(present):
    samples = torch.randn(2, 3, 3, 2, 2, generator=seeded_generator(0))
    mask = torch.tensor(present)
    erased, added = erase_absent(samples, mask), add_absent(samples[mask], mask)
    assert torch.equal(erased, added)
    assert torch.equal(erased[mask], samples[mask])
    assert (erased[~mask].softmax(1)[:, 0] > 0.999999).all()


@pytest.mark.parametrize("shift", [-100.0, 0.0, 100.0])
def test_samples_equal_those_of_the_plain_computation(shift):
    """All samples are decoded, one at a time, and replaced where nothing is present: no, some or all of them."""
    model = tiny_phiseg(presence=True)
    image, _ = batch(model.config, number=2)
    with torch.no_grad():
        encoding = model.encode(image)
        encoding = encoding._replace(features=(*encoding.features[:-1], encoding.features[-1] * 0 + shift))
        noise = draw_noise(model.noise_shapes((8, 8)), 2, 5, seeded_generator(3))
        together = model.sample_levels(encoding, noise, 5)
        for number in range(5):
            *latent, choice = (level[:, number : number + 1] for level in noise)
            levels = model.decode(model.sample_latents(encoding, latent), (8, 8))
            present = choice[:, 0] < shift
            for found, plain in zip(together, levels, strict=True):
                empty = torch.tensor([9.0, -9.0])[:, None, None].expand(2, 8, 8)
                for b in range(2):
                    expected = plain[b, 0] if present[b] else empty
                    torch.testing.assert_close(found[b, number], expected, rtol=1e-4, atol=1e-4)


def test_absent_samples_are_not_decoded():
    model = tiny_phiseg(presence=True)
    image, _ = batch(model.config, number=2)
    with torch.no_grad(), record(likelihood=model.likelihood) as recorded:
        encoding = model.encode(image)
        encoding = encoding._replace(features=(*encoding.features[:-1], torch.tensor([0.0, -100.0])))
        noise = draw_noise(model.noise_shapes((8, 8)), 2, 6, seeded_generator(3))
        model.decode_samples(encoding, noise, 6)
    ((((latents,), _)),) = recorded.calls["likelihood"]
    assert len(latents[0]) == (noise[-1][0] < 0).sum() > 0


def test_choose_present_takes_the_first_annotation_with_foreground():
    labels = torch.zeros(3, 4, 2, 2, dtype=torch.long)
    labels[1, 2, 0, 1] = 2
    labels[2, 1:, 1, 1] = torch.tensor([1, 2, 1])
    chosen, share = choose_present(labels)
    assert share.tolist() == [0, 0.25, 0.75]
    assert not chosen[0].any()
    assert torch.equal(chosen[1], labels[1, 2])
    assert torch.equal(chosen[2], labels[2, 1])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 9])
def test_choose_present_is_unbiased_in_sets_of_any_size(size):
    """Four annotators, one of them empty, in all orders; a part or with repetitions, as `TrainingStream` draws."""
    areas = torch.tensor([0, 1, 3, 8])
    annotations = (torch.arange(9) < areas[:, None])[:, None].long()  # (4, 1, 9)
    orders = [np.resize(order, size) for order in permutations(range(4))]
    chosen, share = choose_present(torch.stack([annotations[order] for order in orders]))
    estimates = share * (10 + chosen.flatten(1).sum(1))
    assert estimates.mean().item() == pytest.approx((11 + 13 + 18) / 4)


def test_loss_of_a_set_is_the_mean_loss_of_its_annotations():
    """Over all orders of the set, with the same noise."""
    model = tiny_phiseg(presence=True).eval()
    image, labels = batch(model.config, number=3)
    labels[0] = 0
    image = image[:1]
    single = [model(image, one[None], generator=seeded_generator(1)).total for one in labels]
    orders = [labels[list(order)][None] for order in permutations(range(3))]
    sets = [model(image, order, generator=seeded_generator(1)).total for order in orders]
    assert torch.stack(sets).mean().item() == pytest.approx(torch.stack(single).mean().item(), rel=1e-5)


def test_loss_of_empty_annotations_is_that_of_the_classifier():
    """-log p(v|x) for each item; the bound of eq. 2 counts for annotations that are not empty, and for no other."""
    model = tiny_phiseg(presence=True)
    image, labels = batch(model.config, number=2)
    labels[0] = 0
    loss = model(image, labels, generator=[seeded_generator(1), seeded_generator(2)])
    with torch.no_grad():
        probabilities = model.encode(image).features[-1].double().sigmoid()
    classified = -(math.log(1 - probabilities[0]) + math.log(probabilities[1])) / 2
    plain = tiny_phiseg(steps=0)
    plain.load_state_dict(model.state_dict(), strict=False)
    outlined = plain(image[1:], labels[1:], generator=[seeded_generator(2)])
    assert loss.terms["presence"].item() == pytest.approx(classified, rel=1e-4)
    assert loss.total.item() == pytest.approx(classified + outlined.total.item() / 2, rel=1e-4)
    assert loss.terms["elbo"].item() == pytest.approx(outlined.terms["elbo"].item() / 2 - classified, rel=1e-4)


def test_classifier_learns_which_images_are_empty():
    """Bright images have lesions, dark ones have none: samples follow."""
    torch.manual_seed(0)
    model = tiny_phiseg(presence=True, steps=0).train()
    bright = torch.tensor([0.0, 1.0, 0.0, 1.0])
    image = 2 * bright[:, None, None, None] - 1 + 0.1 * torch.randn(4, 1, 8, 8)
    labels = torch.zeros(4, 8, 8, dtype=torch.long)
    labels[bright == 1, 2:6, 2:6] = 1
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(40):
        optimizer.zero_grad()
        model(image, labels, generator=seeded_generator(step)).total.backward()
        optimizer.step()
    drawn = model.sample(image, 50, generator=seeded_generator(0)).argmax(2).flatten(2).any(2).double().mean(1)
    assert (drawn[bright == 0] < 0.2).all()
    assert (drawn[bright == 1] > 0.8).all()

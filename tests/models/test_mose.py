"""Mixture of stochastic experts: the transport of annotations to samples, its loss, and the gate."""

from math import ceil

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy.optimize import linprog

from helpers.tiny_models import batch, trained
from phiseg.models import mose
from phiseg.models.mose import MoSEConfig, iou_cost, pick_weighted, transport_plan
from phiseg.models.noise import draw_noise, seeded_generator

SIZE = (5, 7)  # not multiples of the stride 2
SMALL = {"channels": (4, 5), "blocks_per_level": 1, "num_classes": 3, "experts": 3, "training_samples": 2}


@pytest.fixture
def model():
    return trained(MoSEConfig(**SMALL, latent_dimensions=2, kl_weight=0.5))


def sets(number=2, annotations=4, *, seed=0):
    """Return images and several annotations of each."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(number, 1, *SIZE, generator=generator)
    return image, torch.randint(3, (number, annotations, *SIZE), generator=generator)


def solved_by_linear_program(cost, largest):
    """Return the lowest cost of moving annotations of equal mass to samples that receive at most `largest`."""
    samples, annotations = cost.shape
    receives = np.kron(np.eye(samples), np.ones(annotations))
    leaves = np.kron(np.ones(samples), np.eye(annotations))
    found = linprog(
        cost.ravel(), A_ub=receives, b_ub=[largest] * samples, A_eq=leaves, b_eq=[1 / annotations] * annotations
    )
    assert found.status == 0
    return found.fun


@pytest.mark.parametrize(
    ("samples", "annotations", "max_share"),
    [(1, 1, 1.0), (6, 4, 0.5), (6, 4, 0.25), (6, 4, 1.0), (5, 3, 0.5), (2, 4, 0.5), (4, 9, 0.3), (16, 4, 0.5)],
)
def test_transport_plan_is_as_cheap_as_a_linear_program(samples, annotations, max_share):
    cost = torch.rand(5, samples, annotations, generator=torch.Generator().manual_seed(samples))
    cost[0] = 0.5  # all alike
    plan = transport_plan(cost, max_share=max_share)
    largest = ceil(max_share * annotations) / annotations
    torch.testing.assert_close(plan.sum(1), torch.full((5, annotations), 1 / annotations))
    assert (plan >= 0).all()
    assert (plan.sum(2) <= largest + 1e-6).all()
    for matrix, found in zip(cost, plan, strict=True):
        expected = solved_by_linear_program(matrix.double().numpy(), largest)
        assert float((matrix * found).sum()) == pytest.approx(expected, abs=1e-6)


def test_transport_plan_accepts_costs_that_are_not_finite():
    cost = torch.tensor([[[float("nan"), 0.2], [0.1, float("inf")]]])
    assert torch.equal(transport_plan(cost, max_share=0.5).sum(1), torch.tensor([[0.5, 0.5]]))


def test_iou_cost_matches_naive_loop():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, *SIZE, generator=generator)
    annotations = torch.randint(3, (2, 2, *SIZE), generator=generator)  # the last class is absent
    cost = iou_cost(logits, annotations)
    assert cost.shape == (2, 3, 2)
    probs = logits.softmax(2)
    for item, sample, annotation in np.ndindex(2, 3, 2):
        similarities = []
        for label in (1, 2, 3):
            p, s = probs[item, sample, label].double(), (annotations[item, annotation] == label).double()
            similarities.append(((p * s).sum() + 1) / ((p + s - p * s).sum() + 1))
        assert float(cost[item, sample, annotation]) == pytest.approx(1 - float(sum(similarities)) / 3, abs=1e-5)


@torch.no_grad()
def test_loss_is_transport_cost_plus_weighted_kl(model):
    """Compare with single samples of every expert, a linear program and a KL between samples."""
    image, annotations = sets()
    loss = model(image, annotations, generator=seeded_generator(3))
    encoding = model.encode(image)
    noise = draw_noise([(2,)], 2, 6, seeded_generator(3))[0]
    costs, shares = [], []
    for number in range(6):
        expert = number // 2
        latent = model.means[expert] + model.log_stds[expert].exp() * noise[:, number]
        maps = latent[:, :, None, None].expand(-1, -1, *encoding.features[0].shape[2:])
        logits = model.output(model.combine(torch.cat([encoding.features[0], maps], 1)))[..., : SIZE[0], : SIZE[1]]
        costs.append(iou_cost(logits[:, None], annotations)[:, 0])
    cost = torch.stack(costs, 1)  # (B, N, A)
    expected = np.mean([solved_by_linear_program(matrix.double().numpy(), 0.5) for matrix in cost])
    assert float(loss.terms["transport"]) == pytest.approx(expected, abs=1e-5)
    shares = transport_plan(cost, max_share=0.5).sum(2).reshape(2, 3, 2).sum(2)
    gate = encoding.features[1].exp()
    kl = torch.nn.functional.kl_div(gate.log(), shares, reduction="batchmean")
    assert float(loss.terms["kl/0"]) == pytest.approx(float(kl), abs=1e-5)
    assert float(loss.total) == pytest.approx(expected + 0.5 * float(kl), abs=1e-5)


def test_loss_of_one_annotation_is_that_of_a_set_of_one(model):
    image, annotations = sets(annotations=1)
    alone, as_set = (
        model(image, labels, generator=seeded_generator(0)).total for labels in (annotations[:, 0], annotations)
    )
    assert torch.equal(alone, as_set)


def test_gradient_with_a_fixed_plan_matches_finite_difference(model, monkeypatch):
    image, annotations = sets()
    plan = torch.rand(2, 6, 4, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(mose, "transport_plan", lambda cost, *, max_share: plan / plan.sum((1, 2), keepdim=True))
    model = model.double()

    def total():
        return model(image.double(), annotations, generator=seeded_generator(0)).total

    model.zero_grad()
    total().backward()
    smooth = ("gate.2", "output")  # before them are ReLUs, whose kinks a finite difference crosses
    for name, parameter in model.named_parameters():
        if not name.startswith(smooth):
            continue
        direction = parameter.grad / parameter.grad.norm()
        with torch.no_grad():
            parameter += 1e-3 * direction
            above = total()
            parameter -= 2e-3 * direction
            below = total()
            parameter += 1e-3 * direction
        slope = float(above - below) / 2e-3  # the loss is float32: rounding changes it by about 3e-5
        assert slope == pytest.approx(float(parameter.grad.norm()), rel=0.05, abs=1e-4), name


def test_gate_learns_the_share_of_each_expert(model, monkeypatch):
    """The gate converges to the mass that the plan gives to the experts of an image."""
    image, annotations = sets()
    shares = torch.tensor([[0.7, 0.2, 0.1], [0.0, 0.5, 0.5]])
    plan = (shares[:, :, None, None] / 8).expand(2, 3, 2, 4).reshape(2, 6, 4)
    monkeypatch.setattr(mose, "transport_plan", lambda cost, *, max_share: plan)
    optimizer = torch.optim.Adam(model.gate.parameters(), 0.1)
    for step in range(100):
        optimizer.zero_grad()
        model(image, annotations, generator=seeded_generator(step)).total.backward()
        optimizer.step()
    torch.testing.assert_close(model.encode(image).features[1].exp().detach(), shares, atol=0.03, rtol=0)


@torch.no_grad()
def test_samples_come_from_experts_in_proportion_to_the_gate(model):
    """A sample equals the decoder's output for the expert whose part of [0, 1] contains the CDF of the noise."""
    image, _ = batch(model.config, SIZE, 1)
    encoding = model.encode(image)
    gate = torch.tensor([[0.2, 0.5, 0.3]])
    encoding = encoding._replace(features=(encoding.features[0], gate.log()))
    latent, choice = draw_noise(model.noise_shapes(SIZE), 1, 2000, seeded_generator(0))
    picked = pick_weighted(choice, gate)
    counts = torch.bincount(picked[0], minlength=3) / 2000
    torch.testing.assert_close(counts, gate[0], atol=0.05, rtol=0)
    some = slice(0, 9)
    logits = model.decode_samples(encoding, [latent[:, some], choice[:, some]], 9)
    for number, expert in enumerate(picked[0, some].tolist()):
        z = model.means[expert] + model.log_stds[expert].exp() * latent[0, number]
        maps = z[None, :, None, None].expand(-1, -1, *encoding.features[0].shape[2:])
        expected = model.output(model.combine(torch.cat([encoding.features[0], maps], 1)))
        torch.testing.assert_close(logits[:, number], expected[..., : SIZE[0], : SIZE[1]], atol=1e-4, rtol=1e-4)


def test_max_share_that_cannot_place_all_annotations_is_refused():
    with pytest.raises(ValidationError, match="use a larger max_share"):
        MoSEConfig(experts=2, training_samples=2, max_share=0.2)

"""Hierarchical Probabilistic U-Net: latents in the decoder, GECO multiplier, and hard pixels."""

import copy
import math

import pytest
import torch
from pydantic import ValidationError
from torch import multiprocessing
from torch.distributions import Normal
from torch.distributions import kl_divergence as reference_kl

from helpers.tiny_models import batch, record, trained
from phiseg.models import load_model, save_model
from phiseg.models.hprobunet import GECO, HProbUNetConfig, draw_hard_pixels
from phiseg.models.noise import draw_noise, seeded_generator
from phiseg.models.registry import build_model

SIZE = (8, 16)
CHANNELS, LEVELS, DEPTH = (4, 5, 6, 7), 2, 2  # latents of 2 x 4 and of 1 x 2 pixels


def config(**settings):
    standard = {"channels": CHANNELS, "num_levels": LEVELS, "latent_channels": DEPTH, "blocks_per_level": 1}
    return HProbUNetConfig(**(standard | {"num_classes": 3, "head_init": 1.0} | settings))


@pytest.fixture(scope="module")
def model():
    return trained(config())


def walk(model, run):
    """Return the recorded calls of all heads, `prior/l` and `posterior/l`, and of the output; and `run()`."""
    heads = {
        f"{side}/{level}": head
        for side in ("prior", "posterior")
        for level, head in enumerate(getattr(model, side).heads)
    }
    with record(**heads, output=model.output) as recorded, torch.no_grad():
        result = run()
    return recorded.calls, result


# The latents


def test_hprobunet_kl_matches_torch_distributions(model):
    image, labels = batch(model.config, SIZE, 2)
    calls, loss = walk(model, lambda: model(image, labels, generator=seeded_generator(0)))
    for level in range(LEVELS):
        ((_, q),), ((_, p),) = calls[f"posterior/{level}"], calls[f"prior/{level}"]
        assert q.mean.shape == (2, DEPTH, *[(2, 4), (1, 2)][level])
        expected = reference_kl(Normal(*q), Normal(*p)).sum() / 2
        assert expected > 1e-3
        torch.testing.assert_close(loss.terms[f"kl/{level}"], expected)


def test_hprobunet_eval_loss_is_negative_elbo(model):
    image, labels = batch(model.config, SIZE, 2)
    calls, loss = walk(model, lambda: model(image, labels, generator=seeded_generator(0)))
    ((_, logits),) = calls["output"]
    entropy = torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / 2
    torch.testing.assert_close(loss.total, entropy + loss.terms["kl/0"] + loss.terms["kl/1"])
    torch.testing.assert_close(loss.terms["elbo"], -loss.total)


def test_hprobunet_training_uses_posterior_latents(model):
    image, labels = batch(model.config, SIZE, 2)
    *noise, _ = draw_noise([*model.noise_shapes(SIZE), SIZE], 2, 1, seeded_generator(0))
    joined = {f"{side}/up": getattr(model, side).body.decoder[-1] for side in ("prior", "posterior")}
    joined["prior/last"] = model.prior.body.decoder[-2]
    with record(**joined) as entered:
        calls, _ = walk(model, lambda: model(image, labels, generator=seeded_generator(0)))
    for level, names in enumerate((["prior/last"], ["prior/up", "posterior/up"])):
        ((_, q),) = calls[f"posterior/{level}"]
        latent = torch.nn.functional.interpolate(
            q.mean + q.std * noise[level][:, 0], scale_factor=2, mode="bilinear"
        )
        width = CHANNELS[level + 2]
        for name in names:
            (((features,), _),) = entered.calls[name]
            torch.testing.assert_close(features[:, width : width + DEPTH], latent)


def test_hprobunet_sampling_conditions_on_coarser_latents(model):
    image, _ = batch(model.config, SIZE, 1)
    noise = draw_noise(model.noise_shapes(SIZE), 1, 2, seeded_generator(0))
    other = [noise[0], noise[1] + 1.0]
    walks = [walk(model, lambda n=n: model.decode_samples(model.encode(image), n, 2)) for n in (noise, other)]
    (calls, logits), (moved, _) = walks
    assert calls["posterior/0"] == calls["posterior/1"] == []
    assert torch.equal(
        calls["prior/1"][0][1].mean, moved["prior/1"][0][1].mean
    )  # the coarsest level is not conditioned on a latent
    assert not torch.allclose(calls["prior/0"][0][1].mean, moved["prior/0"][0][1].mean)
    assert logits.shape == (1, 2, 3, *SIZE)


@pytest.mark.parametrize("levels", [1, 3])
def test_hprobunet_latents_are_at_coarsest_resolutions(levels):
    model = build_model(config(num_levels=levels)).train()
    assert model.noise_shapes((16, 32)) == [(2, 16 // 2**r, 32 // 2**r) for r in (1, 2, 3)][-levels:]
    for seed in range(2):
        model(*batch(model.config, (16, 32), seed=seed), generator=seeded_generator(0)).total.backward()
    assert all(parameter.grad.any() for parameter in model.parameters())


def test_hprobunet_rejects_latent_at_every_resolution():
    with pytest.raises(ValidationError, match="num_levels = 4 needs at least 5 resolution levels"):
        config(num_levels=4)


# The pixels that count


def test_draw_hard_pixels_matches_sorted_perturbed_costs():
    generator = torch.Generator().manual_seed(0)
    costs, noise = torch.rand(3, 50, generator=generator), torch.randn(3, 50, generator=generator)
    found = draw_hard_pixels(costs, 0.09, noise)
    for row in range(3):
        uniform = [0.5 * (1 + math.erf(n / math.sqrt(2))) for n in noise[row].tolist()]
        score = [math.log(c) - math.log(-math.log(u)) for c, u in zip(costs[row].tolist(), uniform, strict=True)]
        first = sorted(range(50), key=lambda i: -score[i])[:5]  # 4.5 pixels, rounded up
        assert sorted(found[row].tolist()) == sorted(costs[row, first].tolist())


def test_draw_hard_pixels_is_proportional_to_cost():
    costs, number = torch.tensor([0.5, 1.0, 2.0, 4.5]), 20000
    noise = torch.randn(number, 4, generator=torch.Generator().manual_seed(0))
    drawn = draw_hard_pixels(costs.expand(number, -1), 0.25, noise)[:, 0]
    for cost in costs:
        share = (drawn == cost).double().mean().item()
        expected = cost.item() / 8
        assert share == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / number))


def test_draw_hard_pixels_draws_zero_cost_last():
    costs = torch.zeros(1, 6).index_fill_(1, torch.tensor([4]), 0.1).requires_grad_()
    drawn = draw_hard_pixels(costs, 0.5, torch.randn(1, 6, generator=torch.Generator().manual_seed(0)))
    assert drawn.max() == 0.1
    drawn.sum().backward()
    assert costs.grad.sum() == 3
    assert costs.grad.isfinite().all()


def test_draw_hard_pixels_with_fraction_one():
    costs = torch.rand(2, 7)
    noise = torch.randn(2, 7)
    assert torch.equal(draw_hard_pixels(costs, 1.0, noise).sort().values, costs.sort().values)


# GECO


def test_geco_multiplier_follows_moving_average():
    geco = GECO(decay=0.9, rate=0.5, largest=100.0)
    average, expected = 0.0, 1.0
    for constraint in (2.0, -1.0, 0.5, 4.0, -8.0, -8.0):
        used = geco(torch.tensor(constraint))
        assert used.item() == pytest.approx(expected, rel=1e-5)  # this step still uses the previous value
        average = 0.9 * average + 0.1 * constraint
        expected *= math.exp(0.5 * average)
        assert geco.average.item() == pytest.approx(average, abs=1e-5)
        assert geco.multiplier.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("constraint", "bound"), [(50.0, 20.0), (-50.0, 0.05)])
def test_geco_multiplier_is_bounded(constraint, bound):
    geco = GECO(decay=0.0, rate=1.0, largest=20.0)
    for _ in range(3):
        geco(torch.tensor(constraint))
    assert geco.multiplier.item() == pytest.approx(bound)


def test_geco_updates_only_in_training_with_gradients():
    geco = GECO(decay=0.9, rate=0.5, largest=100.0)
    with torch.no_grad():
        geco(torch.tensor(1.0))
    geco.eval()(torch.tensor(1.0))
    assert (geco.multiplier, geco.average) == (1, 0)


def one_of_two_processes(rank, folder):
    """Update a multiplier with the constraints of this process and store the result."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    geco = GECO(decay=0.9, rate=0.5, largest=100.0)
    for constraint in ((2.0, -1.0), (4.0, 0.0))[rank]:
        geco(torch.tensor(constraint))
    torch.save(geco.state_dict(), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_geco_uses_mean_constraint_of_two_processes(tmp_path):
    multiprocessing.spawn(one_of_two_processes, (str(tmp_path),), nprocs=2)
    alone = GECO(decay=0.9, rate=0.5, largest=100.0)
    for constraint in (3.0, -0.5):
        alone(torch.tensor(constraint))
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert first == second == alone.state_dict()


@pytest.mark.parametrize("top_k", [None, 0.1])
def test_hprobunet_training_loss_is_geco(top_k):
    model = build_model(config(top_k=top_k, kappa=0.3, norm="none")).train()
    model.geco.multiplier.fill_(1.7)
    image, labels = batch(model.config, SIZE, 2)
    calls, loss = walk(model, lambda: model(image, labels, generator=seeded_generator(0)))
    *_, noise = draw_noise([*model.noise_shapes(SIZE), SIZE], 2, 1, seeded_generator(0))
    ((_, logits),) = calls["output"]
    costs = torch.nn.functional.cross_entropy(logits, labels, reduction="none").flatten(1)
    number = 128
    if top_k is not None:
        number = 13
        scores = costs.log() - (-Normal(0, 1).cdf(noise[:, 0].flatten(1)).log()).log()
        costs = torch.stack([row[order[-13:]] for row, order in zip(costs, scores.argsort(), strict=True)])
    expected = loss.terms["kl/0"] + loss.terms["kl/1"] + 1.7 * (costs.sum() / 2 - 0.3 * number)
    torch.testing.assert_close(loss.total, expected)
    torch.testing.assert_close(loss.terms["constraint"], costs.mean() - 0.3)
    assert loss.terms["multiplier"] == pytest.approx(1.7)


def test_geco_multiplier_is_updated_once_per_training_step():
    model = build_model(config()).train()
    image, labels = batch(model.config, SIZE, 2)
    loss = model(image, labels, generator=seeded_generator(0))
    average = 0.01 * loss.terms["constraint"].item()
    assert model.geco.average.item() == pytest.approx(average)
    assert model.geco.multiplier.item() == pytest.approx(math.exp(model.config.geco_rate * average))
    loss.total.backward()  # the in-place update does not affect the gradient
    before = copy.deepcopy(model.geco.state_dict())
    model.eval()(image, labels, generator=seeded_generator(0))
    with torch.no_grad():
        model.train()(image, labels, generator=seeded_generator(0))
        model.sample(image, 2, generator=seeded_generator(0))
    assert model.geco.state_dict() == before


def test_geco_multiplier_is_saved_and_restored(tmp_path):
    model = build_model(config())
    model.geco.multiplier.fill_(3.25)
    model.geco.average.fill_(-0.5)
    save_model(tmp_path, model, preprocessing={}, provenance={}, card="")
    loaded = load_model(tmp_path)
    assert (loaded.geco.multiplier, loaded.geco.average) == (3.25, -0.5)

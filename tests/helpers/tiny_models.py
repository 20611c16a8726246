"""Small models for tests, trained for a few steps."""

from contextlib import contextmanager
from math import erf, sqrt
from types import SimpleNamespace

import torch

from phiseg.models.noise import seeded_generator
from phiseg.models.phiseg import PHiSegConfig
from phiseg.models.registry import build_model


def batch(config, size=(8, 8), number=3, *, seed=0):
    """Return random images and labels."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(number, config.image_channels, *size, generator=generator)
    return image, torch.randint(config.num_classes, (number, *size), generator=generator)


def trained(config, *, steps=4, size=(8, 8), seed=0):
    """Return a model in eval mode after a few steps on random data, so that no distribution is trivial."""
    torch.manual_seed(seed)
    model = build_model(config).train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        model(*batch(config, size, seed=step), generator=seeded_generator(seed, step)).total.backward()
        optimizer.step()
    return model.eval()


def members_alone(model, config):
    """Return the members of an ensemble as separate models, built from their weights."""
    alone = [build_model(config) for _ in model.members]
    for one, member in zip(alone, model.members, strict=True):
        one.load_state_dict(member.state_dict())
        one.train(model.training)
    return alone


def tiny_phiseg(*, steps=4, **settings):
    """Return a PHiSeg with four resolutions and three latent levels by default."""
    standard = {"channels": (4, 5, 6, 7), "num_levels": 3, "blocks_per_level": 1, "head_init": 1.0}
    return trained(PHiSegConfig(**(standard | settings)), steps=steps)


@contextmanager
def record(**modules):
    """Record inputs and outputs of each module in `.calls` of the yielded object, by name and in order.

    A call is (positional arguments, output).
    """
    calls = {name: [] for name in modules}
    handles = [
        module.register_forward_hook(lambda _module, args, output, name=name: calls[name].append((args, output)))
        for name, module in modules.items()
    ]
    try:
        yield SimpleNamespace(calls=calls)
    finally:
        for handle in handles:
            handle.remove()


def record_phiseg(model):
    """Record the distributions of all levels of prior and posterior, and the likelihood."""
    modules = {"likelihood": model.likelihood, "posterior_encoder": model.posterior.encoder}
    for side in ("prior", "posterior"):
        hierarchy = getattr(model, side)
        levels = [*hierarchy.levels, hierarchy.coarsest]
        modules |= {f"{side}/{level}": module for level, module in enumerate(levels)}
    return record(**modules)


def naive_pick(noise, number):
    """Return the index of the interval of [0, 1], split into `number` equal parts, that contains CDF(noise)."""
    share = (1 + erf(noise / sqrt(2))) / 2
    return next(index for index in range(number) if share < (index + 1) / number or index == number - 1)

"""PHiSeg with a flow: the frozen PHiSeg, its samples as the start of the path, and its weights."""

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from helpers.tiny_models import batch, tiny_phiseg, trained
from phiseg.core.errors import ModelError
from phiseg.models.model_folder import load_weights
from phiseg.models.noise import draw_noise, seeded_generator
from phiseg.models.phiseg_flow import PHiSegFlowConfig
from phiseg.models.registry import build_model

NETWORK = {"channels": (4, 5, 6, 7), "num_levels": 3, "blocks_per_level": 1, "head_init": 1.0}
FLOW = {"flow_channels": (4, 6), "flow_blocks": 1, "num_steps": 4, "base_std": 0.5}
SIZE = (11, 13)  # not multiples of the stride 8


@pytest.fixture(scope="module")
def phiseg():
    return tiny_phiseg()


@pytest.fixture
def model(phiseg):
    torch.manual_seed(1)
    model = build_model(PHiSegFlowConfig(**NETWORK, **FLOW))
    load_weights(model, model.weights_from(phiseg), where="the test")
    return model.eval()


@pytest.fixture
def starts(model, monkeypatch):
    """Record the starts of all paths; the prediction is that of the network."""
    found = []
    predict = model._predict

    def record(features, position, time, size):
        found.append((features, position, time))
        return predict(features, position, time, size)

    monkeypatch.setattr(model, "_predict", record)
    return found


@torch.no_grad()
def test_sampling_starts_at_a_sample_of_the_phiseg(model, phiseg, starts):
    image, _ = batch(model.config, SIZE, 2)
    *latent, pixels = noise = draw_noise(model.noise_shapes(SIZE), 2, 3, seeded_generator(0))
    logits = model.decode_samples(model.encode(image), noise, 3)
    probs = phiseg.decode_samples(phiseg.encode(image), latent, 3).softmax(2)
    features, position, time = starts[0]
    torch.testing.assert_close(position.unflatten(0, (2, 3)), 2 * probs - 1 + 0.5 * pixels)
    torch.testing.assert_close(features[:, :, : SIZE[0], : SIZE[1]].unflatten(0, (2, 3))[:, 1], image)
    assert not time.any()
    assert len(starts) == 4
    assert logits.shape == (2, 3, 2, *SIZE)


@torch.no_grad()
def test_training_starts_at_a_sample_of_the_posterior(model, phiseg, starts, monkeypatch):
    """The path leads from the PHiSeg's reconstruction of the labels, with noise, to the labels."""
    image, labels = batch(model.config, SIZE, 2)
    outputs = []
    phiseg.likelihood.register_forward_hook(lambda module, args, output: outputs.append(output[0]))
    drawn = draw_noise([*model.noise_shapes(SIZE), ()], 2, 1, seeded_generator(5))
    monkeypatch.setattr("phiseg.models.phiseg.draw_noise", lambda *_: drawn[:3])  # of the three levels
    phiseg(image, labels, generator=seeded_generator(5))
    loss = model(image, labels, generator=seeded_generator(5))
    probs = outputs[0][..., : SIZE[0], : SIZE[1]].softmax(1)
    start = 2 * probs - 1 + 0.5 * drawn[3][:, 0]
    end = 2 * F.one_hot(labels, 2).movedim(-1, 1) - 1
    _, position, time = starts[0]
    torch.testing.assert_close(time, torch.special.ndtr(drawn[4][:, 0]))
    t = time[:, None, None, None]
    torch.testing.assert_close(position, (1 - t) * start + t * end, rtol=1e-4, atol=1e-5)
    assert loss.terms.keys() == {"cross_entropy/0", "elbo"}


def test_training_changes_the_flow_only(model):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    image, labels = batch(model.config, (16, 16), 4)
    optimizer = torch.optim.AdamW(model.train().parameters(), 1e-2, weight_decay=0.1)
    for step in range(2):
        optimizer.zero_grad()
        model(image, labels, generator=seeded_generator(step)).total.backward()
        model.sample(image, 1, generator=seeded_generator(step))
        optimizer.step()
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert {name.split(".")[0] for name in changed} == {"flow", "flow_output"}
    assert {name for name in before if name.startswith("flow")} == changed


def test_weights_from_phiseg_or_phiseg_flow(model, phiseg):
    flow = {name: tensor.clone() for name, tensor in model.state_dict().items() if name.startswith("flow")}
    weights = model.weights_from(phiseg)
    assert all(torch.equal(weights[name], tensor) for name, tensor in {**flow, **phiseg.state_dict()}.items())
    other = build_model(model.config)
    assert torch.equal(other.weights_from(model)["flow_output.weight"], flow["flow_output.weight"])
    with pytest.raises(ModelError, match="weights of another model"):
        load_weights(model, model.weights_from(tiny_phiseg(num_levels=2, steps=0)), where="the test")


def test_frozen_phiseg_keeps_eval_mode(model):
    model.train()
    assert model.flow.training
    assert not any(part.training for part in (model.prior, model.posterior, model.likelihood))


def test_shared_encoder_is_supported():
    config = PHiSegFlowConfig(**NETWORK, **FLOW, shared_encoder=True)
    model = trained(config, size=(16, 16))
    assert model.sample(batch(config, SIZE, 1)[0], 2, generator=seeded_generator(0)).isfinite().all()


def test_presence_is_refused():
    with pytest.raises(ValidationError, match="use a PHiSeg without it"):
        PHiSegFlowConfig(presence=True)

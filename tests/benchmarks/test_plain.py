"""The plain baseline computes what phiseg computes: their times are comparable."""

import doctest
import json
import shlex
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks import growth, measuring, plain, tasks
from benchmarks.__main__ import main
from benchmarks.measuring import QUICK
from phiseg.core.random import derive_seed
from phiseg.data.augment import draw_augmentation
from phiseg.data.loader import TrainingStream
from phiseg.data.store import Dataset
from phiseg.models import build_model
from phiseg.models.noise import draw_noise, seeded_generator
from phiseg.models.phiseg import PHiSegConfig
from phiseg.training import memory_format
from phiseg.training.checkpoints import load_state
from phiseg.training.loop import train

EPSILON = torch.finfo(torch.float32).eps
"""Compared with float64, a loss below is wrong by up to 16 of it and a gradient by up to 240, depending on the
memory layout and the instruction set. The tolerances are ten times as large."""

CONFIG = PHiSegConfig(channels=(4, 5, 6, 7), num_levels=3, blocks_per_level=2, head_init=1.0)


def noise_of(model, size, batch_size, generators):
    """Return the noise that phiseg draws for one sample of each image, (B, D, h_l, w_l) of each level."""
    return [level[:, 0] for level in draw_noise(model.noise_shapes(size), batch_size, 1, generators)]


def test_plain_network_has_parameters_of_reference():
    config = measuring.Scale().model
    with torch.device("meta"):
        ours, theirs = build_model(config), plain.PlainPHiSeg(config)
    shapes = {name: tensor.shape for name, tensor in ours.state_dict().items()}
    assert {name: tensor.shape for name, tensor in theirs.state_dict().items()} == shapes
    assert sum(parameter.numel() for parameter in theirs.parameters()) == 17_819_186  # as the authors' code has


def test_plain_step_matches_training_step(layout, make_recipe, lesions, tmp_path):
    """The other side is `phiseg train` itself, on the batch and the noise that it draws."""
    settings = {"channels": [4, 6, 8], "num_levels": 2, "head_init": 1.0, "blocks_per_level": 2}
    recipe = make_recipe(settings=settings, steps=1, norm_statistics="running")
    train(recipe, lesions, tmp_path / "run", progress=False)
    trained = load_state(tmp_path / "run" / "state" / "last.pt").weights

    dataset = Dataset.open(lesions)
    recipe = recipe.for_dataset(dataset)
    torch.manual_seed(derive_seed(0, "weights"))
    model = build_model(recipe.model).train()
    network = plain.PlainPHiSeg(recipe.model)
    network.load_state_dict(model.state_dict())
    batch = TrainingStream(dataset, batch_size=4, seed=0, augment=recipe.augment).batch(0)

    def generators():
        return [seeded_generator(0, "noise", 0, row) for row in range(4)]

    timed = deepcopy(model)
    tasks.Training(timed).step(batch.image, batch.labels)  # what the benchmarks time is the loop's step
    assert all(torch.equal(tensor, trained[name]) for name, tensor in timed.state_dict().items())

    memory_format.set_memory_format(model, torch.device("cpu"))
    training = plain.PlainTraining(network, recipe.train.learning_rate)
    loss = training.step(batch.image, batch.labels, noise_of(model, dataset.info.size, 4, generators()))
    ours = model(batch.image, batch.labels, generator=generators()).total
    ours.backward()
    assert loss == pytest.approx(ours.item(), rel=200 * EPSILON)
    learned = dict(model.named_parameters())
    for name, parameter in network.named_parameters():
        rounding = 2500 * EPSILON * float(learned[name].grad.abs().max())
        assert torch.allclose(parameter.grad, learned[name].grad, atol=rounding), name
        # Adam's first step is the gradient's sign: where that is lost in rounding, so is the step's direction.
        certain = learned[name].grad.abs() > 2 * rounding
        assert torch.allclose(parameter[certain], trained[name][certain], atol=1e-6), name
    for name, buffer in network.named_buffers():
        assert torch.allclose(buffer.float(), trained[name].float(), rtol=1e-5, atol=1e-6), name


def test_timed_training_steps_agree(monkeypatch):
    monkeypatch.setattr(memory_format, "MIN_WIDTH", 1)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")  # else channels come last in all
    ways = {way: tasks.training_step(way, QUICK) for way in ("phiseg", "checkpointed", "channels_last")}
    losses = {way: [action(), action()] for way, action in ways.items()}
    assert losses["phiseg"] == losses["checkpointed"]
    # The KL of a million divides by small variances, which amplifies rounding: 5e-5 and more was measured.
    assert losses["phiseg"] == pytest.approx(losses["channels_last"], rel=1e-2)
    assert losses["phiseg"][0] != losses["phiseg"][1]


@pytest.mark.parametrize("size", [8, 16])
def test_plain_samples_match_phiseg(size):
    model = tasks.build(CONFIG).eval()
    network = tasks.build_plain(CONFIG).eval()
    image, _ = tasks.images(CONFIG, 1, replace(QUICK, size=size))
    noise = draw_noise(model.noise_shapes((size, size)), 1, 5, [seeded_generator(7)])
    expected = model.sample(image, 5, generator=[seeded_generator(7)], chunk_size=2)[0]
    one_by_one = network.sample(image, 5, [[level[:, number] for level in noise] for number in range(5)])
    tiled = network.sample_tiled(image, 5, [level[0] for level in noise])
    scale = float(expected.abs().max())
    assert torch.allclose(one_by_one, expected, atol=100 * EPSILON * scale)
    assert torch.allclose(tiled, expected, atol=100 * EPSILON * scale)
    assert not torch.allclose(expected[0], expected[1], atol=1e-2 * scale)  # samples that differ


@pytest.mark.parametrize("num_classes", [2, 3])
def test_plain_scores_match_phiseg(num_classes):
    theirs, ours, of_logits = (tasks.scoring(way, QUICK, num_classes)() for way in ("plain", "phiseg", "logits"))
    assert theirs == pytest.approx({name: ours[name] for name in theirs}, abs=1e-6)
    assert of_logits == pytest.approx(ours, abs=1e-6)
    assert 0.01 < ours["ged"] < 1
    assert 0.1 < ours["hm_iou"] < 0.99


def test_plain_batches_match_loader(zones):
    dataset = Dataset.open(zones)
    augment = tasks.load_recipe("phiseg-small").augment
    stream = TrainingStream(dataset, batch_size=4, seed=3, augment=augment)
    batch = stream.batch(2)
    matrices = draw_augmentation(
        augment, 4, size=dataset.info.size, generator=torch.Generator().manual_seed(derive_seed(3, "augment", 2))
    )
    annotators = stream._draw_annotators(2, batch.rows)
    image, labels = plain.augmented_batch(dataset, batch.rows, annotators, matrices)
    assert torch.allclose(image, batch.image, atol=1e-6)
    assert torch.equal(labels, batch.labels)
    assert not np.allclose(image[0].numpy(), dataset.image(int(batch.rows[0])))


def test_actions_are_timed_in_turns_after_warm_up():
    calls = []
    timings = measuring.in_turns([lambda: calls.append("a"), lambda: calls.append("b")], 2)
    assert "".join(calls) == "ababab"
    assert [len(timing.seconds) for timing in timings] == [2, 2]


def test_documented_command_names_a_task():
    (line,) = (line for line in tasks.__doc__.splitlines() if "python -m benchmarks.tasks" in line)
    name, settings = shlex.split(line)[3:]
    assert callable(tasks.prepare(name, json.loads(settings)))


def test_growth_respects_smaller_scale(monkeypatch, tmp_path):
    scales = []

    def in_own_process(task, *, scale, **settings):
        scales.append(scale)
        return measuring.Cost(1.0, 1.0, 2.0)

    monkeypatch.setattr(growth, "in_own_process", in_own_process)
    (section,) = growth.run(QUICK, tmp_path)
    assert "32 x 32 pixels, batches of 2" in section.title
    assert {scale["batch_size"] for scale in scales} == {2}
    assert sorted({scale["size"] for scale in scales}) == [32, 64, 128]  # two points of the axis of sizes
    scales.clear()
    growth.run(replace(measuring.Scale(), growth=2), tmp_path)
    assert {scale["batch_size"] for scale in scales} == {4}
    assert sorted({scale["size"] for scale in scales}) == [64, 128]


def test_volumes_and_their_slices_have_the_same_voxels():
    scale = replace(QUICK, size=16, depth=4)
    volume, slices = (tasks.images(config, 2, scale) for config in (tasks.volume_model(), tasks.small_model()))
    assert [tensor.shape for tensor in volume] == [(2, 1, 4, 16, 16), (2, 4, 16, 16)]
    assert [tensor.shape for tensor in slices] == [(8, 1, 16, 16), (8, 16, 16)]


def test_growth_of_volumes_varies_slices_and_side(monkeypatch, tmp_path):
    scales = []

    def in_own_process(task, *, scale, **settings):
        scales.append((scale["depth"], scale["size"]))
        return measuring.Cost(1.0, 1.0, 2.0)

    monkeypatch.setattr(growth, "in_own_process", in_own_process)
    (section,) = growth.run_volumes(QUICK, tmp_path)
    assert len(section.rows) == len(growth.AXES_3D)
    assert set(scales) == {(8, 32), (16, 32), (8, 64)}
    assert (tmp_path / "growth3d.png").exists()


@pytest.mark.slow
def test_benchmarks_run_at_toy_sizes(monkeypatch, capfd):
    monkeypatch.setattr("sys.argv", ["benchmarks", "--quick"])
    main()
    printed = capfd.readouterr().out
    for title in (
        "Training step",
        "Sampling",
        "Scoring",
        "Loader",
        "Memory of a training step",
        "Start-up",
        "Growth",
        "Growth in 3-D",
    ):
        assert f"## {title}" in printed


@pytest.mark.parametrize("module", [measuring, growth])
def test_docstring_examples_hold(module):
    assert doctest.testmod(module).failed == 0

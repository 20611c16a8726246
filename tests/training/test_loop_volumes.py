"""Training on volumes: resumed runs and runs on two processes give the results of an undisturbed run on one."""

import pytest

from helpers.comparing_runs import assert_same_run, lines
from helpers.small_volumes import CHANNELS, write_volumes
from phiseg.models import load_model
from phiseg.training import loop
from phiseg.training.loop import train

TRAIN = {"steps": 4, "validate_every": 4, "checkpoint_every": 2, "batch_size": 2}
VOLUMES = {"dims": 3, "image_channels": CHANNELS}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "volumes"
    write_volumes(folder)
    return folder


@pytest.fixture(scope="module")
def recipe(make_recipe):
    return make_recipe("phiseg", settings=VOLUMES, patch_size=(3, 5, 8), **TRAIN)


@pytest.fixture(scope="module")
def undisturbed(data, recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "undisturbed"
    train(recipe, data, folder, progress=False)
    return folder


class Killed(BaseException):
    """Simulated kill; not caught by `except Exception`."""


def test_resumed_run_on_volumes_is_identical(data, recipe, undisturbed, tmp_path, monkeypatch):
    save, states = loop.save_state, []

    def save_once(*arguments, **options):
        if states:
            raise Killed
        states.append(save(*arguments, **options))

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_state", save_once)
        with pytest.raises(Killed):
            train(recipe, data, tmp_path / "run", progress=False)
    train(recipe, data, tmp_path / "run", resume=True, progress=False)
    assert_same_run(tmp_path / "run", undisturbed)


def test_two_processes_train_on_volumes_like_one(data, recipe, undisturbed, phiseg, tmp_path):
    (tmp_path / "tiny.yaml").write_text(recipe.to_yaml())
    done = phiseg("train", tmp_path / "tiny.yaml", "--data", data, "--out", tmp_path / "run", "--train.devices", 2)
    assert done.code == 0, done.err
    for kind, rel in (("train", 1e-4), ("val", 1e-3)):
        for one, two in zip(lines(undisturbed, kind), lines(tmp_path / "run", kind), strict=True):
            assert one["loss"] == pytest.approx(two["loss"], rel=rel)
    found = load_model(tmp_path / "run").state_dict()
    for name, tensor in load_model(undisturbed).state_dict().items():
        assert (found[name].float() - tensor.float()).abs().max() < 5e-3, name  # see test_loop_processes

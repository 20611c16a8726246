"""state/last.pt: exact round trips, failed writes, and no code execution."""

import errno
import os
import pickle
import random
from contextlib import contextmanager, suppress

import pytest
import torch

from phiseg.core.errors import OutputError, TrainingError
from phiseg.core.files import atomic_file
from phiseg.training.checkpoints import TrainingState, load_state, save_state


def make_state(step=5):
    torch.manual_seed(step)
    layer = torch.nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.randn(1, 2, 5, 5)).sum().backward()
    optimizer.step()
    return TrainingState(
        "fingerprint", layer.state_dict(), optimizer.state_dict(), step=step, best=0.1 + step, skipped=2
    )


def assert_equal(first, second):
    assert type(first) is type(second)
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_equal(first[key], second[key])
    elif isinstance(first, list | tuple):
        assert len(first) == len(second)
        for a, b in zip(first, second, strict=True):
            assert_equal(a, b)
    elif isinstance(first, torch.Tensor):
        assert first.dtype == second.dtype
        assert torch.equal(first, second)
    else:
        assert first == second


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "last.pt"


def test_save_and_load_state_round_trip(path):
    state = make_state()
    save_state(path, state)
    assert_equal(vars(load_state(path)), vars(state))


def test_load_state_without_best_score(path):
    save_state(path, TrainingState("fingerprint", {}, {}))
    assert load_state(path).best is None


@pytest.mark.parametrize("moment", ["write", "fsync", "replace"])
def test_save_state_keeps_previous_state_on_full_disk(moment, path, monkeypatch):
    save_state(path, make_state(5))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    if moment == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    elif moment == "replace":
        monkeypatch.setattr(type(path), "replace", full)
    else:
        monkeypatch.setattr("phiseg.training.checkpoints.atomic_file", file_on_a_full_disk)
    with pytest.raises(OutputError, match="No space left on device"):
        save_state(path, make_state(6))
    monkeypatch.undo()
    assert_equal(vars(load_state(path)), vars(make_state(5)))
    assert [file.name for file in path.parent.iterdir()] == ["last.pt"]


@contextmanager
def file_on_a_full_disk(path):
    with atomic_file(path) as file:

        class Full:
            def write(self, data):
                file.write(bytes(data)[:100])
                raise OSError(errno.ENOSPC, "No space left on device")

        yield Full()


class Bomb:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (os.system, (f"touch {self.target}",))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("archive", [True, False])
def test_load_state_never_executes_pickles(archive, path, tmp_path):
    path.parent.mkdir()
    bomb = {"format": "phiseg-state", "step": 1, "weights": Bomb(tmp_path / "executed")}
    if archive:
        torch.save(bomb, path)
    else:
        path.write_bytes(pickle.dumps(bomb))
    with pytest.raises(TrainingError, match="damaged or not a training state"):
        load_state(path)
    assert not (tmp_path / "executed").exists()
    with suppress(RuntimeError):  # the pickle is functional: any other loader executes it
        torch.load(path, weights_only=False)
    assert (tmp_path / "executed").exists()


def test_load_state_rejects_truncated_file(path):
    save_state(path, make_state())
    whole = path.read_bytes()
    for length in range(0, len(whole), len(whole) // 25):
        path.write_bytes(whole[:length])
        with pytest.raises(TrainingError, match=r"last\.pt"):
            load_state(path)


@pytest.mark.filterwarnings("ignore")
def test_load_state_survives_random_damage(path):
    save_state(path, make_state())
    whole, rng = path.read_bytes(), random.Random(0)
    refused = 0
    for _ in range(150):
        damaged = bytearray(rng.randbytes(rng.randrange(1, 300)) if rng.random() < 0.3 else whole)
        for _ in range(rng.randrange(1, 30)):
            damaged[rng.randrange(min(len(damaged), 2000))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            load_state(path)
        except TrainingError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("content", [[1, 2], {"weights": {}}, {"format": "phiseg-model"}, torch.zeros(2)])
def test_load_state_rejects_other_files(content, path):
    path.parent.mkdir()
    torch.save(content, path)
    with pytest.raises(TrainingError, match="is not a phiseg training state"):
        load_state(path)


@pytest.mark.parametrize("change", [{"step": -1}, {"step": 2.5}, {"skipped": "none"}, {"best": torch.ones(2)}])
def test_load_state_rejects_invalid_numbers(change, path):
    path.parent.mkdir()
    torch.save({"format": "phiseg-state", **vars(make_state()), **change}, path)
    with pytest.raises(TrainingError, match="is damaged; restore the file"):
        load_state(path)


@pytest.mark.parametrize("change", [{"epoch": 3}, {"weights": None}])
def test_load_state_rejects_other_version(change, path):
    stored = {"format": "phiseg-state", **vars(make_state()), **change}
    if change.get("weights", 0) is None:
        del stored["weights"]
    path.parent.mkdir()
    torch.save(stored, path)
    with pytest.raises(TrainingError, match="another version"):
        load_state(path)


def test_load_state_rejects_other_pickles_without_warning(tmp_path, recwarn):
    path = tmp_path / "last.pt"
    for protocol in range(6):
        path.write_bytes(pickle.dumps({"format": "phiseg-state"}, protocol=protocol))
        with pytest.raises(TrainingError, match="train into a new folder"):
            load_state(path)
    assert not recwarn.list


def test_save_state_bytes_do_not_depend_on_sharing(tmp_path):
    state = make_state()
    save_state(tmp_path / "first.pt", state)
    save_state(tmp_path / "again.pt", load_state(tmp_path / "first.pt"))
    assert (tmp_path / "again.pt").read_bytes() == (tmp_path / "first.pt").read_bytes()
    betas = state.optimizer["param_groups"][0]["betas"]
    state.optimizer["param_groups"][0]["betas"] = tuple(float(str(beta)) for beta in betas)
    state.fingerprint = "".join(["finger", "print"])
    save_state(tmp_path / "equal.pt", state)
    assert (tmp_path / "equal.pt").read_bytes() == (tmp_path / "first.pt").read_bytes()

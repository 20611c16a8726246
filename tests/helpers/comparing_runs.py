"""Comparison of runs: files byte by byte and states bit by bit."""

import torch

from phiseg.training.checkpoints import load_state
from phiseg.training.tracking import read_metrics

FILES = (
    *("metrics.jsonl", "config.yaml", "state/last.pt"),
    *("model/model.safetensors", "model/config.json", "model/preprocessing.json"),
)


def state(folder):
    return load_state(folder / "state" / "last.pt")


def lines(folder, kind):
    return [line for line in read_metrics(folder / "metrics.jsonl") if line["kind"] == kind]


def contents(folder):
    """Return the bytes of all files in a folder, without hidden temporary files."""
    files = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {str(name): path.read_bytes() for name, path in files.items() if not path.name.startswith(".")}


def assert_same_state(first, second):
    assert (first.step, first.best, first.skipped) == (second.step, second.best, second.skipped)
    assert_same_tensors(first, second)


def assert_same_tensors(first, second):
    for a, b in ((first.weights, second.weights), (first.optimizer, second.optimizer)):
        a, b = _tensors(a), _tensors(b)
        assert a.keys() == b.keys()
        assert a
        different = [place for place, tensor in a.items() if not torch.equal(tensor, b[place])]
        assert not different


def assert_same_run(first, second):
    for file in FILES:
        assert (first / file).read_bytes() == (second / file).read_bytes(), file
    assert_same_state(state(first), state(second))


def _tensors(value):
    """Return all tensors in nested dicts and lists with their paths."""
    if isinstance(value, torch.Tensor):
        return {(): value}
    items = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    )
    return {(key, *place): tensor for key, inner in items for place, tensor in _tensors(inner).items()}

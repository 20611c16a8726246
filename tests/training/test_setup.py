"""Fabric is made only for a precision in which the machine can compute."""

import pytest
import torch

from phiseg.core.errors import ConfigError
from phiseg.training import setup
from phiseg.training.recipe import TrainConfig
from phiseg.training.setup import bf16_failure, make_fabric

BF16 = TrainConfig(accelerator="cpu", precision="bf16-mixed")


@pytest.fixture
def probe(monkeypatch):
    """Return a function that replaces the code of the bf16 probe; its cached result is cleared before and after."""
    bf16_failure.cache_clear()
    yield lambda code: monkeypatch.setattr(setup, "BF16_PROBE", code)
    bf16_failure.cache_clear()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "SIGILL"),
        ("raise RuntimeError('no bf16 kernel')", "RuntimeError: no bf16 kernel"),
        ("raise SystemExit(3)", "no message"),
    ],
)
def test_make_fabric_rejects_bf16_where_the_probe_fails(code, reason, probe):
    probe(code)
    with pytest.raises(ConfigError, match=f"failed with {reason}; set .* ONEDNN_MAX_CPU_ISA .* or use .* 32-true"):
        make_fabric(BF16)


def test_make_fabric_runs_the_bf16_probe_once_and_for_bf16_only(probe, tmp_path):
    count = tmp_path / "count"
    count.write_text("")
    probe(f"open({str(count)!r}, 'a').write('x')")
    make_fabric(BF16.model_copy(update={"precision": "32-true"}))
    assert count.read_text() == ""
    for _ in range(2):
        assert make_fabric(BF16).device == torch.device("cpu")
    assert count.read_text() == "x"

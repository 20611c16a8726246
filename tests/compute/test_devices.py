"""Device names are checked, and Fabric is made only for a precision in which the machine can compute."""

import os
import platform
import subprocess
import sys

import numpy as np
import pytest
import torch

from phiseg.compute import devices
from phiseg.compute.devices import DeviceConfig, bf16_failure, make_fabric, usable_device
from phiseg.core.errors import ConfigError

BF16 = DeviceConfig(accelerator="cpu", precision="bf16-mixed")


@pytest.fixture
def probe(monkeypatch):
    """Return a function that replaces the code of the bf16 probe; its cached result is cleared before and after."""
    bf16_failure.cache_clear()
    yield lambda code: monkeypatch.setattr(devices, "BF16_PROBE", code)
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


def test_usable_device_rejects_bfloat16_where_the_probe_fails(probe):
    probe("raise RuntimeError('no bf16 kernel')")
    assert usable_device("cpu", "float32") == torch.device("cpu")
    problem = r"^precision bfloat16 does not work on this CPU: .*no bf16 kernel; set .* or use precision float32$"
    with pytest.raises(ConfigError, match=problem):
        usable_device("cpu", "bfloat16")
    bf16_failure.cache_clear()
    probe("")
    assert usable_device("cpu", "bfloat16") == torch.device("cpu")


def test_make_fabric_runs_the_bf16_probe_once_and_for_bf16_only(probe, tmp_path):
    count = tmp_path / "count"
    count.write_text("")
    probe(f"open({str(count)!r}, 'a').write('x')")
    make_fabric(BF16.model_copy(update={"precision": "32-true"}))
    assert count.read_text() == ""
    for _ in range(2):
        assert make_fabric(BF16).device == torch.device("cpu")
    assert count.read_text() == "x"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_works_in_fork_gives_up_after_the_limit(capfd):
    assert devices._works_in_fork("1 + 1")
    assert not devices._works_in_fork("import time; time.sleep(60)", limit_s=1)
    assert capfd.readouterr() == ("", "")


def test_bf16_probe_runs_in_a_new_process_outside_linux(probe, monkeypatch):
    monkeypatch.setattr("phiseg.compute.devices.sys.platform", "darwin")
    probe("")
    assert bf16_failure() is None
    bf16_failure.cache_clear()
    probe("raise RuntimeError('no bf16 kernel')")
    assert bf16_failure() == "RuntimeError: no bf16 kernel"


def test_usable_device_accepts_cpu_and_rejects_unknown():
    assert usable_device("cpu") == torch.device("cpu")
    missing = [] if torch.cuda.is_available() else ["cuda"]
    for name in ["banana", "cpu:x", "meta", "", f"cuda:{np.iinfo(np.int8).max}", *missing]:
        with pytest.raises(ConfigError, match=r"is not available .*; use cpu") as error:
            usable_device(name)
        assert len(str(error.value)) < 200
        assert "\n" not in str(error.value)


def test_auto_device_uses_gpu_if_available(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert usable_device("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    if torch.cuda.device_count():
        assert usable_device("auto").type == "cuda"
    else:
        with pytest.raises(ConfigError, match="device 'cuda' is not available"):
            usable_device("auto")


@pytest.mark.skipif(platform.libc_ver() < ("glibc", "2.36"), reason="needs the allocator of glibc 2.36 or newer")
def test_keep_freed_memory_reuses_large_blocks():
    code = """
import resource
import torch
from phiseg.compute.devices import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(16 * 2**20)  # 64 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

plain = faults()
keep_freed_memory()
for _ in range(8):  # until the heap has grown
    kept = faults()
print(plain, kept)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    plain, kept = map(int, result.stdout.split())
    assert kept <= plain / 10

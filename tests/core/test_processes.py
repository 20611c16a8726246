"""Parallel map: order, errors and dead workers."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phiseg.core.errors import ConfigError, DataError, PhisegError
from phiseg.core.processes import in_order


def square(number):
    if number == 3:
        raise DataError("three")
    return number**2, os.getpid()


def die(number):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 2])
def test_in_order_yields_results_and_errors_in_order(workers):
    processes = set()
    for expected, (item, result) in enumerate(in_order(square, range(12), workers)):
        assert item == expected
        if item == 3:
            with pytest.raises(DataError, match="three"):
                result()
        else:
            value, process = result()
            assert value == item**2
            processes.add(process)
    assert (os.getpid() in processes) == (workers == 1)


def test_in_order_reports_dead_worker():
    _, result = next(in_order(die, range(9), 2))
    with pytest.raises(PhisegError, match="fewer --workers"):
        result()


def test_in_order_reports_all_items_after_a_dead_worker():
    failures = 0
    for _, result in in_order(die, range(9), 2):
        with pytest.raises(PhisegError, match="a worker process died"):
            result()
        failures += 1
    assert failures == 9


def test_in_order_rejects_zero_workers():
    with pytest.raises(ConfigError, match="workers = 0"):
        next(in_order(square, range(3), 0))


SCRIPT = """
import os, time
from pathlib import Path
from phiseg.core.processes import in_order

def wait(place):
    (Path(place) / str(os.getpid())).touch()
    time.sleep(600)

if __name__ == "__main__":
    for _, result in in_order(wait, [{folder!r}] * 2, 2):
        result()
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_workers_exit_with_parent_process(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(folder=str(tmp_path)))
    main = subprocess.Popen([sys.executable, script])
    wait_until(lambda: len(list(tmp_path.glob("[0-9]*"))) == 2)
    workers = [Path("/proc", path.name) for path in tmp_path.glob("[0-9]*")]
    main.kill()
    main.wait()
    wait_until(lambda: not any(worker.exists() for worker in workers))


def wait_until(condition):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail("condition not met within a minute")

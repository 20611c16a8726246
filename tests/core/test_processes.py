"""Work in several processes: order, errors, and the death of one."""

import os
import signal

import pytest

from phiseg.core.errors import DataError, PhisegError
from phiseg.core.processes import in_order


def square(number):
    if number == 3:
        raise DataError("three")
    return number**2, os.getpid()


def die(number):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 2])
def test_results_and_errors_come_in_order(workers):
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


def test_a_worker_that_dies_is_told():
    _, result = next(in_order(die, range(9), 2))
    with pytest.raises(PhisegError, match="fewer --workers"):
        result()

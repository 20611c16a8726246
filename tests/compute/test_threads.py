"""Work in threads: the results of the plain loop, in order, and torch as it was before."""

import threading

import pytest
import torch

from phiseg.compute.threads import in_threads


@pytest.fixture
def four_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_in_threads_keeps_the_order(workers):
    first_may_end = threading.Event()

    def square(number):
        if number == 0 and workers > 1:
            assert first_may_end.wait(60), "the second item does not wait for the first"
        if number == 1:
            first_may_end.set()
        return number**2

    assert list(in_threads(square, range(7), workers)) == [0, 1, 4, 9, 16, 25, 36]


def test_in_threads_divides_the_cores(four_threads):
    for workers, each in ((1, 4), (2, 2), (3, 1), (4, 1), (9, 1)):
        found = in_threads(lambda _: torch.get_num_threads(), range(4), workers)
        assert list(found) == [each] * 4
        assert torch.get_num_threads() == 4
        assert list(in_threads(lambda _: torch.get_num_threads(), range(2), 1)) == [4, 4]


def test_in_threads_raises_the_error_of_an_item_in_its_place():
    results = in_threads(lambda number: 6 // number, [3, 2, 0, 1], workers=2)
    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_in_threads_bounds_the_pending_results():
    taken = []

    def items():
        for number in range(50):
            taken.append(number)
            yield number

    results = in_threads(abs, items(), workers=3)
    for read in range(1, 40):
        next(results)
        assert len(taken) <= read + 3
    results.close()

"""Several processes share the work of one: nothing twice, nothing left out, the same batches."""

from hypothesis import given
from hypothesis import strategies as st

from phiseg.compute import ranks


@given(
    rows=st.integers(0, 40).map(lambda number: list(range(number))),
    batch_size=st.integers(1, 6),
    number=st.integers(1, 5),
)
def test_share_batches_divides_whole_batches(rows, batch_size, number):
    shares = [ranks.share_batches(rows, batch_size, part, number) for part in range(number)]
    batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    dealt = [share[start : start + batch_size] for share in shares for start in range(0, len(share), batch_size)]
    assert sorted(dealt) == batches
    assert max(map(len, shares)) - min(map(len, shares)) <= batch_size


def test_gather_of_one_process():
    assert ranks.process_rank() == (0, 1)
    assert ranks.gather({"a": 1}) == [{"a": 1}]

"""The cleaner's aborted transactions: each one is known, and listed as often as it reaches over segments."""

from ottla.protocol.records.batch import read_header
from ottla.storage.compaction import CleanedTransactions
from ottla.storage.transaction_index import AbortedTransaction
from tests.unit.storage.storage_support import batch, marker


class Offset(int):
    """Counts how often it is compared."""

    compared = 0

    def __eq__(self, other):
        Offset.compared += 1
        return int(self) == int(other)

    def __lt__(self, other):
        Offset.compared += 1
        return int(self) < int(other)

    __hash__ = int.__hash__


def test_many_cost_little_each():
    """With a search of all the others for each, 8,000 took a second."""
    count = 1000
    CleanedTransactions().add(
        AbortedTransaction(number, Offset(3 * number), 3 * number + 2, 3 * number + 3)
        for number in range(count)
    )
    assert Offset.compared < 30 * count


def data(offset):
    fields = {"producer_id": 5, "producer_epoch": 0, "base_sequence": offset, "is_transactional": True}
    return read_header(batch(base_offset=offset, **fields))


def test_one_that_reaches_over_three_segments_is_one():
    transaction = AbortedTransaction(5, 10, 30, 31)
    cleaned = CleanedTransactions()
    for first_offset in (0, 10, 20):
        cleaned.add([transaction])
        assert cleaned.is_data_obsolete(data(first_offset)) == (first_offset >= 10)
    end = marker(producer_id=5, commit=False)
    header = read_header(end)._replace(base_offset=30)
    assert not cleaned.is_marker_obsolete(header, end)  # there were records
    assert not cleaned.is_data_obsolete(data(31))

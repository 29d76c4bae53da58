"""The `.snapshot` files, held against one that Kafka wrote.

About KIP-98.
"""

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from ottla.storage.producer_snapshot import CorruptSnapshot, decode, encode
from ottla.storage.producer_state import BatchMetadata, ProducerState, ProducerStateManager

NOW = 1_700_000_000_000

#: Written by Kafka 4.3.1 after: producer 2000 three records at offset 0; 2**33 + 5, epoch 4, five records from
#: sequence 2**31 - 2 on; 7, epoch 1, two records of a transaction at 8; a commit of 9, epoch 3, by coordinator epoch 6.
KAFKAS = bytes.fromhex(
    "00019dbe8cf600000004"
    "00000000000007d00000000000020000000000000002000000020000018bcfe56802ffffffffffffffffffffffff"
    "00000002000000050004000000020000000000000007000000040000018bcfe56804ffffffffffffffffffffffff"
    "00000000000000070001000000010000000000000009000000010000018bcfe56801ffffffff0000000000000008"
    "00000000000000090003ffffffffffffffffffffffff000000000000018bcfe5683200000006ffffffffffffffff"
)


def by_id(*states):
    return {state.producer_id: state for state in states}


def test_kafkas_snapshot():
    found = by_id(*decode(KAFKAS))
    assert list(found) == [2000, 2**33 + 5, 7, 9]
    assert found[2000].batches[0] == BatchMetadata(2, 2, 2, NOW + 2)
    assert found[2**33 + 5].epoch == 4
    assert found[2**33 + 5].batches[0].first_sequence == 2**31 - 2
    assert found[7].transaction_first_offset == 8
    assert found[9].coordinator_epoch == 6
    assert found[9].last_sequence is None


def test_our_snapshot_is_kafkas():
    found = by_id(*decode(KAFKAS))
    # The order is java.util.HashMap's: by slots, and within one in the order they came (2**33 + 5 and 7 share one).
    shuffled = {number: found[number] for number in (9, 2**33 + 5, 7, 2000)}
    assert list(shuffled) != list(found)
    assert encode(shuffled) == KAFKAS


def test_empty():
    assert decode(encode({})) == []


states = st.builds(
    lambda number, epoch, coordinator, timestamp, transaction, batch: ProducerState(
        producer_id=number,
        epoch=epoch,
        coordinator_epoch=coordinator,
        last_timestamp=timestamp,
        transaction_first_offset=transaction,
        batches=ProducerState(producer_id=0).batches.copy() if batch is None else _deque(batch, timestamp),
    ),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**15 - 1),
    st.none() | st.integers(0, 2**31 - 1),
    st.integers(-1, 2**63 - 1),
    st.none() | st.integers(0, 2**63 - 1),
    st.none() | st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1)),
)


def _deque(batch, timestamp):
    batches = ProducerState(producer_id=0).batches
    batches.append(BatchMetadata(*batch, timestamp))
    return batches


@given(st.lists(states, max_size=40, unique_by=lambda state: state.producer_id))
def test_round_trip(found):
    assert by_id(*decode(encode(by_id(*found)))) == by_id(*found)


@given(st.lists(states, min_size=1, max_size=5, unique_by=lambda state: state.producer_id), st.data())
def test_every_change_is_noticed(found, data):
    snapshot = bytearray(encode(by_id(*found)))
    position = data.draw(st.integers(0, len(snapshot) - 1))
    snapshot[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptSnapshot):
        decode(bytes(snapshot))


@given(st.binary(max_size=120))
def test_random_bytes(data):
    with pytest.raises(CorruptSnapshot):
        decode(data)


@pytest.mark.parametrize("body", [b"\0\0\0\1", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff" + bytes(46)])
def test_counts_that_lie(body):
    with pytest.raises(CorruptSnapshot):
        decode(b"\0\1" + crc32c(body).to_bytes(4, "big") + body)


def test_loading():
    manager = ProducerStateManager(producer_id_expiration_ms=lambda: 1000)
    manager.load(decode(KAFKAS), offset=11, now_ms=NOW + 1003)
    # 2000 has been silent for too long, 7 too, but its transaction is open.
    assert set(manager.producers) == {2**33 + 5, 7, 9}
    assert manager.first_unstable_offset == 8
    assert (manager.map_end_offset, manager.last_snapshot_offset) == (11, 11)

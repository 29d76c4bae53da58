"""The leader's offsets that a leader endpoint requests: three requests or more for all partitions together
(KIP-1023)."""

from collections.abc import Mapping

import pytest

from ottla.broker.replicas.following.leader_endpoint import FetcherSettings, LeaderEndpoint
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, UnsupportedVersion
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from ottla.protocol.types import TopicPartition
from ottla.replication.remote_log_aux import FetchLeaderOffsets, LeaderOffsets

START, LOCAL, TIERED, PENDING = -2, -4, -5, -6
NAMES = {START: "start", LOCAL: "local start", TIERED: "last tiered", PENDING: "pending"}
UNKNOWN = (-1, -1)
NOT_YET = (ErrorCode.unknown_leader_epoch,)
AT = TopicPartition("t", 0)


class Leader:
    """In place of a NodeClient: answers with what a partition has at a timestamp, as (offset, epoch) or (error,)."""

    def __init__(
        self,
        *partitions: Mapping[int, tuple[int, ...]],
        version: int = 11,
        ends: Mapping[int, tuple[int, int]],
    ) -> None:
        self._partitions = partitions
        self._version = version
        self._ends = ends
        #: What was asked, and for which partitions.
        self.asked: list[tuple[str, list[int]]] = []

    async def request(self, address, key, message, *, timeout_s, versions=None):
        if versions is not None and versions.start > self._version:
            raise UnsupportedVersion(f"{versions}")
        (topic,) = message.topics
        if key == ApiKey.OFFSET_FOR_LEADER_EPOCH:
            self.asked.append(("epoch end", [row.partition for row in topic.partitions]))
            ends = [(row.partition, *self._ends[row.leader_epoch]) for row in topic.partitions]
            rows = [
                EpochEndOffset(partition=at, leader_epoch=epoch, end_offset=end) for at, epoch, end in ends
            ]
            return OffsetForLeaderEpochResponse(
                topics=[OffsetForLeaderTopicResult(topic="t", partitions=rows)]
            )
        self.asked.append(
            (NAMES[topic.partitions[0].timestamp], [row.partition_index for row in topic.partitions])
        )
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(name="t", partitions=[self._row(row) for row in topic.partitions])
            ]
        )

    def _row(self, asked):
        found = self._partitions[asked.partition_index][asked.timestamp]
        row = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
        if len(found) == 1:
            row.error_code = found[0]
        else:
            row.offset, row.leader_epoch = found
        return row


def ask(simulation, leader, *prefers):
    endpoint = LeaderEndpoint(
        leader,
        leader_id=1,
        address=lambda: ("leader", 9092),
        broker_epoch=lambda: 1,
        settings=FetcherSettings(node_id=2),
    )
    rows = {
        TopicPartition("t", index): FetchLeaderOffsets(leader_epoch=5, prefers_last_tiered=each)
        for index, each in enumerate(prefers)
    }
    return simulation.run(endpoint.leader_offsets(rows))


def offsets(start, local_start, begins, previous_epoch):
    return LeaderOffsets(
        log_start_offset=start,
        local_log_start_offset=local_start,
        bootstrap_offset=begins,
        previous_epoch=previous_epoch,
    )


#: Epochs e0@0 e1@3 e2@5: (largest epoch <= the key, its end).
ENDS = {0: (0, 3), 1: (1, 5)}


@pytest.mark.parametrize(("pending", "last_tiered", "answer", "questions"), [
    ((6, 2),    None,    offsets(0, 3, 6, 2),           ["pending", "epoch end"]),
    ((5, 2),    None,    offsets(0, 3, 5, 1),           ["pending", "epoch end"]),   # the record before is of e1
    ((2, 0),    None,    offsets(0, 3, 3, 0),           ["pending", "epoch end"]),   # as the local log start
    (UNKNOWN,   UNKNOWN, ErrorCode.offset_not_available, ["pending", "last tiered"]),
    (UNKNOWN,   (7, 2),  offsets(0, 3, 8, 2),           ["pending", "last tiered", "epoch end"]),  # Kafka: at its end
    (UNKNOWN,   NOT_YET, ErrorCode.unknown_leader_epoch, ["pending", "last tiered"]),
    (NOT_YET,   None,    ErrorCode.unknown_leader_epoch, ["pending"]),
    ((6, -1),   None,    ErrorCode.offset_not_available, ["pending"]),               # copies are found by epochs
])  # fmt: skip
def test_an_offset_that_is_preferred(simulation, pending, last_tiered, answer, questions):
    leader = Leader({START: (0, 0), LOCAL: (3, 1), PENDING: pending, TIERED: last_tiered}, ends=ENDS)
    assert ask(simulation, leader, True) == {AT: answer}
    assert [name for name, _ in leader.asked] == ["start", "local start", *questions]


@pytest.mark.parametrize(("pending", "begins", "previous_epoch"), [
    (UNKNOWN,  50, None),   # nothing is tiered yet
    ((20, -1), 50, None),   # what was tiered has expired
    ((50, -1), 50, None),   # the log is empty: it may have no epoch
    ((80, 1),  80, 1),
])  # fmt: skip
def test_a_log_that_is_local_from_its_start_on(simulation, pending, begins, previous_epoch):
    leader = Leader({START: (50, -1), LOCAL: (50, -1), PENDING: pending}, ends={0: (0, 60)})
    assert ask(simulation, leader, True) == {AT: offsets(50, 50, begins, previous_epoch)}


def test_one_request_of_each_kind_for_all_partitions(simulation):
    plain = {START: (0, 0), LOCAL: (3, 1)}
    leader = Leader(
        plain,
        plain | {PENDING: (6, 2)},
        plain | {PENDING: UNKNOWN, TIERED: (7, 2)},
        plain | {PENDING: UNKNOWN, TIERED: UNKNOWN},
        ends=ENDS,
    )
    found = ask(simulation, leader, False, True, True, True)
    assert list(found.values()) == [
        offsets(0, 3, 3, 0),
        offsets(0, 3, 6, 2),
        offsets(0, 3, 8, 2),
        ErrorCode.offset_not_available,
    ]
    assert leader.asked == [
        ("start", [0, 1, 2, 3]),
        ("local start", [0, 1, 2, 3]),
        ("pending", [1, 2, 3]),
        ("last tiered", [2, 3]),
        ("epoch end", [0, 1, 2]),
    ]


def test_a_leader_without_version_11_is_followed_from_its_local_log_start_on(simulation):
    leader = Leader({START: (0, 0), LOCAL: (3, 1)}, version=10, ends=ENDS)
    assert ask(simulation, leader, True) == {AT: offsets(0, 3, 3, 0)}
    assert [name for name, _ in leader.asked] == ["start", "local start", "epoch end"]

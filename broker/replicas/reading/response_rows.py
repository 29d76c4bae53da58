"""Rows of a Fetch response (Kafka's FetchPartitionData): errors, redirections, and what most rows have in common."""

from typing import Final
from uuid import UUID

from ottla.broker.replicas.reading.fetch_sessions import FetchedPartition, FetchSession
from ottla.broker.replicas.replica_manager import ReplicaManager
from ottla.protocol.errors import ErrorCode
from ottla.protocol.hot import fetch as codec
from ottla.protocol.hot.fetch import FastRow, Row
from ottla.protocol.messages.fetch import AbortedTransaction, EpochEndOffset, PartitionData
from ottla.storage.log import Log
from ottla.storage.log_offsets import LogOffsets

#: The rows of one response, in the order of reading.
ResponseRows = list[tuple[FetchedPartition, Row]]
#: A topic's name, or its id from version 13 on, and its rows.
FetchedTopic = tuple[str | UUID, list[Row]]

# Fields of nearly every row that is not a `FastRow`.
NO_DIVERGENCE: Final = codec.NO_DIVERGENCE
NO_LEADER: Final = codec.NO_LEADER
NO_SNAPSHOT: Final = codec.NO_SNAPSHOT

#: Errors found before any read. If the fetch has other partitions to wait for, these errors wait too: otherwise a
#: consumer of one deleted topic would fetch in a tight loop.
PATIENT_ERRORS: Final = frozenset({ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition})


def count_and_group(
    rows: ResponseRows, session: FetchSession | None, replicas: ReplicaManager, *, is_follower: bool
) -> list[FetchedTopic]:
    """The rows that are about to be sent, by topic: consecutive ones are grouped, and a topic may occur again later.

    Counts their records, in the same loop: in the topics' bytes, in the throttle of a follower's partitions,
    and for the session's high watermark delay. So it is called once for each response, when nothing can drop
    its rows any more.
    """
    topics: list[FetchedTopic] = []
    has_records = False
    last: str | UUID | None = None
    for fetched, row in rows:
        topic = fetched.key[0]
        if topic is not last and topic != last:  # ids are compared in Python
            last = topic
            partitions: list[Row] = []
            topics.append((topic, partitions))
        partitions.append(row)
        if row.records:
            partition, size_bytes = fetched.partition, len(row.records)
            assert partition is not None
            if is_follower:
                has_records = True
                replicas.throttle.record_sent(partition, size_bytes)
                partition.stats.replication_bytes_out += size_bytes
            else:
                partition.stats.bytes_out += size_bytes
    if has_records and session is not None:
        session.high_watermark_delay.on_records(replicas.runtime.monotonic())
    return topics


def must_be_seen(row: PartitionData) -> bool:
    """Whether it is an error, a divergence or a redirection; a `FastRow` is none."""
    return bool(row.error_code or row.diverging_epoch is not NO_DIVERGENCE or row.preferred_read_replica >= 0)


def without_records(row: Row) -> Row:
    """The row of a follower that is throttled."""
    if isinstance(row, FastRow):
        return row._replace(records=b"")
    row.records = b""
    return row


def with_aborted_transactions(row: FastRow) -> PartitionData:
    """A row of a read-committed consumer that has to skip some records."""
    return PartitionData(
        **row._asdict(), diverging_epoch=NO_DIVERGENCE, current_leader=NO_LEADER, snapshot_id=NO_SNAPSHOT
    )


def empty_row(
    index: int,
    offsets: LogOffsets,
    *,
    diverging_epoch: EpochEndOffset = NO_DIVERGENCE,
    preferred_read_replica: int = -1,
    aborted_transactions: list[AbortedTransaction] | None = None,
) -> PartitionData:
    """A row without records.

    The follower's log has diverged, another replica is preferred (KIP-392), or records come later.
    """
    return PartitionData(
        partition_index=index,
        high_watermark=offsets.high_watermark,
        last_stable_offset=offsets.last_stable_offset,
        log_start_offset=offsets.log_start_offset,
        diverging_epoch=diverging_epoch,
        current_leader=NO_LEADER,
        snapshot_id=NO_SNAPSHOT,
        aborted_transactions=aborted_transactions,
        preferred_read_replica=preferred_read_replica,
        records=b"",
    )


def error_row(index: int, code: ErrorCode, *, version: int) -> PartitionData:
    """A row without records and offsets."""
    if code == ErrorCode.kafka_storage_error and version <= 5:
        # Clients of these versions do not retry after this error.
        code = ErrorCode.not_leader_or_follower
    return PartitionData(
        partition_index=index,
        error_code=code,
        high_watermark=-1,
        diverging_epoch=NO_DIVERGENCE,
        current_leader=NO_LEADER,
        snapshot_id=NO_SNAPSHOT,
        # As in Kafka, whose rows differ in this field where no log was read; no client depends on it.
        aborted_transactions=[] if code in PATIENT_ERRORS else None,
        records=b"",
    )


def aborted_transactions(log: Log, *, fetch_offset: int, end_offset: int) -> list[AbortedTransaction]:
    """The aborted transactions that a read-committed consumer skips between these offsets.

    `end_offset` is the last stable offset rather than the end of the records read: the client ignores a transaction
    that begins later, and receives it again with its records.
    """
    return [
        AbortedTransaction(producer_id=found.producer_id, first_offset=found.first_offset)
        for found in log.reader.aborted_transactions(fetch_offset, end_offset)
    ]

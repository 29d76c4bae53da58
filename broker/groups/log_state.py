"""Replayed state of one partition of the offsets topic: the result of replaying its records up to an offset.

The loader fills it, and the leader adds the records that it appends. It depends on the log alone, so it is valid again
when the broker becomes leader again with the same log (`resuming`).

Source: Kafka's SnapshottableCoordinator (lastWrittenOffset) and GroupCoordinatorShard.replay.
"""

import logging
from collections.abc import Iterator
from typing import Final

from ottla.broker.groups.offsets import OffsetAt, OffsetStore, offset_from_value
from ottla.protocol.coordinator.group_records import GroupMetadataKey
from ottla.protocol.coordinator.record_codec import UnknownRecordKind, decode_key, decode_offset
from ottla.protocol.errors import KafkaError, MalformedMessage
from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.control import ControlRecordType, control_type
from ottla.protocol.records.record import Record, decode_records
from ottla.protocol.types import TopicPartition

logger = logging.getLogger(__name__)

#: The number of records that are replayed without a pause: a tenth of a millisecond.
_RECORDS_A_STEP: Final = 16
#: Records and batches that are skipped with a line of their own in the log; the others are counted.
_SKIPPED_LINES: Final = 10


class LogState:
    """The result of replaying one partition of the offsets topic up to an offset: committed offsets and group
    records.

    `next_offset` is the end of the replay so far (exclusive); None before the first batch.
    """

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.offsets = OffsetStore()
        #: Group -> the encoded value of its newest record: only a group's last generation is ever decoded.
        self.groups: dict[str, bytes] = {}
        #: While `is_complete`, every record before this offset is replayed.
        self.next_offset: int | None = None
        #: Whether there is no gap before `next_offset`; False once records were appended after one that is
        #: not replayed.
        self.is_complete = True
        #: The end offset of the batch whose replay was started last.
        self._begun_end = 0
        #: Records and batches that were skipped since the last report.
        self._skipped_count = 0

    @property
    def end_offset(self) -> int:
        """The offset from which on no record is replayed; beyond `next_offset` after an interrupted batch."""
        return max(self._begun_end, self.next_offset or 0)

    def replay_batch(self, header: BatchHeader, payload: bytes) -> Iterator[None]:
        """Replay the decompressed records of a batch, a few per step.

        A batch whose replay was interrupted may be replayed again. A record that cannot be decoded is skipped with a
        warning: Kafka fails to load the partition, and with it all its groups, for one bad record.
        """
        self._begun_end = header.next_offset
        producer_id = header.producer_id if header.is_transactional else None
        try:
            for number, record in enumerate(decode_records(payload, header), start=1):
                if header.is_control:
                    self._end_transaction(header.producer_id, record)
                else:
                    self._replay_record(record, producer_id)
                if number % _RECORDS_A_STEP == 0:
                    yield
        except KafkaError as error:
            self.skip_batch(header, error)
        self.next_offset = header.next_offset

    def skip_batch(self, header: BatchHeader, error: KafkaError) -> None:
        """Skip a batch of which some or all records cannot be decoded."""
        self._warn_of_skipped("batch", header.base_offset, error)
        self.next_offset = header.next_offset

    def _warn_of_skipped(self, what: str, offset: int, error: Exception) -> None:
        self._skipped_count += 1
        if self._skipped_count <= _SKIPPED_LINES:
            logger.warning(
                "%s: the %s at offset %d is skipped: %s", self.topic_partition, what, offset, error
            )

    def report_skipped(self) -> None:
        """Log how many records and batches of the replayed part were skipped without a line of their own."""
        if self._skipped_count > _SKIPPED_LINES:
            logger.warning(
                "%s: %d more records or batches before offset %d are skipped",
                self.topic_partition,
                self._skipped_count - _SKIPPED_LINES,
                self.end_offset,
            )
        self._skipped_count = 0

    def _end_transaction(self, producer_id: int, record: Record) -> None:
        kind = control_type(record.key)
        if kind in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
            self.offsets.end_transaction(producer_id, is_committed=kind is ControlRecordType.COMMIT)

    def _replay_record(self, record: Record, producer_id: int | None) -> None:
        value = record.value
        try:
            key = decode_key(record.key)
            if isinstance(key, GroupMetadataKey):
                self.record_group(key.group, value)
                return
            offset = None if value is None else decode_offset(value)
        except (UnknownRecordKind, MalformedMessage) as error:
            self._warn_of_skipped("record", record.offset, error)
            return
        at = OffsetAt(key.group, key.topic, key.partition)
        if offset is None:
            self.offsets.remove(at)
        else:
            committed = offset_from_value(offset, record_offset=record.offset)
            self.offsets.put(at, committed, producer_id=producer_id)

    def record_group(self, group_id: str, value: bytes | None) -> None:
        """Set the newest record of a group; None is a tombstone."""
        if value is None:
            self.groups.pop(group_id, None)
        else:
            self.groups[group_id] = value

    def record_appended(self, *, first_offset: int, last_offset: int) -> None:
        """Count records that the leader has appended; the shard replays their offset commits into the same
        store.
        """
        assert first_offset <= last_offset, (self.topic_partition, first_offset, last_offset)
        if self.next_offset is not None and self.next_offset != first_offset:
            assert self.next_offset < first_offset, (self.topic_partition, self.next_offset, first_offset)
            self.is_complete = False
        self.next_offset = last_offset + 1

    def discard(self) -> Iterator[None]:
        """Free the memory, one group per step: freeing millions of objects at once would block the loop."""
        yield from self.offsets.discard()
        while self.groups:
            self.groups.popitem()
            yield

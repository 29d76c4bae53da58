"""What the records of one partition of the offsets topic say, up to an offset: the result of replaying them.

The loader fills it, and the leader adds what it appends. Nothing in it is known to this broker alone, so that it is
true again when the broker becomes leader again with the same log (`resuming`).
"""

import logging
from collections.abc import Iterator
from typing import Final

from broker.groups.offsets import OffsetAt, OffsetStore, offset_from_value
from protocol.coordinator.group_records import GroupMetadataKey
from protocol.coordinator.record_codec import UnknownRecordKind, decode_key, decode_offset
from protocol.errors import KafkaError, MalformedMessage
from protocol.records.batch import BatchHeader
from protocol.records.control import ControlRecordType, control_type
from protocol.records.record import Record, parse_payload
from protocol.types import TopicPartition

logger = logging.getLogger(__name__)

#: A tenth of a millisecond.
_RECORDS_A_STEP: Final = 16


class LogState:
    """See the module. `next_offset` is where the replay stands; None before the first batch."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.offsets = OffsetStore()
        #: Group -> the value of its newest record, encoded: of a group's generations only the last one is ever decoded.
        self.groups: dict[str, bytes] = {}
        #: Every record before is in here.
        self.next_offset: int | None = None
        #: Whether `next_offset` says all: false once something was appended behind a record that is not in here.
        self.is_complete = True
        #: The end of the batch whose replay has begun last.
        self._begun_end = 0

    @property
    def end_offset(self) -> int:
        """No record from here on is in here; behind `next_offset` where the replay of a batch was broken off."""
        return max(self._begun_end, self.next_offset or 0)

    def replay_batch(self, header: BatchHeader, payload: bytes) -> Iterator[None]:
        """Replay the decompressed records of a batch, a few a step.

        A batch whose replay was broken off may be replayed again. A record that makes no sense is passed over with a
        warning: Kafka would refuse the partition, and so all its groups, for one bad record.
        """
        self._begun_end = header.next_offset
        producer_id = header.producer_id if header.is_transactional else None
        try:
            for number, record in enumerate(parse_payload(payload, header), start=1):
                if header.is_control:
                    self._end_transaction(header.producer_id, record)
                else:
                    self._replay_record(record, producer_id)
                if number % _RECORDS_A_STEP == 0:
                    yield
        except KafkaError as error:
            self.pass_over(header, error)
        self.next_offset = header.next_offset

    def pass_over(self, header: BatchHeader, error: KafkaError) -> None:
        """The batch, or what follows its first records, cannot be read."""
        logger.warning("%s: batch %d is passed over: %s", self.topic_partition, header.base_offset, error)
        self.next_offset = header.next_offset

    def _end_transaction(self, producer_id: int, record: Record) -> None:
        kind = control_type(record.key)
        if kind in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
            self.offsets.end_transaction(producer_id, is_committed=kind is ControlRecordType.COMMIT)

    def _replay_record(self, record: Record, producer_id: int | None) -> None:
        value = record.value
        try:
            key = decode_key(record.key)
            if isinstance(key, GroupMetadataKey):
                self.note_group(key.group, value)
                return
            offset = None if value is None else decode_offset(value)
        except (UnknownRecordKind, MalformedMessage) as error:
            logger.warning("%s: record %d is passed over: %s", self.topic_partition, record.offset, error)
            return
        at = OffsetAt(key.group, key.topic, key.partition)
        if offset is None:
            self.offsets.remove(at)
        else:
            committed = offset_from_value(offset, record_offset=record.offset)
            self.offsets.put(at, committed, producer_id=producer_id)

    def note_group(self, group_id: str, value: bytes | None) -> None:
        """The newest record of a group; None is a tombstone."""
        if value is None:
            self.groups.pop(group_id, None)
        else:
            self.groups[group_id] = value

    def note_appended(self, *, first_offset: int, last_offset: int) -> None:
        """The leader has appended records of its own; the shard replays those of offsets into the same store."""
        if self.next_offset not in (None, first_offset):
            self.is_complete = False
        self.next_offset = last_offset + 1

    def discard(self) -> Iterator[None]:
        """Free the memory, a group a step: millions of objects that go at once stop the loop for as long."""
        yield from self.offsets.discard()
        while self.groups:
            self.groups.popitem()
            yield

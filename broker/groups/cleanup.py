"""Cleanup of a shard: tombstones for expired offsets, for groups without offsets, and for offsets of deleted topics.

Each step of an iterator is one short turn of the loop, with one batch at most. Tombstones are appended in the step that
found them: no commit comes in between.

Source: cleanupGroupMetadata and onTopicsDeleted of Kafka's GroupCoordinatorShard.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final
from uuid import UUID

from ottla.broker.groups.answers import error_of
from ottla.broker.groups.offset_manager import tombstone
from ottla.broker.groups.record_writer import RecordWriter
from ottla.broker.groups.shard import Shard
from ottla.protocol.coordinator.record_codec import GroupRecord
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.types import TopicPartition

logger = logging.getLogger(__name__)

#: Maximum tombstones of a batch, if they need not be in one batch: a millisecond or two of the loop.
MAX_TOMBSTONES_A_BATCH: Final = 100
#: Groups examined in one step if no tombstone is found: less than a millisecond.
_GROUPS_A_STEP: Final = 50
#: Offsets examined in one step if no tombstone is found: less than a millisecond.
_OFFSETS_A_STEP: Final = 500
#: The errors of a batch that exceeds the topic's maximum message size, or its segment size.
_TOO_LARGE: Final = (ErrorCode.message_too_large, ErrorCode.record_list_too_large)


class Cleanup:
    """Appends tombstones to one shard's partition, for offsets and groups that have expired or whose topics
    are deleted.

    The shard must be loaded.
    """

    def __init__(self, shard: Shard, writer: RecordWriter, topic_partition: TopicPartition) -> None:
        self._shard = shard
        self._writer = writer
        self._topic_partition = topic_partition

    def expire(self, *, now_ms: int) -> Iterator[None]:
        """Delete expired offsets, and groups that are empty without them."""

        def expired(group_id: str, limit: int) -> list[GroupRecord]:
            group = self._shard.groups.get(group_id)
            return [] if group is None else self._shard.expire(group, now_ms=now_ms, limit=limit)

        return self._delete(list(self._shard.groups), expired)

    def delete_topics(self, topics: Iterable[tuple[UUID, str]]) -> Iterator[None]:
        """Delete the offsets of these deleted topics (id, name)."""

        def deleted(group_id: str, limit: int) -> list[GroupRecord]:
            return self._shard.delete_topics(group_id, topics, limit=limit)

        return self._delete(self._shard.offsets.group_ids, deleted)

    def delete_lost_topics(self) -> Iterator[None]:
        """Delete the offsets of topics that were deleted while no broker led this partition.

        Not while an open transaction has written the same offset, perhaps of a new topic with that name: a
        tombstone would remove that one, too.
        """
        found: list[GroupRecord] = []
        #: The ids of topics that exist; an offset without an id may be of any topic.
        present: set[int | None] = {None}
        for number, (at, offset) in enumerate(self._shard.offsets.each(), start=1):
            if offset.topic_id not in present:
                if self._shard.has_topic(UUID(int=offset.topic_id)):
                    present.add(offset.topic_id)
                elif self._shard.offsets.get(at) is offset and not self._shard.offsets.is_pending(at):
                    found.append(tombstone(at))
            if number % _OFFSETS_A_STEP == 0 or len(found) == MAX_TOMBSTONES_A_BATCH:
                # Before the next step, since a client may commit the same offset meanwhile.
                if not self._write(found):
                    return
                found = []
                yield
        self._write(found)

    def _delete(self, group_ids: list[str], find: Callable[[str, int], list[GroupRecord]]) -> Iterator[None]:
        """Append the tombstones that `find` returns for each group, in batches of bounded size."""
        records: list[GroupRecord] = []
        for number, group_id in enumerate(group_ids, start=1):
            records += find(group_id, MAX_TOMBSTONES_A_BATCH - len(records))
            while len(records) >= MAX_TOMBSTONES_A_BATCH:
                if not self._write(records):
                    return
                yield
                written, records = records, find(group_id, MAX_TOMBSTONES_A_BATCH)
                if records and records[0] in written:
                    records = []  # Too large for any batch.
            if number % _GROUPS_A_STEP == 0:
                if not self._write(records):
                    return
                records = []
                yield
        self._write(records)

    def _write(self, records: list[GroupRecord]) -> bool:
        """Append and replay records without waiting for followers; return whether the log accepts more.

        A batch that is too large for the topic is halved. Any other error ends the loop: the next batch would probably
        fail, too, and expired offsets are found again by the next run.
        """
        batches = deque([records] if records else [])  # at most the parts of one batch
        while batches:
            batch = batches.popleft()
            try:
                _, pending = self._writer.append_and_replay(batch)
            except KafkaError as error:
                is_too_large = error.code in _TOO_LARGE
                if is_too_large and len(batch) > 1:
                    half = len(batch) // 2
                    batches.extendleft((batch[half:], batch[:half]))
                    continue
                logger.warning("%s: tombstones were not written: %s", self._topic_partition, error)
                if is_too_large:
                    continue
                return False
            if pending is not None:  # Not awaited, but its exception must be retrieved, or asyncio logs it.
                pending.add_done_callback(error_of)
        return True

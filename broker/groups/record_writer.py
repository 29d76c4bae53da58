"""Appends of one shard's records, and responses that wait until the records are committed.

A record is replayed as soon as it is appended; the response follows when the high watermark has passed it.

Source: CoordinatorRuntime.CoordinatorContext (append, deferredEventQueue) of Kafka 4.3.
"""

from asyncio import Future
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from ottla.broker.groups.answers import Answer, error_of
from ottla.broker.groups.config import GroupConfig
from ottla.broker.groups.coordinator_log import CoordinatorLog
from ottla.broker.groups.log_state import LogState
from ottla.broker.groups.offset_commits import OffsetCommits
from ottla.protocol.coordinator.group_records import GroupMetadataKey
from ottla.protocol.coordinator.record_codec import GroupRecord, encode
from ottla.protocol.errors import KafkaError, NotCoordinator, NotEnoughReplicasAfterAppend, UnknownServerError
from ottla.protocol.records.builder import build_batch_of_pairs
from ottla.runtime import Runtime

A = TypeVar("A")

#: The records of one append: single ones, or those of an OffsetCommit, which may be thousands.
Appendable: TypeAlias = Sequence[GroupRecord] | OffsetCommits


class Replay(Protocol):
    """Applies appended records to the shard."""

    def __call__(self, records: Appendable, *, first_offset: int) -> None:
        """Apply the records; `first_offset` is the offset of the first one in the offsets topic."""


class RecordWriter:
    """Appends the records of one shard while this broker leads its partition, and responds on their commit."""

    def __init__(
        self, state: LogState, *, config: GroupConfig, log: CoordinatorLog, runtime: Runtime, replay: Replay
    ) -> None:
        self._state = state
        self._topic_partition = state.topic_partition
        self._config = config
        self._log = log
        self._runtime = runtime
        self._replay = replay
        self._is_closed = False
        #: The log end at loading; None once it is known to be committed. Kafka also reads to the log end, and
        #: returns what it has read after the high watermark has passed it (CoordinatorRuntime).
        self._loaded_end: int | None = None
        #: Group -> the end offset of its last append of offsets, unless that is known to be committed.
        self._uncommitted: dict[str, int] = {}

    def on_loaded(self) -> None:
        """Note the end of the loaded state, its `next_offset`, which need not be committed yet."""
        assert self._loaded_end is None, (str(self._topic_partition), self._loaded_end)
        self._loaded_end = self._state.next_offset

    def close(self) -> None:
        """End the leadership: responses that wait for an append become NOT_COORDINATOR when it completes."""
        self._is_closed = True

    def append(self, records: Appendable) -> tuple[int, "Future[None] | None"]:
        """Append the records in one batch: (first offset, a future of the commit or None if committed).

        Raises KafkaError; then nothing was written. Also if a value does not fit into a record.
        """
        pairs: Sequence[tuple[bytes, bytes | None]]
        try:
            if isinstance(records, OffsetCommits):
                pairs = records.encoded()
            else:
                pairs = [encode(record) for record in records]
        except ValueError as error:
            raise UnknownServerError(str(error)) from error
        batch = build_batch_of_pairs(
            pairs, timestamp=self._runtime.now_ms(), compression=self._config.offsets_topic_compression
        )
        appended = self._log.append_as_coordinator(self._topic_partition, batch)
        # The replay gives the records the offsets from the first one on.
        assert appended.last_offset - appended.first_offset + 1 == len(pairs), (appended, len(pairs))
        pending = self._committed(appended.last_offset + 1)
        self._state.record_appended(first_offset=appended.first_offset, last_offset=appended.last_offset)
        if not isinstance(records, OffsetCommits):
            for record, (_, value) in zip(records, pairs, strict=True):
                if isinstance(record.key, GroupMetadataKey):
                    self._state.record_group(record.key.group, value)
        return appended.first_offset, pending

    def append_and_replay(self, records: Appendable) -> tuple[int, "Future[None] | None"]:
        """Append the records and replay them: (end offset, a future of the commit or None). Raises KafkaError."""
        first_offset, pending = self.append(records)
        self._replay(records, first_offset=first_offset)
        return first_offset + len(records), pending

    def write(
        self, records: Appendable, group_id: str, answer: Callable[[KafkaError | None], A]
    ) -> Answer[A]:
        """Append these records in one batch, replay them, and answer when they are committed."""
        if not records:
            return answer(None)
        try:
            end_offset, pending = self.append_and_replay(records)
        except KafkaError as error:
            return answer(error)
        self._uncommitted[group_id] = end_offset
        return self._when(pending, group_id, end_offset, answer)

    def when_committed(self, group_id: str, answer: Callable[[KafkaError | None], A]) -> Answer[A]:
        """Answer when all that was loaded or appended for the group is committed: then it cannot be lost any more."""
        end_offset = self._uncommitted.get(group_id, self._loaded_end)
        if end_offset is None:
            return answer(None)
        try:
            pending = self._committed(end_offset)
        except NotEnoughReplicasAfterAppend:
            pending = None  # The high watermark has passed it, which is enough for a read.
        except KafkaError as error:
            return answer(error)
        return self._when(pending, group_id, end_offset, answer)

    def _committed(self, end_offset: int) -> "Future[None] | None":
        return self._log.committed(
            self._topic_partition, end_offset, timeout_ms=self._config.offsets_commit_timeout_ms
        )

    def _when(
        self,
        pending: "Future[None] | None",
        group_id: str,
        end_offset: int,
        answer: Callable[[KafkaError | None], A],
    ) -> Answer[A]:
        if pending is None:
            self._note_committed(group_id, end_offset)
            return answer(None)
        answered: Future[A] = self._runtime.loop.create_future()

        def complete(done: "Future[None]") -> None:
            error = error_of(done)  # in any case: an exception that is not retrieved is logged by asyncio
            if self._is_closed:
                error = NotCoordinator()
            elif error is None:
                self._note_committed(group_id, end_offset)
            if not answered.done():
                answered.set_result(answer(error))

        pending.add_done_callback(complete)
        return answered

    def _note_committed(self, group_id: str, end_offset: int) -> None:
        if self._uncommitted.get(group_id) == end_offset:
            del self._uncommitted[group_id]
        if self._loaded_end is not None and end_offset >= self._loaded_end:
            self._loaded_end = None

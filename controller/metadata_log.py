"""`__cluster_metadata-0` as the controller uses it: batches of metadata records, and control records of epochs.

Records reach the disk in one batch a decision, so that a torn write loses all of a decision or nothing. What
has been flushed is committed, while this node is the only voter: `flush` is where a quorum will have its say.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final, NamedTuple
from uuid import UUID

from controller import snapshots
from controller.record_versions import version_of
from protocol.errors import KafkaError
from protocol.metadata.frame import decode_record, encode_record
from protocol.metadata.image import InvalidMetadata
from protocol.metadata.records import MetadataRecord
from protocol.records.batch import crc_is_valid
from protocol.records.builder import build_batch, simple_records
from protocol.records.quorum import QuorumMessage, build_quorum_batch
from protocol.records.record import Record as Row
from protocol.records.record import records as records_of
from protocol.types import TopicPartition
from storage.append_origin import AppendOrigin
from storage.files import Files
from storage.log import Log
from storage.log_config import LogConfig

#: The id that the metadata topic has in every cluster: AAAAAAAAAAAAAAAAAAAAAQ.
TOPIC_ID: Final = UUID(int=1)
TOPIC_PARTITION: Final = TopicPartition("__cluster_metadata", 0)
#: Records of a decision that need not be atomic are cut into batches of so many; Kafka's MAX_RECORDS_PER_BATCH.
MAX_RECORDS_PER_BATCH: Final = 10_000
#: Nothing is ever deleted by age or size: without snapshots the log is all there is.
_CONFIG: Final = LogConfig(
    retention_ms=None, retention_bytes=None, segment_ms=2**62, max_message_bytes=2**31 - 1
)


class Chunk(NamedTuple):
    """Records that stand in one batch, at consecutive offsets from `base_offset` on."""

    base_offset: int
    records: list[MetadataRecord]
    #: Behind the batch; control records count, too.
    end_offset: int


class MetadataLog:
    """The log on this node's disk."""

    def __init__(self, log: Log, files: Files) -> None:
        self._log = log
        self._files = files

    @classmethod
    def open(
        cls, log_dir: Path, *, files: Files, random: Random, now_ms: int, is_clean: bool = False
    ) -> "MetadataLog":
        """Open the log in this log directory, or begin it. [any thread]

        Unless it `is_clean`, it ends before the first batch that is not whole and sound: a write that a
        crash has torn. After a clean stop there is none; damage is then found and refused by `read`.
        """
        log = Log.open(
            log_dir / str(TOPIC_PARTITION),
            config=_CONFIG,
            topic_partition=TOPIC_PARTITION,
            now_ms=now_ms,
            files=files,
            random=random,
            is_clean=is_clean,
            topic_id=TOPIC_ID,
        )
        return cls(log, files)

    @property
    def directory(self) -> Path:
        """Where the log, its snapshots and `quorum-state` are."""
        return self._log.directory

    @property
    def end_offset(self) -> int:
        """Where the next record will stand."""
        return self._log.log_end_offset

    @property
    def last_epoch(self) -> int:
        """The epoch of the last batch, 0 in an empty log."""
        return self._log.latest_epoch or 0

    def read(self, *, end_offset: int | None = None) -> Iterator[Chunk]:
        """Everything up to `end_offset` (None: the log's end), from a snapshot where the log begins later.

        Raises InvalidMetadata for whatever cannot be understood.
        """
        start = self._log.log_start_offset
        if start > 0:
            snapshot = snapshots.latest(self.directory, self._files)
            if snapshot is None or snapshot.end_offset < start:
                raise InvalidMetadata(
                    f"{self.directory} begins at offset {start}, and no snapshot holds what was before"
                )
            for found in snapshots.read(self.directory / snapshots.file_name(snapshot), self._files):
                yield Chunk(snapshot.end_offset - 1, found, snapshot.end_offset)
            start = snapshot.end_offset
        try:
            for header, batch in self._log.records_since(start, end=end_offset):
                if not crc_is_valid(batch):
                    raise InvalidMetadata(f"{self.directory} is damaged at offset {header.base_offset}")
                records = [] if header.is_control else [self._decode(row) for row in records_of(batch)]
                yield Chunk(header.base_offset, records, header.next_offset)
        except KafkaError as error:
            raise InvalidMetadata(f"{self.directory} cannot be read: {error}") from error

    def append(
        self, records: Sequence[MetadataRecord], *, epoch: int, metadata_version: int, now_ms: int
    ) -> int:
        """Append records as one batch; its base offset. Not yet on the disk."""
        pairs = [
            (None, encode_record(record, version_of(record, metadata_version=metadata_version)))
            for record in records
        ]
        base_offset = self.end_offset
        rows = simple_records(pairs, timestamp=now_ms, base_offset=base_offset)
        self._append(
            build_batch(rows, base_offset=base_offset, leader_epoch=epoch), epoch=epoch, now_ms=now_ms
        )
        return base_offset

    def append_control(self, messages: Sequence[QuorumMessage], *, epoch: int, now_ms: int) -> None:
        """Append control records as one batch: what an epoch begins with."""
        batch = build_quorum_batch(
            messages, base_offset=self.end_offset, leader_epoch=epoch, timestamp=now_ms
        )
        self._append(batch, epoch=epoch, now_ms=now_ms)

    def flush(self, end_offset: int) -> None:
        """Wait until everything before `end_offset` is on the disk. [any thread]"""
        self._log.flush(end_offset)

    def commit(self, end_offset: int) -> None:
        """Note that everything before `end_offset` is committed."""
        self._log.update_high_watermark(end_offset)

    def close(self) -> None:
        """Flush and close. [any thread]"""
        self._log.flush()
        self._log.close()

    def _append(self, batch: bytes, *, epoch: int, now_ms: int) -> None:
        self._log.append_as_leader(batch, leader_epoch=epoch, now_ms=now_ms, origin=AppendOrigin.RAFT_LEADER)

    def _decode(self, row: Row) -> MetadataRecord:
        if row.value is None:
            raise InvalidMetadata(f"{self.directory} has an empty record at offset {row.offset}")
        try:
            return decode_record(row.value)
        except InvalidMetadata as error:
            raise type(error)(f"{self.directory} at offset {row.offset}: {error}") from error

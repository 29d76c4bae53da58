"""Snapshot files (`*.checkpoint`): the metadata as records, without its history (KIP-630).

    control batch SnapshotHeader (and KRaftVersion, KRaftVoters) | record batches | control batch SnapshotFooter

| file | what it holds |
|---|---|
| `bootstrap.checkpoint` | the feature levels that a cluster starts with; written when a log directory is formatted |
| `00000000000000000000-0000000000.checkpoint` | the first voters, where voters are in the log (kraft.version 1) |
| `<end offset>-<epoch>.checkpoint` | everything before that offset: records before it may be deleted from the log |
| `....checkpoint.part`, `....checkpoint.deleted` | one that is being written, or removed |

Kafka 4.4 formats without `bootstrap.checkpoint`: the first feature levels are in the log's first snapshot.
This module is the format: one file, written or read. Which files a log has is
`ottla.controller.metadata_log.snapshot_store`. Offsets inside the file begin at 0; the epoch of all batches is
the snapshot's.
Source: Snapshots, RecordsSnapshotWriter and RecordsSnapshotReader of Kafka 4.3.1.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from ottla.controller.metadata_log.log_cleaning import MAX_BATCH_BYTES
from ottla.controller.raft.types import OffsetAndEpoch
from ottla.metadata.frame import decode_record, encode_record
from ottla.metadata.image import InvalidMetadata
from ottla.metadata.records import MetadataRecord
from ottla.protocol.errors import CorruptMessage, KafkaError
from ottla.protocol.messages.k_raft_version_record import KRaftVersionRecord
from ottla.protocol.messages.snapshot_footer_record import SnapshotFooterRecord
from ottla.protocol.messages.snapshot_header_record import SnapshotHeaderRecord
from ottla.protocol.messages.voters_record import VotersRecord
from ottla.protocol.records.batch import HEADER_SIZE_BYTES, BatchHeader, batches, crc_is_valid, read_header
from ottla.protocol.records.builder import build_batch_of_values
from ottla.protocol.records.quorum import QuorumMessage, build_quorum_batch, decode_quorum_record
from ottla.protocol.records.record import records as records_of
from ottla.protocol.records.record import values_of
from ottla.storage.files import Files

BOOTSTRAP_FILE: Final = "bootstrap.checkpoint"
FIRST_CHECKPOINT_FILE: Final = f"{0:020d}-{0:010d}.checkpoint"
SUFFIX: Final = ".checkpoint"
#: Records of one batch at most; Kafka's writer takes as many at a time.
BATCH_RECORDS: Final = 1024
#: Bytes of their values at most; the rest is for the headers.
_BATCH_BYTES: Final = MAX_BATCH_BYTES - 64 * BATCH_RECORDS
_MAX_KRAFT_VERSION: Final = 1
#: Bytes that are read at a time.
_READ_BYTES: Final = 1024 * 1024
#: What an operator can do about a damaged file of the metadata log.
REMEDY: Final = (
    "If other controllers have the metadata, a broker may start without the directory that holds the file, and a "
    "controller can be removed from the quorum, formatted and added again. Otherwise restore the file from a copy."
)


class Sink(Protocol):
    """The destination of a snapshot's bytes."""

    def append(self, data: bytes) -> None:
        """Write these bytes at the end."""


# -- writing -------------------------------------------------------------------------------------------


def write_bootstrap(log_dir: Path, records: Sequence[MetadataRecord], files: Files, *, now_ms: int) -> None:
    """Write the first records of a new cluster; all of them in their version 0."""
    framed = [encode_record(record, 0) for record in records]
    data = _Bytes()
    write_to(data, framed, (), epoch=0, last_timestamp=0, now_ms=now_ms)
    files.write_atomically(log_dir / BOOTSTRAP_FILE, b"".join(data.pieces))


def write_voters(directory: Path, voters: VotersRecord, files: Files, *, now_ms: int) -> None:
    """Write the first voters, before the log has a record."""
    data = _Bytes()
    messages = (KRaftVersionRecord(k_raft_version=_MAX_KRAFT_VERSION), voters)
    write_to(data, (), messages, epoch=0, last_timestamp=now_ms, now_ms=now_ms)
    files.write_atomically(directory / FIRST_CHECKPOINT_FILE, b"".join(data.pieces))


def write_to(
    sink: Sink,
    framed: Iterable[bytes],
    messages: Sequence[QuorumMessage],
    *,
    epoch: int,
    last_timestamp: int,
    now_ms: int,
) -> None:
    """Write a whole snapshot: `framed` are the values of its records, `messages` its control records of the quorum.

    `last_timestamp` is that of the last record of the log that it contains. Cost: 2 us a record.
    """
    header = (SnapshotHeaderRecord(last_contained_log_timestamp=last_timestamp), *messages)
    sink.append(build_quorum_batch(header, base_offset=0, leader_epoch=epoch, timestamp=now_ms))
    offset = len(header)
    for values in _batches_of(framed):
        sink.append(build_batch_of_values(values, base_offset=offset, leader_epoch=epoch, timestamp=now_ms))
        offset += len(values)
    footer = (SnapshotFooterRecord(),)
    sink.append(build_quorum_batch(footer, base_offset=offset, leader_epoch=epoch, timestamp=now_ms))


def _batches_of(framed: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for value in framed:
        if batch and (len(batch) == BATCH_RECORDS or size + len(value) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(value)
        size += len(value)
    if batch:
        yield batch


class _Bytes:
    """A sink in memory, for files of a few records."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def append(self, data: bytes) -> None:
        """Keep these bytes in memory."""
        self.pieces.append(data)


# -- reading -------------------------------------------------------------------------------------------


def read(path: Path, files: Files) -> Iterator[list[MetadataRecord]]:
    """The metadata records of a snapshot, batch by batch, with 1 MiB of it in memory. [any thread]

    Raises FileNotFoundError, and InvalidMetadata if the file is incomplete or damaged, or has unknown records;
    batches that were yielded before must then be discarded.
    """
    try:
        for header, batch in valid_batches(path, files):
            if not header.is_control:
                yield [decode_record(value or b"") for value in values_of(batch)]
    except KafkaError as error:
        raise InvalidMetadata(f"{path} is damaged: {error}. {REMEDY}") from error
    except InvalidMetadata as error:
        raise type(error)(f"{path}: {error}") from error


def quorum_messages(path: Path, files: Files) -> list[QuorumMessage]:
    """The control records in a snapshot's first batch: its header, kraft.version and voters. Raises InvalidMetadata."""
    try:
        _, batch = next(_batches_in(path, files), (None, None))
        if batch is None or not crc_is_valid(batch):
            raise CorruptMessage("its first batch cannot be read")
        messages = [decode_quorum_record(record) for record in records_of(batch)]
    except KafkaError as error:
        raise InvalidMetadata(f"{path} is damaged: {error}. {REMEDY}") from error
    if not messages or not isinstance(messages[0], SnapshotHeaderRecord):
        raise InvalidMetadata(f"{path} does not begin with a snapshot's header. {REMEDY}")
    return [message for message in messages if message is not None]


def last_contained_timestamp(path: Path, files: Files) -> int:
    """The timestamp, in ms, of the last record of the log that the snapshot contains. Raises InvalidMetadata."""
    header = quorum_messages(path, files)[0]
    assert isinstance(header, SnapshotHeaderRecord), header
    return header.last_contained_log_timestamp


def valid_batches(path: Path, files: Files) -> Iterator[tuple[BatchHeader, memoryview]]:
    """All batches; raises KafkaError unless they begin with a header, end with the footer, and every CRC is right."""
    is_complete = False
    header: BatchHeader | None = None
    for header, batch in _batches_in(path, files):
        if is_complete:
            raise CorruptMessage(f"bytes follow the footer, at offset {header.base_offset}")
        if not crc_is_valid(batch):
            raise CorruptMessage(f"the CRC of the batch at offset {header.base_offset} is wrong")
        if header.is_control:
            messages = [decode_quorum_record(record) for record in records_of(batch)]
            is_complete = any(isinstance(message, SnapshotFooterRecord) for message in messages)
            if header.base_offset == 0 and not (messages and isinstance(messages[0], SnapshotHeaderRecord)):
                raise CorruptMessage("it does not begin with a snapshot's header")
        elif header.base_offset == 0:
            raise CorruptMessage("it does not begin with a snapshot's header")
        yield header, batch
    if not is_complete:
        raise CorruptMessage("it has no footer: the file is incomplete")


def _batches_in(path: Path, files: Files) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Whole batches, read 1 MiB at a time, or one batch if it is larger. An incomplete one at the end is left out."""
    fd = files.open(path)
    try:
        size, position = files.size(fd), 0
        wanted = _READ_BYTES
        while position < size:
            piece = memoryview(files.pread(fd, wanted, position))
            start = position
            for header, batch in batches(piece):
                yield header, batch
                position += header.size_bytes
            wanted = _READ_BYTES
            if position == start:
                if len(piece) < HEADER_SIZE_BYTES:
                    return
                wanted = read_header(piece).size_bytes
                if position + wanted > size:
                    return
    finally:
        files.close(fd)


# -- names ---------------------------------------------------------------------------------------------


def file_name(snapshot: OffsetAndEpoch) -> str:
    """The name of a snapshot's file.

    >>> file_name(OffsetAndEpoch(12, 3))
    '00000000000000000012-0000000003.checkpoint'
    """
    return f"{snapshot.offset:020d}-{snapshot.epoch:010d}{SUFFIX}"


def id_of(name: str) -> OffsetAndEpoch | None:
    """The snapshot whose file has this name; None for any other file.

    >>> id_of("00000000000000000012-0000000003.checkpoint")
    OffsetAndEpoch(offset=12, epoch=3)
    >>> id_of("bootstrap.checkpoint"), id_of("00000000000000000012-0000000003.checkpoint.part")
    (None, None)
    """
    if not name.endswith(SUFFIX):
        return None
    end_offset, _, epoch = name.removesuffix(SUFFIX).partition("-")
    return OffsetAndEpoch(int(end_offset), int(epoch)) if end_offset.isdigit() and epoch.isdigit() else None

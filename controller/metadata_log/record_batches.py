"""The batches of the metadata log, checked and decoded: records for listeners, control records for Raft.

    batch, its CRC right --of records--> DecodedBatch --> listeners
                         '-of control--> LeaderChange, KRaftVersion, Voters --> Raft

Nothing is skipped: damage, or a record that this software does not know, is InvalidMetadata, with file and offset.
Any thread may read.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ottla.controller.metadata_log.snapshots import REMEDY
from ottla.metadata.frame import UnknownMetadataRecord, decode_record
from ottla.metadata.image import InvalidMetadata
from ottla.metadata.records import MetadataRecord
from ottla.protocol.errors import CorruptMessage, KafkaError
from ottla.protocol.records.batch import BatchHeader, crc_is_valid
from ottla.protocol.records.quorum import QuorumMessage, decode_quorum_record
from ottla.protocol.records.record import records, values_of
from ottla.storage import file_names
from ottla.storage.log import Log


class DecodedBatch(NamedTuple):
    """The records of one batch, at consecutive offsets from `base_offset` on."""

    base_offset: int
    records: list[MetadataRecord]
    #: The offset after the batch; control records have offsets, too.
    end_offset: int
    #: Size of the batch.
    size_bytes: int


def decoded_batches(log: Log, start_offset: int, end_offset: int) -> Iterator[DecodedBatch]:
    """The batches in [start_offset, end_offset); both are batch boundaries. Raises InvalidMetadata."""
    for header, batch in valid_batches(log, start_offset, end_offset):
        decoded = [] if header.is_control else _decode(log, header, batch)
        yield DecodedBatch(header.base_offset, decoded, header.next_offset, header.size_bytes)


def quorum_messages(log: Log, start_offset: int) -> Iterator[tuple[int, QuorumMessage]]:
    """Control records from `start_offset` to the log's end with their offsets. Raises InvalidMetadata."""
    for header, batch in valid_batches(log, start_offset, None):
        for row in records(batch) if header.is_control else ():
            if (found := decode_quorum_record(row)) is None:
                raise UnknownMetadataRecord(
                    f"{log.directory} has a control record of an unknown type at offset {row.offset}"
                )
            yield row.offset, found


def valid_batches(
    log: Log, start_offset: int, end_offset: int | None
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Batches from the one that contains `start_offset` on, up to `end_offset` (None: the log's end).

    Raises InvalidMetadata if one cannot be read, or its CRC is wrong.
    """
    assert start_offset >= log.log_start_offset, (start_offset, log.log_start_offset)
    try:
        for header, batch in log.reader.records_since(start_offset, end=end_offset):
            if not crc_is_valid(batch):
                offset = header.base_offset
                raise InvalidMetadata(f"{_file_of(log, offset)} is damaged at offset {offset}. {REMEDY}")
            yield header, batch
    except KafkaError as error:
        raise InvalidMetadata(f"{log.directory} cannot be read: {error}") from error


def check_continues(
    header: BatchHeader, batch: memoryview, *, next_offset: int, last_epoch: int, leader_epoch: int
) -> None:
    """Check that a fetched batch continues a log that ends at `next_offset` with a record of `last_epoch`.

    Its CRC must be right, and its epoch not older than the log's last one, nor newer than the leader's: otherwise one
    (offset, epoch) could name two records. Raises CorruptMessage.
    """
    if header.base_offset != next_offset or header.last_offset_delta < 0:
        raise CorruptMessage(f"fetched a batch at offset {header.base_offset}, expected {next_offset}")
    if not last_epoch <= header.partition_leader_epoch <= leader_epoch:
        raise CorruptMessage(
            f"the batch at offset {next_offset} is of epoch {header.partition_leader_epoch}, not in "
            f"[{last_epoch}, {leader_epoch}]"
        )
    if not crc_is_valid(batch):
        raise CorruptMessage(f"the CRC of the batch at offset {next_offset} is wrong")


def _decode(log: Log, header: BatchHeader, batch: memoryview) -> list[MetadataRecord]:
    decoded: list[MetadataRecord] = []
    try:
        for value in values_of(batch):
            decoded.append(decode_record(value or b""))  # noqa: PERF401 (the error below needs their number so far)
    except InvalidMetadata as error:
        raise type(error)(
            f"{log.directory} at offset {header.base_offset + len(decoded)}: {error}"
        ) from error
    except KafkaError as error:
        raise InvalidMetadata(f"{log.directory} at offset {header.base_offset}: {error}") from error
    return decoded


def _file_of(log: Log, offset: int) -> Path:
    segment = [each for each in log.segments if each.base_offset <= offset][-1]
    return segment.path_of(file_names.LOG)

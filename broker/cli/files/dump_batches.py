"""The batches and records of a `.log` or `.checkpoint` file, as rows."""

from collections.abc import Iterator
from pathlib import Path

from ottla.broker.cli.files.decoders import Decoder, NotKnown, control_record
from ottla.broker.cli.files.plain import Row, text_of
from ottla.protocol.errors import KafkaError
from ottla.protocol.records.batch import BatchHeader, crc_is_valid
from ottla.protocol.records.record import Record, records
from ottla.storage.files import Files
from ottla.storage.verify.log_file import LogFile


def batches(path: Path, files: Files, *, has_data: bool, decoder: Decoder | None) -> Iterator[Row]:
    """A row for each batch, followed with `has_data` by its records. Control records are always included.

    The last row is a problem if the file becomes invalid before its end.
    """
    log = LogFile(path, files)
    for header, position, batch in log.batches():
        is_valid = crc_is_valid(batch)
        yield _batch_row(header, position, is_valid=is_valid)
        if not is_valid:
            yield _problem(header, position, "the batch's CRC is wrong")
        if has_data or header.is_control:
            yield from _record_rows(header, position, batch, decoder)
    if log.is_preallocated:
        yield {"kind": "note", "position": log.end_position, "message": "only zeros follow"}
    elif log.stopped is not None:
        yield {"kind": "problem", "position": log.end_position, "message": log.stopped}


def _batch_row(header: BatchHeader, position: int, *, is_valid: bool) -> Row:
    try:
        compression = header.compression.name.lower()
    except KafkaError as error:
        compression = str(error)
    return {
        "kind": "batch",
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "position": position,
        "size_bytes": header.size_bytes,
        "records_count": header.records_count,
        "crc": header.crc,
        "crc_is_valid": is_valid,
        "magic": header.magic,
        "partition_leader_epoch": header.partition_leader_epoch,
        "compression": compression,
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "delete_horizon_ms": header.delete_horizon_ms,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
    }


def _problem(header: BatchHeader, position: int, message: str) -> Row:
    return {"kind": "problem", "offset": header.base_offset, "position": position, "message": message}


def _record_rows(
    header: BatchHeader, position: int, batch: memoryview, decoder: Decoder | None
) -> Iterator[Row]:
    try:
        for record in records(batch):
            if header.is_control:
                yield from _control_row(header, position, batch, record)
            else:
                yield from _data_row(position, record, decoder)
    except KafkaError as error:
        yield _problem(header, position, f"the records cannot be read: {error}")


def _control_row(header: BatchHeader, position: int, batch: memoryview, record: Record) -> Iterator[Row]:
    row: Row = {"kind": "control", "offset": record.offset, "timestamp": record.timestamp}
    try:
        yield row | control_record(batch, record)
    except NotKnown as reason:
        yield row | {"not_known": str(reason)}
    except KafkaError as error:
        yield row
        yield _problem(header, position, str(error))


def _data_row(position: int, record: Record, decoder: Decoder | None) -> Iterator[Row]:
    row: Row = {"kind": "record", "offset": record.offset, "timestamp": record.timestamp}
    raw: Row = {"key": text_of(record.key), "value": text_of(record.value)}
    headers: Row = {"headers": [[name, text_of(value)] for name, value in record.headers]}
    if decoder is None:
        yield row | raw | headers
        return
    try:
        yield row | decoder(record.key, record.value) | headers
    except NotKnown as reason:
        yield row | raw | headers | {"not_known": str(reason)}
    except KafkaError as error:
        yield row | raw | headers
        yield {"kind": "problem", "offset": record.offset, "position": position, "message": str(error)}

"""`ottla dump-log FILE...`: dumps any file of a log's folder, row by row, up to the position at which it is invalid.

A row is a dictionary with its "kind". A "problem" row describes an error and its position; no content of a file
raises an exception, only I/O raises OSError. Source: DumpLogSegments of Kafka 4.3.1.
"""

import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final
from uuid import UUID

import click

from ottla.broker.cli.files.decoders import (
    DECODERS,
    Decoder,
    NotKnown,
    cluster_metadata,
    control_record,
    decoder_of_topic,
)
from ottla.broker.cli.output import Row, as_json, as_text, standard_output, text_of
from ottla.protocol import kafka_uuid
from ottla.protocol.errors import KafkaError
from ottla.protocol.records.batch import BatchHeader, crc_is_valid
from ottla.protocol.records.record import Record, records
from ottla.protocol.types import TopicPartition
from ottla.remote.topic_metadata import snapshot
from ottla.remote.topic_metadata.overview import CopiesOverview
from ottla.remote.topic_metadata.subscriber import UserPartition
from ottla.storage import (
    checkpoints,
    file_names,
    json_object,
    kept_times,
    leader_epoch_cache,
    partition_metadata,
    producer_snapshot,
)
from ottla.storage.files import Files
from ottla.storage.index import CorruptIndex, OffsetIndex, TimeIndex
from ottla.storage.manager import log_directory, meta_properties
from ottla.storage.transaction_index import TransactionIndex
from ottla.storage.verify.findings import Findings
from ottla.storage.verify.indexes import read_entries
from ottla.storage.verify.log_file import LogFile
from ottla.storage.verify.partition import check_segment, partition_of

#: Suffixes of the names of files that are being deleted, cleaned or swapped.
_SUFFIXES: Final = (file_names.DELETED, file_names.CLEANED, file_names.SWAP)


#: Files of the remote tier in the folder of a log.
REMOTE_SNAPSHOTS: Final = (UserPartition.file_name, CopiesOverview.file_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """The options of `ottla dump-log`: whether records are shown, and how they are decoded."""

    #: Whether records are shown, not only their batches.
    has_data: bool = False
    #: The decoder of the records; None: chosen by the name of the file's folder.
    decoder: Decoder | None = None
    #: Whether the folder's name may choose a decoder.
    is_decoded: bool = True


def files_of(path: Path, files: Files) -> Iterator[Path]:
    """The file; or the known files of a folder in the order of their names, then those of the logs in it."""
    if not files.is_dir(path):
        yield path
        return
    folders = []
    for name in sorted(files.list(path)):
        each = path / name
        if files.is_dir(each):
            folders += [each] if partition_of(each) is not None else []
        elif _dumper_of(each) is not None:
            yield each
    for folder in folders:
        yield from files_of(folder, files)


def _dumper_of(path: Path) -> "_Dumper | None":
    name = path.name
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    dumper = _BY_NAME.get(name) or _BY_EXTENSION.get(Path(name).suffix)
    if dumper is None and name.endswith("-offset-checkpoint"):
        return _offset_checkpoint
    return dumper


def dump(path: Path, files: Files, options: DumpOptions) -> Iterator[Row]:
    """The rows of one file; each row has the field "file"."""
    dumper = _dumper_of(path)
    if dumper is None:
        yield _row(path, "problem", message=f"{path}: neither name nor extension of a log folder's file")
        return
    kind = dumper.__name__.lstrip("_").replace("_", " ")
    yield _row(path, "file", type=kind)
    for row in dumper(path, files, options):
        yield {"kind": row["kind"], "file": str(path), **row}


def _row(path: Path, kind: str, **fields: object) -> Row:
    return {"kind": kind, "file": str(path), **fields}


def _problem(message: str, **where: int) -> Row:
    return {"kind": "problem", **where, "message": message}


# -- batches -------------------------------------------------------------------------------------------


def _log(path: Path, files: Files, options: DumpOptions) -> Iterator[Row]:
    decoder = options.decoder
    partition = partition_of(path.parent)
    if decoder is None and options.is_decoded and partition is not None:
        decoder = decoder_of_topic(partition.topic)
    yield from batches(path, files, has_data=options.has_data, decoder=decoder)


def _metadata_snapshot(path: Path, files: Files, options: DumpOptions) -> Iterator[Row]:
    decoder = options.decoder or (cluster_metadata if options.is_decoded else None)
    yield from batches(path, files, has_data=options.has_data, decoder=decoder)


def batches(path: Path, files: Files, *, has_data: bool, decoder: Decoder | None) -> Iterator[Row]:
    """A row for each batch, followed with `has_data` by its records. Control records are always included.

    The last row is a problem if the file becomes invalid before its end.
    """
    log = LogFile(path, files)
    for header, position, batch in log.batches():
        is_valid = crc_is_valid(batch)
        yield _batch_row(header, position, is_valid=is_valid)
        if not is_valid:
            yield _batch_problem(header, position, "the batch's CRC is wrong")
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


def _batch_problem(header: BatchHeader, position: int, message: str) -> Row:
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
        yield _batch_problem(header, position, f"the records cannot be read: {error}")


def _control_row(header: BatchHeader, position: int, batch: memoryview, record: Record) -> Iterator[Row]:
    row: Row = {"kind": "control", "offset": record.offset, "timestamp": record.timestamp}
    try:
        yield row | control_record(batch, record)
    except NotKnown as reason:
        yield row | {"not_known": str(reason)}
    except KafkaError as error:
        yield row
        yield _batch_problem(header, position, str(error))


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


# -- indexes -------------------------------------------------------------------------------------------


def _offset_index(path: Path, files: Files, _options: DumpOptions) -> Iterator[Row]:
    base = file_names.offset_of(path.name) or 0
    for relative, position in _entries(path, OffsetIndex, files):
        yield {"kind": "entry", "offset": base + relative, "position": position}
    yield from _held_against_the_log(path, files)


def _time_index(path: Path, files: Files, _options: DumpOptions) -> Iterator[Row]:
    base = file_names.offset_of(path.name) or 0
    for timestamp, relative in _entries(path, TimeIndex, files):
        yield {"kind": "entry", "timestamp": timestamp, "offset": base + relative}
    yield from _held_against_the_log(path, files)


def _entries(path: Path, index: type[OffsetIndex | TimeIndex], files: Files) -> list[tuple[int, int]]:
    # Errors of the entries are reported by `_held_against_the_log`.
    return read_entries(path, index.ENTRY, files, Findings(), is_active=_is_active(path, files)) or []


def _is_active(path: Path, files: Files) -> bool:
    """Whether the folder has no later segment."""
    base = file_names.offset_of(path.name) or 0
    names = [name for name in files.list(path.parent) if name.endswith(file_names.LOG)]
    return all((file_names.offset_of(name) or 0) <= base for name in names)


def _held_against_the_log(path: Path, files: Files) -> Iterator[Row]:
    log = path.with_name(path.name.partition(".")[0] + file_names.LOG)
    if not files.exists(log):
        yield {"kind": "note", "message": f"{log.name} is not beside it: not verified"}
        return
    for finding in check_segment(log, files, is_active=_is_active(path, files)).all:
        if finding.path == path and finding.is_error:
            yield _problem(
                finding.message, **({} if finding.position is None else {"position": finding.position})
            )


def _transaction_index(path: Path, files: Files, _options: DumpOptions) -> Iterator[Row]:
    index = TransactionIndex(
        path, base_offset=file_names.offset_of(path.name) or 0, files=files, is_new=False
    )
    try:
        entries = index.entries
    except CorruptIndex as error:
        yield _problem(str(error))
        return
    for entry in entries:
        yield {"kind": "aborted", **entry._asdict()}


# -- small files ---------------------------------------------------------------------------------------


def _producer_snapshot(path: Path, files: Files, _options: DumpOptions) -> Iterator[Row]:
    try:
        states = producer_snapshot.decode(files.read(path))
    except producer_snapshot.CorruptSnapshot as error:
        yield _problem(str(error))
        return
    for state in states:
        last = state.batches[-1] if state.batches else None
        yield {
            "kind": "producer",
            "producer_id": state.producer_id,
            "producer_epoch": state.epoch,
            "coordinator_epoch": state.coordinator_epoch,
            "last_timestamp": state.last_timestamp,
            "transaction_first_offset": state.transaction_first_offset,
            "last_sequence": last.last_sequence if last else None,
            "last_offset": last.last_offset if last else None,
            "offset_delta": last.offset_delta if last else None,
        }


def _leader_epochs(path: Path, files: Files, _options: DumpOptions) -> Iterator[Row]:
    try:
        entries = leader_epoch_cache.decode(files.read(path))
    except checkpoints.CorruptCheckpoint as error:
        yield _problem(str(error))
        return
    for entry in entries:
        yield {"kind": "epoch", **entry._asdict()}


def _offset_checkpoint(path: Path, files: Files, _options: DumpOptions) -> Iterator[Row]:
    try:
        offsets: Mapping[TopicPartition, int] = checkpoints.OffsetCheckpoint(path, files).read()
    except checkpoints.CorruptCheckpoint as error:
        yield _problem(str(error))
        return
    for partition, offset in offsets.items():
        yield {"kind": "checkpoint", **partition._asdict(), "offset": offset}


def _record_times(path: Path, files: Files, _options: DumpOptions) -> Iterator[Row]:
    """Yield a row for each segment whose timestamps are known (`ottla.storage.kept_times`)."""
    try:
        rows = checkpoints.decode(files.read(path), kept_times.parse)
    except checkpoints.CorruptCheckpoint as error:
        yield _problem(str(error))
        return
    for base_offset, size, _, _, epoch, _, largest, *_ in rows:
        yield {
            "kind": "segment",
            "base_offset": base_offset,
            "size_bytes": size,
            "last_leader_epoch": epoch,
            "largest_timestamp": largest,
        }


def _remote_snapshot(path: Path, files: Files, _options: DumpOptions) -> Iterator[Row]:
    """Yield the header of what is known of the remote tier (`ottla.remote.topic_metadata.snapshot`)."""
    try:
        header, _ = snapshot.verified(files.read(path))
    except snapshot.CorruptSnapshot as error:
        yield _problem(str(error))
        return
    yield {
        "kind": "remote",
        "metadata_topic_id": kafka_uuid.to_text(header.metadata_topic_id),
        "topic_id": kafka_uuid.to_text(header.topic_id),
        "metadata_partition": header.metadata_partition,
        "next_offset": header.next_offset,
        "last_epoch": header.last_epoch,
        "columns_bytes": header.columns_bytes,
    }


def _partition_metadata(path: Path, files: Files, _options: DumpOptions) -> Iterator[Row]:
    try:
        topic_id = partition_metadata.read(path.parent, files)
    except ValueError as error:
        yield _problem(str(error))
        return
    assert topic_id is not None, "the file was there"
    yield {"kind": "topic", "topic_id": kafka_uuid.to_text(topic_id)}


def _meta_properties(path: Path, files: Files, _options: DumpOptions) -> Iterator[Row]:
    try:
        found = meta_properties.read(path.parent, files)
    except (meta_properties.InconsistentMetaProperties, ValueError) as error:
        yield _problem(str(error))
        return
    assert found is not None, "the file was there"
    directory_id: UUID | None = found.directory_id
    yield {
        "kind": "folder",
        "cluster_id": found.cluster_id,
        "node_id": found.node_id,
        "directory_id": None if directory_id is None else kafka_uuid.to_text(directory_id),
    }


def _quorum_state(path: Path, files: Files, _options: DumpOptions) -> Iterator[Row]:
    yield from _json_fields(path, files, "quorum")


def _clean_shutdown(path: Path, files: Files, _options: DumpOptions) -> Iterator[Row]:
    yield from _json_fields(path, files, "stopped")


def _json_fields(path: Path, files: Files, kind: str) -> Iterator[Row]:
    """Yield the row of a file that is one JSON object; an empty file was written by an older version."""
    try:
        content = json_object.parse(files.read(path) or b"{}")
    except ValueError as error:
        yield _problem(f"not JSON: {error}")
        return
    yield {"kind": kind, "content": content}


_Dumper = Callable[[Path, Files, DumpOptions], Iterator[Row]]

_BY_EXTENSION: Final[Mapping[str, _Dumper]] = MappingProxyType(
    {
        file_names.LOG: _log,
        ".checkpoint": _metadata_snapshot,
        file_names.OFFSET_INDEX: _offset_index,
        file_names.TIME_INDEX: _time_index,
        file_names.TRANSACTION_INDEX: _transaction_index,
        file_names.PRODUCER_SNAPSHOT: _producer_snapshot,
    }
)
_BY_NAME: Final[Mapping[str, _Dumper]] = MappingProxyType(
    {
        leader_epoch_cache.FILE_NAME: _leader_epochs,
        partition_metadata.FILE_NAME: _partition_metadata,
        meta_properties.FILE_NAME: _meta_properties,
        log_directory.CLEAN_SHUTDOWN_FILE: _clean_shutdown,
        "quorum-state": _quorum_state,
        kept_times.FILE_NAME: _record_times,
        **dict.fromkeys(REMOTE_SNAPSHOTS, _remote_snapshot),
    }
)


# -- the command ---------------------------------------------------------------------------------------

#: kafka-dump-log's options for decoders, as aliases.
_KAFKAS_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "--offsets-decoder": "consumer-offsets",
        "--transaction-log-decoder": "transaction-state",
        "--share-group-state-decoder": "share-group-state",
        "--cluster-metadata-decoder": "cluster-metadata",
        "--remote-log-metadata-decoder": "remote-log-metadata",
    }
)


def _as_kafkas_tool_has_them(command: Callable[..., None]) -> Callable[..., None]:
    for name, decoder in _KAFKAS_NAMES.items():
        option = click.option(name, "decoder", flag_value=decoder, help=f"The same as --decoder {decoder}.")
        command = option(command)
    return command


@click.command("dump-log", no_args_is_help=True)
@click.argument("paths", nargs=-1, metavar="PATH...", type=click.Path(exists=True, path_type=Path))
@click.option("--print-data", is_flag=True, help="Show records, too, not only their batches.")
@click.option(
    "--decoder",
    type=click.Choice(["auto", "none", *DECODERS]),
    default="auto",
    help="The format of the logs' records; by default the name of the file's folder decides. "
    "A named format shows the records, like --print-data.",
)
@_as_kafkas_tool_has_them
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object per line.")
def dump_log(paths: tuple[Path, ...], *, print_data: bool, decoder: str, is_json: bool) -> None:
    """Show the contents of files of a log, or of all files of a log's folder or a data folder.

    Logs (.log, .checkpoint) batch by batch; .index and .timeindex entry by entry, verified against the log beside
    them; .txnindex, .snapshot and the checkpoint files. Where a file becomes invalid a problem is reported, with
    its position, and the exit status is 1.
    """
    chosen = DECODERS.get(decoder)
    options = DumpOptions(
        has_data=print_data or chosen is not None, decoder=chosen, is_decoded=decoder != "none"
    )
    show: Callable[[Row], str] = as_json if is_json else as_text
    out = standard_output()
    has_problems = False
    for named in paths:
        path = named
        try:
            found = list(files_of(named, Files()))
            if not found:
                raise click.ClickException(f"{named}: there is no file of a log in this folder.")
            for path in found:
                if not path.is_file():
                    raise click.ClickException(f"{path}: only a regular file can be shown, and no pipe.")
                for row in dump(path, Files(), options):
                    has_problems = has_problems or row["kind"] == "problem"
                    out.write(show(row) + "\n")
        except OSError as error:
            if error.filename is None and error.errno in (errno.EPIPE, errno.ENOSPC):
                raise  # of the output
            raise click.ClickException(f"{path}: {error.strerror}") from error
    if has_problems:
        raise click.exceptions.Exit(1)

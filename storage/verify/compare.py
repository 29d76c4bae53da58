"""Comparison of replicas, batch by batch: up to the lower log end offset they must be the same bytes.

    one      [ ======== | ============================== | ==== | ....... ]
    another      [ ==== | ============================== | ==== ]
                 ^      ^ cleaned up to here             ^      ^ lower log end
                 |        by one of them at least        lower high watermark
                 higher log start

Offsets that only one of them has are not compared, and segments need not begin at the same offsets. Each replica is
compacted independently: before the higher of the cleaners' checkpoints batches and records may be missing, but what
both have must be equal. After brokers were killed, or the last leader was lost, only records below the lower high
watermark must agree (`Bound.HIGH_WATERMARK`): later ones are truncated when the replicas fetch again. The high
watermark is that of the checkpoint, which is some seconds old.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from ottla.protocol.errors import KafkaError
from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.record import records
from ottla.protocol.types import TopicPartition
from ottla.storage import checkpoints, file_names, partition_metadata
from ottla.storage.checkpoints import CorruptCheckpoint, OffsetCheckpoint
from ottla.storage.files import Files
from ottla.storage.manager import meta_properties
from ottla.storage.manager.meta_properties import InconsistentMetaProperties, MetaProperties
from ottla.storage.verify.data_folder import is_partition_folder, log_folders
from ottla.storage.verify.findings import Findings, PartitionReport, Report
from ottla.storage.verify.log_file import LogFile
from ottla.storage.verify.partition import partition_of


class Bound(Enum):
    """The offset up to which replicas must be equal."""

    LOG_END = "log-end"
    HIGH_WATERMARK = "high-watermark"


class _Replica(NamedTuple):
    directory: Path
    log_start_offset: int
    log_end_offset: int
    #: From the checkpoint; None if it has no entry.
    high_watermark: int | None
    #: The first dirty offset by the cleaner's checkpoint.
    cleaned_to: int


class _Batch(NamedTuple):
    header: BatchHeader
    data: memoryview
    log: Path
    position: int


def compare(*directories: Path, files: Files, up_to: Bound = Bound.LOG_END) -> Report:
    """Compare two or more folders of one log; or brokers' data folders, with every log that several of them have.

    All `log.dirs` of all brokers may be given. The replica with the largest log end offset is compared with each of
    the others: one report for each of these, which counts the equal batches. A log in only one folder gets a note.
    Raises OSError. Cost: one read of both logs for each comparison.
    """
    assert len(directories) > 1, directories
    if is_partition_folder(directories[0], files):
        return Report(partitions=_compare_replicas(directories, files, up_to))
    findings = Findings()
    _check_owners(directories, files, findings)
    replicas: dict[str, list[Path]] = {}
    for directory in directories:
        for name in log_folders(directory, files, Findings()):
            replicas.setdefault(name, []).append(directory / name)
    partitions: list[PartitionReport] = []
    for _, paths in sorted(replicas.items()):
        if len(paths) == 1:
            findings.note(paths[0], "only one of the folders has this log")
        else:
            partitions += _compare_replicas(paths, files, up_to)
    return Report(partitions=partitions, folder_findings=findings.all)


def _check_owners(directories: Sequence[Path], files: Files, findings: Findings) -> None:
    """Check that the folders belong to one cluster. An unreadable file is left to `inspect` of that folder."""
    first: tuple[MetaProperties, Path] | None = None
    for directory in directories:
        try:
            found = meta_properties.read(directory, files)
        except (InconsistentMetaProperties, ValueError):
            continue
        if found is None:
            continue
        first = first or (found, directory)
        if found.cluster_id != first[0].cluster_id:
            findings.error(
                directory / meta_properties.FILE_NAME,
                f"cluster {found.cluster_id}, but that of {first[1]} is {first[0].cluster_id}",
            )


def _compare_replicas(directories: Sequence[Path], files: Files, up_to: Bound) -> list[PartitionReport]:
    # If each is equal to the longest one up to its own end, any two are equal up to the lower of their ends.
    replicas = sorted(
        (_look(directory, files) for directory in directories), key=lambda it: -it.log_end_offset
    )
    return [_compare_logs(other, replicas[0], files, up_to) for other in replicas[1:]]


def _look(directory: Path, files: Files) -> _Replica:
    """The start and end of the log, and its offsets in the folder's checkpoints."""
    start = end = 0
    if logs := _log_files(directory, files):
        start = end = file_names.offset_of(logs[0].name) or 0
        end = max(end, file_names.offset_of(logs[-1].name) or 0)
        for header, _, _ in LogFile(logs[-1], files).batches():
            end = header.next_offset
    partition = partition_of(directory)
    return _Replica(
        directory=directory,
        log_start_offset=max(start, _checkpoint(directory, checkpoints.LOG_START_OFFSET_FILE, partition, files) or 0),
        log_end_offset=end,
        high_watermark=_checkpoint(directory, checkpoints.HIGH_WATERMARK_FILE, partition, files),
        cleaned_to=_checkpoint(directory, checkpoints.CLEANER_FILE, partition, files) or 0,
    )  # fmt: skip


def _checkpoint(directory: Path, name: str, partition: TopicPartition | None, files: Files) -> int | None:
    try:
        offsets = OffsetCheckpoint(directory.resolve().parent / name, files).read()
    except CorruptCheckpoint:
        return None  # reported by `inspect` of the data folder
    return None if partition is None else offsets.get(partition)


def _compare_logs(one: _Replica, other: _Replica, files: Files, up_to: Bound) -> PartitionReport:
    """Compare up to the first difference, which is reported for `one`."""
    start = max(one.log_start_offset, other.log_start_offset)
    cleaned_to = max(one.cleaned_to, other.cleaned_to)
    end = min(one.log_end_offset, other.log_end_offset)
    findings = Findings()
    if up_to is Bound.HIGH_WATERMARK:
        known = [it.high_watermark for it in (one, other) if it.high_watermark is not None]
        bound = min(known, default=end)
        for short in (it for it in (one, other) if it.log_end_offset < bound):
            findings.error(
                short.directory,
                f"ends at {short.log_end_offset}: committed records below the high watermark {bound} are missing",
            )
        end = min(end, bound)
    _compare_topic_ids(one.directory, other.directory, files, findings)
    report = PartitionReport(directory=one.directory, findings=findings.all, end_offset=start)
    mine, theirs = _batches(one.directory, files, findings), _batches(other.directory, files, findings)
    a = b = None
    while report.end_offset < end:
        a, b = a or _next(mine, start), b or _next(theirs, start)
        if a is None or b is None or min(a.header.base_offset, b.header.base_offset) >= end:
            break
        first, second = a.header.base_offset, b.header.base_offset
        if first != second and min(first, second) < cleaned_to:
            if first < second:
                a = None
            else:
                b = None
            continue
        difference = _difference(a, b, may_lack=first < cleaned_to)
        if difference is not None:
            findings.error(
                a.log,
                f"differs from {b.log} at byte {b.position}, offset {second}: {difference}",
                position=a.position,
                offset=first,
            )
            break
        report.first_offset = first if report.first_offset is None else report.first_offset
        report.batches_count += 1
        report.size_bytes += len(a.data)
        report.end_offset = a.header.next_offset
        a = b = None
    return report


def _compare_topic_ids(one: Path, other: Path, files: Files, findings: Findings) -> None:
    """Check that both are of the same topic: a log of a deleted topic of that name may have the same bytes, or none."""
    try:
        mine, theirs = partition_metadata.read(one, files), partition_metadata.read(other, files)
    except ValueError:
        return  # reported by `inspect` of the folder
    if mine is not None and theirs is not None and mine != theirs:
        findings.error(one / partition_metadata.FILE_NAME, f"topic id {mine}, but {other} has {theirs}")


def _log_files(directory: Path, files: Files) -> list[Path]:
    """The segments' `.log` files, in offset order."""
    return [
        directory / name
        for name in files.list(directory)
        if name.endswith(file_names.LOG) and file_names.offset_of(name) is not None
    ]


def _batches(directory: Path, files: Files, findings: Findings) -> Iterator[_Batch]:
    for path in _log_files(directory, files):
        log = LogFile(path, files)
        for header, position, data in log.batches():
            yield _Batch(header, data, path, position)
        if log.stopped is not None and not log.is_preallocated:
            findings.error(path, log.stopped, position=log.end_position)


def _next(batches: Iterator[_Batch], start: int) -> _Batch | None:
    """The next batch that ends after `start`."""
    return next((batch for batch in batches if batch.header.next_offset > start), None)


def _difference(one: _Batch, two: _Batch, *, may_lack: bool) -> str | None:
    """The difference of two batches of the same base offset; with `may_lack` only of records that both have."""
    if one.data == two.data:
        return None
    if may_lack:
        try:
            mine, theirs = ({it.offset: it for it in records(batch.data)} for batch in (one, two))
        except KafkaError as error:
            return f"the records cannot be read: {error}"
        offset = next((at for at in mine if at in theirs and mine[at] != theirs[at]), None)
        return None if offset is None else f"the record at offset {offset}"
    fields = [
        f"{name} {mine} and {theirs}"
        for name, mine, theirs in zip(BatchHeader._fields, one.header, two.header, strict=True)
        if mine != theirs
    ]
    return ", ".join(fields) or "the records"

"""Verification of one log's folder: every file in it, compared with the batches."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.types import TopicPartition
from ottla.storage import checkpoints, file_names, kept_times, leader_epoch_cache, partition_metadata
from ottla.storage.checkpoints import CorruptCheckpoint, OffsetCheckpoint
from ottla.storage.file_names import METADATA_LOG
from ottla.storage.files import Files
from ottla.storage.manager.log_directory import CLEAN_SHUTDOWN_FILE
from ottla.storage.verify.batches import BatchCheck
from ottla.storage.verify.epochs import EpochCheck
from ottla.storage.verify.findings import Findings, PartitionReport
from ottla.storage.verify.indexes import OffsetIndexCheck, TimeIndexCheck
from ottla.storage.verify.log_file import LogFile
from ottla.storage.verify.metadata_log import (
    check_quorum_state,
    check_snapshot,
    check_snapshots_cover,
    snapshot_end_of,
    snapshot_epoch_of,
)
from ottla.storage.verify.producers import ProducerCheck

#: Internal topics that are always compacted.
COMPACTED_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

_TEMPORARY: Final = (file_names.DELETED, file_names.CLEANED, file_names.SWAP, ".tmp", ".part")
_SNAPSHOT: Final = ".checkpoint"
_QUORUM_STATE: Final = "quorum-state"
_KNOWN: Final = frozenset(
    {leader_epoch_cache.FILE_NAME, partition_metadata.FILE_NAME, kept_times.FILE_NAME, _QUORUM_STATE}
)


#: Files of a log's folder that other rooms keep there and can lose, by name: the check of the content, which returns
#: why it cannot be used, or None.
Caches = Mapping[str, Callable[[bytes], str | None]]
NO_CACHES: Final[Caches] = MappingProxyType({})


class _Files(NamedTuple):
    """The files of the folder, by kind."""

    logs: dict[int, Path]
    #: Base offsets of the index files, by extension.
    indexes: dict[str, set[int]]
    snapshots: dict[int, Path]
    #: Snapshots of the metadata log (KIP-630).
    checkpoints: list[Path]


class _Totals(NamedTuple):
    """Totals of all segments."""

    end_offset: int
    batches_count: int
    size_bytes: int
    #: The newest leader epoch of a batch; -1 without any.
    last_epoch: int


def partition_of(directory: Path) -> TopicPartition | None:
    """The partition by a folder's name, also of a deleted, stray or future log; None for other names."""
    name = directory.resolve().name
    if name.endswith(file_names.FUTURE_DIRECTORY):
        return file_names.topic_partition_of(name.rpartition(".")[0])
    return file_names.partition_being_removed(name) or file_names.topic_partition_of(name)


def inspect_partition(
    directory: Path,
    files: Files,
    *,
    is_compacted: bool | None = None,
    is_deep: bool = False,
    caches: Caches = NO_CACHES,
) -> PartitionReport:
    """Verify everything in the folder of one log; nothing is changed.

    `is_compacted` None: inferred from the topic's name, the cleaner's checkpoint in the parent folder, and batches
    that have lost records; if none of these shows compaction, missing offsets are errors. Raises OSError.
    `caches`: files of other rooms. Cost: one read of the logs (three if only the batches show that it is compacted).
    """
    findings = Findings()
    found = _sort_out(directory, files, findings, caches)
    _check_topic_id(directory, files, findings)
    if is_compacted is None:
        is_compacted = _is_known_to_be_compacted(directory, files)
        is_guessed = not is_compacted
    else:
        is_guessed = False
    logs = Findings()
    totals = _check_segments(directory, found, files, logs, is_compacted=is_compacted, is_deep=is_deep)
    if is_guessed and logs.all and _has_lost_records(found, files):
        logs = Findings()
        totals = _check_segments(directory, found, files, logs, is_compacted=True, is_deep=is_deep)
    findings.all += logs.all
    for path in found.checkpoints:
        check_snapshot(path, files, findings)
    is_metadata_log = directory.resolve().name == METADATA_LOG
    if is_metadata_log:
        first_offset = min(found.logs, default=0)
        check_snapshots_cover(
            directory, found.checkpoints, findings, first_offset=first_offset, end_offset=totals.end_offset
        )
    if is_metadata_log or files.exists(directory / _QUORUM_STATE):
        last_epoch = max(totals.last_epoch, *map(snapshot_epoch_of, found.checkpoints), -1)
        check_quorum_state(directory / _QUORUM_STATE, files, findings, last_epoch=last_epoch)
    return PartitionReport(
        directory=directory,
        findings=findings.all,
        segments_count=len(found.logs),
        batches_count=totals.batches_count,
        size_bytes=totals.size_bytes,
        first_offset=min(found.logs, default=None),
        end_offset=totals.end_offset,
    )


def _sort_out(directory: Path, files: Files, findings: Findings, caches: Caches) -> _Files:
    found = _Files({}, {extension: set() for extension in file_names.INDEX_EXTENSIONS}, {}, [])
    for name in files.list(directory):
        path, offset = directory / name, file_names.offset_of(name)
        extension = f".{name.partition('.')[2]}"
        if name.endswith(_TEMPORARY):
            findings.note(path, "left by an incomplete deletion, compaction or write")
        elif name.endswith(_SNAPSHOT):
            found.checkpoints.append(path)
        elif offset is not None and extension == file_names.LOG:
            found.logs[offset] = path
        elif offset is not None and extension == file_names.PRODUCER_SNAPSHOT:
            found.snapshots[offset] = path
        elif offset is not None and extension in found.indexes:
            found.indexes[extension].add(offset)
        elif name in caches:
            _check_cache(path, caches[name], files, findings)
        elif name not in _KNOWN:
            findings.note(path, "not a file of a log")
    for extension, offsets in found.indexes.items():
        for offset in sorted(offsets - found.logs.keys()):
            findings.error(directory / file_names.of_offset(offset, extension), "its segment is missing")
    if not found.logs:
        findings.note(directory, "there is no segment")
    return found


def _check_cache(
    path: Path, problem_of: Callable[[bytes], str | None], files: Files, findings: Findings
) -> None:
    if (problem := problem_of(files.read(path))) is not None:
        findings.note(path, f"not used, and written again: {problem}")


def _check_topic_id(directory: Path, files: Files, findings: Findings) -> None:
    path = directory / partition_metadata.FILE_NAME
    if partition_of(directory) is None:
        findings.note(directory, "the folder's name is not that of a partition")
    try:
        if partition_metadata.read(directory, files) is None:
            findings.note(path, "there is none: the log has no topic id yet")
    except ValueError as error:
        findings.error(path, str(error))


def _is_known_to_be_compacted(directory: Path, files: Files) -> bool:
    partition = partition_of(directory)
    return partition is not None and (
        partition.topic in COMPACTED_TOPICS
        or partition in _checkpoint_above(directory, checkpoints.CLEANER_FILE, files)
    )


def _has_lost_records(found: _Files, files: Files) -> bool:
    """Whether a batch has fewer records than offsets, which only compaction causes."""
    return any(
        header.records_count <= header.last_offset_delta
        for path in found.logs.values()
        for header, _, _ in LogFile(path, files).batches()
    )


def _checkpoint_above(directory: Path, name: str, files: Files) -> dict[TopicPartition, int]:
    try:
        return OffsetCheckpoint(directory.resolve().parent / name, files).read()
    except CorruptCheckpoint:
        return {}  # reported with the data folder


def _log_start_offset(directory: Path, found: _Files, files: Files) -> int:
    """The log start offset: files may lack earlier offsets."""
    first = min(found.logs, default=0)
    partition = partition_of(directory)
    starts = _checkpoint_above(directory, checkpoints.LOG_START_OFFSET_FILE, files)
    if directory.resolve().name == METADATA_LOG:
        # It has no checkpoint: its start is the end of its oldest snapshot.
        ends = [end for path in found.checkpoints if (end := snapshot_end_of(path)) is not None]
        return max(first, min(ends, default=0))
    return max(first, starts.get(partition, 0)) if partition is not None else first


def _check_segments(
    directory: Path, found: _Files, files: Files, findings: Findings, *, is_compacted: bool, is_deep: bool
) -> _Totals:
    first_offset = min(found.logs, default=0)
    check = BatchCheck(findings, may_have_gaps=is_compacted, is_deep=is_deep)
    epochs = EpochCheck(
        directory / leader_epoch_cache.FILE_NAME,
        files,
        findings,
        log_start_offset=_log_start_offset(directory, found, files),
    )
    producers = ProducerCheck(
        found.snapshots, files, findings, first_offset=first_offset, is_compacted=is_compacted
    )
    batches_count = size_bytes = 0
    for base_offset, path in sorted(found.logs.items()):
        segment = _SegmentCheck(path, base_offset, files, findings, is_active=base_offset == max(found.logs))
        check.begin_segment(path, base_offset)
        producers.begin_segment(path.with_suffix(file_names.TRANSACTION_INDEX), base_offset)
        for header, position, batch in segment.log.batches():
            batches_count += 1
            if not check.on_batch(header, batch, position):
                continue
            segment.on_batch(header, position)
            epochs.on_batch(path, header, position)
            producers.on_batch(path, header, batch, position)
        segment.finish()
        producers.end_segment()
        size_bytes += segment.log.size_bytes
    end_offset = check.end_offset or 0
    epochs.finish(end_offset)
    # The producer snapshot at the log end is written by a clean shutdown.
    is_closed = files.exists(directory.resolve().parent / CLEAN_SHUTDOWN_FILE)
    producers.finish(end_offset, is_closed=is_closed)
    return _Totals(end_offset, batches_count, size_bytes, epochs.last_epoch)


class _SegmentCheck:
    """One segment's log and the indexes beside it."""

    def __init__(
        self, path: Path, base_offset: int, files: Files, findings: Findings, *, is_active: bool
    ) -> None:
        self.log = LogFile(path, files)
        self._findings, self._is_active = findings, is_active
        self._offsets = OffsetIndexCheck(
            path.with_suffix(file_names.OFFSET_INDEX),
            files,
            findings,
            base_offset=base_offset,
            is_active=is_active,
        )
        self._times = TimeIndexCheck(
            path.with_suffix(file_names.TIME_INDEX),
            files,
            findings,
            base_offset=base_offset,
            is_active=is_active,
        )

    def on_batch(self, header: BatchHeader, position: int) -> None:
        """Check the next sound batch."""
        self._offsets.on_batch(header, position)
        self._times.on_batch(header)

    def finish(self) -> None:
        """Finish the checks, after the log has been read to its end."""
        log = self.log
        if log.stopped is not None and log.is_preallocated and self._is_active:
            self._findings.note(log.path, "room that was allocated ahead follows", position=log.end_position)
        elif log.stopped is not None:
            self._findings.error(log.path, log.stopped, position=log.end_position)
        self._offsets.finish()
        self._times.finish()


def check_segment(path: Path, files: Files, *, is_active: bool) -> Findings:
    """Verify only one segment's indexes, against its log (for a dump of one file).

    `path` is the log's; raises FileNotFoundError if it is missing.
    """
    findings = Findings()
    segment = _SegmentCheck(path, file_names.offset_of(path.name) or 0, files, findings, is_active=is_active)
    for header, position, _ in segment.log.batches():
        segment.on_batch(header, position)
    segment.finish()
    return findings

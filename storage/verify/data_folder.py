"""Verification of a data folder (one of `log.dirs`): its own files, every log in it, and its checkpoints."""

from collections import Counter
from pathlib import Path
from typing import Final
from uuid import UUID

from ottla.protocol.kafka_uuid import to_text
from ottla.protocol.types import TopicPartition
from ottla.storage import checkpoints, file_names, json_object, leader_epoch_cache, partition_metadata
from ottla.storage.checkpoints import CorruptCheckpoint, OffsetCheckpoint
from ottla.storage.file_names import METADATA_LOG
from ottla.storage.files import Files
from ottla.storage.manager import meta_properties
from ottla.storage.manager.log_directory import CLEAN_SHUTDOWN_FILE, METADATA_TOPIC_ID
from ottla.storage.manager.meta_properties import InconsistentMetaProperties
from ottla.storage.verify.findings import Findings, PartitionReport, Report
from ottla.storage.verify.metadata_log import check_snapshot
from ottla.storage.verify.partition import NO_CACHES, Caches, inspect_partition, partition_of

_CHECKPOINTS: Final = (
    checkpoints.RECOVERY_POINT_FILE,
    checkpoints.LOG_START_OFFSET_FILE,
    checkpoints.HIGH_WATERMARK_FILE,
    checkpoints.CLEANER_FILE,
)
#: Folders that hold no log: a cache of remote segments' indexes, which can be fetched again.
_NO_LOGS: Final = frozenset({"remote-log-index-cache"})


def is_partition_folder(directory: Path, files: Files) -> bool:
    """Whether this is the folder of one log, not a data folder."""
    known = (leader_epoch_cache.FILE_NAME, partition_metadata.FILE_NAME)
    return any(
        name in known or (name.endswith(file_names.LOG) and file_names.offset_of(name) is not None)
        for name in files.list(directory)
    )


def inspect(
    directory: Path,
    files: Files,
    *,
    is_compacted: bool | None = None,
    is_deep: bool = False,
    caches: Caches = NO_CACHES,
) -> Report:
    """Verify a log's folder, or a data folder with all logs in it; see `inspect_partition`."""
    if is_partition_folder(directory, files):
        part = inspect_partition(directory, files, is_compacted=is_compacted, is_deep=is_deep, caches=caches)
        return Report(partitions=[part])
    findings = Findings()
    partitions = [
        inspect_partition(directory / name, files, is_compacted=is_compacted, is_deep=is_deep, caches=caches)
        for name in log_folders(directory, files, findings)
    ]
    _check_own_files(directory, files, findings)
    _check_topic_ids(partitions, files, findings)
    for name in _CHECKPOINTS:
        _check_checkpoint(directory / name, partitions, files, findings)
    return Report(partitions=partitions, folder_findings=findings.all)


def log_folders(directory: Path, files: Files, findings: Findings) -> list[str]:
    """The names of the logs' folders, without those of deleted and stray logs: these get a note."""
    names = []
    for name in files.list(directory):
        path = directory / name
        if name in _NO_LOGS or not files.is_dir(path):
            continue
        if file_names.partition_being_removed(name) is not None:
            findings.note(path, "a log that is deleted, or that no topic has")
        elif partition_of(path) is not None:
            names.append(name)
        else:
            findings.note(path, "not a log's folder")
    return names


def _check_own_files(directory: Path, files: Files, findings: Findings) -> None:
    try:
        if meta_properties.read(directory, files) is None:
            findings.error(directory / meta_properties.FILE_NAME, "the file is missing: whose folder is it?")
    except (InconsistentMetaProperties, ValueError) as error:
        findings.error(directory / meta_properties.FILE_NAME, str(error))
    path = directory / "bootstrap.checkpoint"
    if files.exists(path):
        check_snapshot(path, files, findings)
    path = directory / CLEAN_SHUTDOWN_FILE
    try:
        text = files.read(path) if files.exists(path) else b""
        # Older versions wrote an empty file.
        if text and not isinstance(json_object.parse(text).get("brokerEpoch"), int):
            findings.error(path, "does not say brokerEpoch")
    except ValueError as error:
        findings.error(path, f"not JSON: {error}")


def _check_topic_ids(partitions: list[PartitionReport], files: Files, findings: Findings) -> None:
    """Check that all partitions of a topic have its id, and that no other topic has it."""
    ids: dict[str, tuple[UUID, Path]] = {}
    topics: dict[UUID, tuple[str, Path]] = {}
    for report in partitions:
        partition = partition_of(report.directory)
        try:
            topic_id = partition_metadata.read(report.directory, files)
        except ValueError:
            continue  # reported with the partition
        if partition is None or topic_id is None:
            continue
        path = report.directory / partition_metadata.FILE_NAME
        if (str(partition) == METADATA_LOG) != (topic_id == METADATA_TOPIC_ID):
            findings.error(
                path, f"{to_text(topic_id)} is the topic id of the metadata log, which no other log may have"
            )
            continue
        known_id, other = ids.setdefault(partition.topic, (topic_id, report.directory))
        if known_id != topic_id:
            findings.error(path, f"another topic id than {other.name} has")
            continue
        topic, other = topics.setdefault(topic_id, (partition.topic, report.directory))
        if topic != partition.topic:
            findings.error(path, f"the topic id of {other.name}")


def _check_checkpoint(
    path: Path, partitions: list[PartitionReport], files: Files, findings: Findings
) -> None:
    """Check that no checkpoint has an offset beyond a log's end, or a partition twice."""
    reports: dict[TopicPartition, PartitionReport] = {}
    for report in partitions:
        if partition := partition_of(report.directory):
            reports.setdefault(partition, report)
    try:
        offsets = OffsetCheckpoint(path, files).read()
        names = _names_in(path, files)
    except CorruptCheckpoint as error:
        findings.error(path, f"not a checkpoint: {error}")
        return
    for name, count in Counter(names).items():
        if count > 1:
            findings.error(path, f"{name} has {count} rows; one is expected")
    for partition, offset in offsets.items():
        if partition not in reports:
            findings.note(path, f"{partition} has no log in this directory")
            continue
        end = reports[partition].end_offset
        if not 0 <= offset <= end:
            findings.error(path, f"{partition}: {offset} is not within the log, which ends at {end}")


def _names_in(path: Path, files: Files) -> list[str]:
    """The partition of each line; a dictionary would hide duplicates."""
    try:
        return checkpoints.decode(files.read(path), lambda words: f"{words[0]}-{int(words[1])}")
    except FileNotFoundError:
        return []

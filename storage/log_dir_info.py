"""The state of the log directories, for DescribeLogDirs (Kafka's LogDirDescription)."""

from collections.abc import Mapping
from pathlib import Path

from protocol.types import TopicPartition
from storage.files import Files
from storage.log import Log
from storage.log_directory import LogDirectory, LogDirInfo

__all__ = ["LogDirInfo", "describe_dirs"]


def describe_dirs(
    directories: Mapping[Path, LogDirectory],
    logs: Mapping[TopicPartition, Log],
    future_logs: Mapping[TopicPartition, Log],
    offline_dirs: Mapping[Path, OSError],
    files: Files,
) -> list[LogDirInfo]:
    """Every directory with its logs and their sizes. Waits for statvfs only."""
    rows, future_rows = _sizes(directories, logs), _sizes(directories, future_logs)
    found = []
    for path, directory in directories.items():
        total = usable = None
        if (error := offline_dirs.get(path)) is None:
            try:
                total, usable = files.usage(path)
            except OSError as failure:
                error = failure
        found.append(
            LogDirInfo(path, directory.directory_id, error, total, usable, rows[path], future_rows[path])
        )
    return found


def _sizes(
    directories: Mapping[Path, LogDirectory], logs: Mapping[TopicPartition, Log]
) -> dict[Path, list[tuple[TopicPartition, int]]]:
    rows: dict[Path, list[tuple[TopicPartition, int]]] = {path: [] for path in directories}
    for topic_partition, log in list(logs.items()):
        rows[log.directory.parent].append((topic_partition, log.size_bytes))
    return rows

"""Loading all logs of all directories, in parallel, with progress in the process's log.

A clean start logs the number of logs, and when they are open. After an unclean shutdown each recovered log is
logged, with how many of its directory remain; `recovery` logs large segments.

Source: LogManager.loadLogs of Kafka 4.3.1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from logging import DEBUG, INFO, getLogger
from pathlib import Path
from typing import NamedTuple, Protocol
from uuid import UUID

from ottla.config.log_config import LogConfig
from ottla.protocol.types import TopicPartition
from ottla.storage.log import Log
from ottla.storage.manager.log_directory import LogDirectory


class RunParallel(Protocol):
    """Runs all callables of all groups and returns when the last one is done; raises an error that one of them raised.

    Those of a group (one log directory: mostly one disk) may run in parallel, `threads_per_group` at a time; groups do
    not wait for each other.
    """

    def __call__(self, groups: Sequence[Sequence[Callable[[], None]]], /, *, threads_per_group: int) -> None:
        """Run all callables of all groups, `threads_per_group` of each group at a time."""


#: Whether the metadata assigns no replica of this partition, with this topic id (None: no id), here. [any thread]
IsStray = Callable[[TopicPartition, UUID | None], bool]

#: A clean start logs its progress after this many logs.
LOGGED_EVERY = 1000

_LOG = getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryContents:
    """The folders and checkpoints of a directory, before a log is opened."""

    directory: LogDirectory
    #: Partitions by the names of their folders.
    logs: Mapping[str, TopicPartition]
    future_logs: Mapping[str, TopicPartition]
    #: Folders of deleted logs.
    deleted: Sequence[str]
    recovery_points: Mapping[TopicPartition, int]
    log_start_offsets: Mapping[TopicPartition, int]
    high_watermarks: Mapping[TopicPartition, int]
    cleaned_offsets: Mapping[TopicPartition, int]

    @classmethod
    def read(cls, directory: LogDirectory) -> "DirectoryContents":
        """List the folders, and read the checkpoints; a corrupt one counts as missing. Raises OSError."""
        names = directory.log_names()
        return cls(
            directory=directory,
            logs=names.logs,
            future_logs=names.future_logs,
            deleted=names.deleted,
            recovery_points=directory.read_checkpoint(directory.recovery_points),
            log_start_offsets=directory.read_checkpoint(directory.log_start_offsets),
            high_watermarks=directory.read_checkpoint(directory.high_watermarks),
            cleaned_offsets=directory.read_checkpoint(directory.cleaned_offsets),
        )


class LogToOpen(NamedTuple):
    """One log of a directory, with its checkpointed offsets."""

    path: Path
    topic_partition: TopicPartition
    config: LogConfig
    is_clean: bool
    is_future: bool
    recovery_point: int
    log_start_offset: int
    high_watermark: int
    #: The first dirty offset; None if it was never compacted.
    cleaned_offset: int | None


#: Opens a log and keeps it; None if its disk fails, or it is a stray; both are logged. [any thread]
OpenLog = Callable[[LogToOpen], Log | None]


def loading_jobs(
    contents: DirectoryContents, open_log: OpenLog, topic_config: Callable[[str], LogConfig]
) -> list[Callable[[], None]]:
    """A job for each log of the directory."""
    directory = contents.directory
    names = [(name, it, False) for name, it in contents.logs.items()]
    names += [(name, it, True) for name, it in contents.future_logs.items()]
    if not names:
        return []
    if directory.was_clean:
        _LOG.info("%s was shut down cleanly: %d logs need no recovery", directory.path, len(names))
    else:
        _LOG.info("%s was not shut down cleanly: recovering %d logs", directory.path, len(names))
    # Called here, in one thread, and once per topic.
    topics = {topic_partition.topic for _, topic_partition, _ in names}
    configs = {topic: topic_config(topic) for topic in topics}
    progress = _Progress(directory, len(names))
    return [
        partial(
            progress.open,
            open_log,
            LogToOpen(
                path=directory.path / name,
                topic_partition=topic_partition,
                config=configs[topic_partition.topic],
                is_clean=directory.was_clean,
                is_future=is_future,
                recovery_point=contents.recovery_points.get(topic_partition, 0),
                log_start_offset=contents.log_start_offsets.get(topic_partition, 0),
                high_watermark=contents.high_watermarks.get(topic_partition, 0),
                cleaned_offset=contents.cleaned_offsets.get(topic_partition),
            ),
        )
        for name, topic_partition, is_future in names
    ]


class _Progress:
    """The progress of one directory."""

    def __init__(self, directory: LogDirectory, total: int) -> None:
        self._directory = directory
        self._total = total
        #: `next` of it is atomic between threads.
        self._done = count(1)

    def open(self, open_log: OpenLog, found: LogToOpen) -> None:
        log = None
        try:
            log = open_log(found)
        finally:
            done = next(self._done)
            if log is not None:
                is_logged = not found.is_clean or done == self._total or not done % LOGGED_EVERY
                _LOG.log(
                    INFO if is_logged else DEBUG,
                    "%s: opened, %d segments, offsets [%d, %d); %d of %d logs in %s, %d remain",
                    found.path.name, len(log.segments), log.log_start_offset, log.log_end_offset,
                    done, self._total, self._directory.path, self._total - done,
                )  # fmt: skip

"""Log deletion: deletes the logs of a topic's partitions without blocking the event loop.

    delete      the logs are removed from the table: no look-up, job or checkpoint finds them
    free_name   their directories are renamed, one after the other (80 us each); only then their names are free
    removal     their files are deleted after file.delete.delay.ms, see `LogTable.rename_and_schedule_removal`

A process that crashes between the first two leaves logs that are not in the metadata. The next start renames them as
strays (`LogManager.load`), as after a crash before the deletion was read from the metadata log.

Source: LogManager.asyncDelete of Kafka 4.3.1.
"""

from collections.abc import Iterator
from logging import getLogger

from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.types import TopicPartition
from ottla.storage import file_names
from ottla.storage.log import Log
from ottla.storage.manager.log_table import LogTable

_LOG = getLogger(__name__)


class LogDeletion:
    """Deletes logs: from the table at once, from the directories in steps. Belongs to the event loop's thread."""

    def __init__(self, table: LogTable) -> None:
        self._table = table
        #: Deleted logs whose directories still have their names: a partition's log, and its future log.
        self._waiting: dict[TopicPartition, list[Log]] = {}

    def delete(self, topic_partition: TopicPartition) -> None:
        """Remove the partition's logs from the table."""
        self._table.cleaned_offsets.pop(topic_partition, None)
        for logs in (self._table.logs, self._table.future_logs):
            if (log := logs.pop(topic_partition, None)) is not None:
                self._waiting.setdefault(topic_partition, []).append(log)

    @property
    def waiting_count(self) -> int:
        """The number of deleted partitions whose folders `steps` has not renamed yet."""
        return len(self._waiting)

    def steps(self, now_ms: int) -> Iterator[None]:
        """Rename all deleted logs, those of one partition per step, also logs that are deleted between two steps."""
        while self._waiting:
            self.free_name(next(iter(self._waiting)), now_ms)
            yield

    def free_name(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """Rename the directories of the partition's deleted logs, if any, so that a new log can have the name.

        A disk failure is logged.
        """
        for log in self._waiting.pop(topic_partition, ()):
            if log.directory.parent in self._table.offline_dirs:
                log.close_files()
                continue
            try:
                self._table.rename_and_schedule_removal(log, file_names.DELETE_DIRECTORY, now_ms)
            except KafkaStorageError as error:  # its directory is offline
                _LOG.error(
                    "%s: the deleted log %s cannot be renamed, and is a stray after the next start: %s",
                    topic_partition,
                    log.directory,
                    error,
                )
                log.close_files()

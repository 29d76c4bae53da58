"""Deleting the logs of partitions, as many as a topic has, without holding the event loop up.

    delete      the logs leave the table: no look-up, job or checkpoint finds them
    put_aside   their directories get other names, one after the other (80 us each); only then their names are free
    removal     their files go after file.delete.delay.ms, see `LogTable.put_aside`

A process that dies between the first two leaves logs that the metadata does not know. The next start sets them aside as
strays (`LogManager.load`), as it does when a process dies before it has read of the deletion.
"""

from collections.abc import Iterator
from logging import getLogger

from protocol.errors import KafkaStorageError
from protocol.types import TopicPartition
from storage import file_names
from storage.log import Log
from storage.log_table import LogTable

_LOG = getLogger(__name__)


class LogDeletion:
    """See the module. Belongs to the event loop's thread."""

    def __init__(self, table: LogTable) -> None:
        self._table = table
        #: Deleted logs whose directories still have their names: a partition's log, and its future log.
        self._waiting: dict[TopicPartition, list[Log]] = {}

    def delete(self, topic_partition: TopicPartition) -> None:
        """Take the partition's logs out of the table."""
        self._table.cleaned_offsets.pop(topic_partition, None)
        for logs in (self._table.logs, self._table.future_logs):
            if (log := logs.pop(topic_partition, None)) is not None:
                self._waiting.setdefault(topic_partition, []).append(log)

    @property
    def waiting_count(self) -> int:
        """How many partitions `steps` has left to do."""
        return len(self._waiting)

    def steps(self, now_ms: int) -> Iterator[None]:
        """Put all deleted logs aside, those of one partition a step, also what is deleted between two steps."""
        while self._waiting:
            self.put_aside(next(iter(self._waiting)), now_ms)
            yield

    def put_aside(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """Free the partition's name in all directories, if a deleted log has it. A disk that fails is logged."""
        for log in self._waiting.pop(topic_partition, ()):
            if log.directory.parent in self._table.offline_dirs:
                log.close_files()
                continue
            try:
                self._table.put_aside(log, file_names.DELETE_DIRECTORY, now_ms)
            except KafkaStorageError as error:  # its directory is offline by now
                _LOG.error("%s was deleted, but %s is not removed: %s", topic_partition, log.directory, error)
                log.close_files()

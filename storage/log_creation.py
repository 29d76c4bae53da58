"""Making the logs of new partitions, as many as a topic has, without holding the event loop up.

    plan (loop)   where each log goes; a name is taken from here on
    run           makes directories and files of some of them; 0.2 ms a log [any thread]
    finish (loop) these logs are there, unless their topic was deleted or their disk failed meanwhile

`LogManager.creation` plans. Several creations may be under way, each of other partitions.
"""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from protocol.errors import KafkaError, KafkaStorageError
from protocol.types import TopicPartition
from storage.log import Log
from storage.log_config import LogConfig


class NewLog(NamedTuple):
    """A log that is to be there."""

    topic_partition: TopicPartition
    topic_id: UUID
    #: None: what the topic has by `LogManager.load`.
    config: LogConfig | None = None
    #: Whether the partition has never had a log; see `LogManager.get_or_create`.
    is_new: bool = True
    #: The epoch in which this broker leads the partition, to be noted while nobody waits; None: it does not.
    leader_epoch: int | None = None


class PlannedLog(NamedTuple):
    """A log that will be made, and where."""

    new: NewLog
    path: Path


class LogCreation:
    """`logs` and `errors` have the partitions whose fate is known: at first those that need no new log, or get none."""

    def __init__(
        self,
        *,
        open_log: Callable[[NewLog, Path], Log],
        keep: Callable[[TopicPartition, Log | None], KafkaError | None],
    ) -> None:
        self.logs: dict[TopicPartition, Log] = {}
        self.errors: dict[TopicPartition, KafkaError] = {}
        self._planned: deque[PlannedLog] = deque()
        self._open_log = open_log
        self._keep = keep

    def plan(self, new: NewLog, path: Path) -> None:
        """The log is to lie there."""
        self._planned.append(PlannedLog(new, path))

    @property
    def planned_count(self) -> int:
        """How many logs are still to be taken by `next_part`."""
        return len(self._planned)

    def next_part(self, size: int) -> Sequence[PlannedLog]:
        """Take the next `size` logs that are planned, fewer at the end: to be run, and then finished."""
        return [self._planned.popleft() for _ in range(min(size, len(self._planned)))]

    def run(self, part: Sequence[PlannedLog]) -> None:
        """Make the logs. [any thread]"""
        for new, path in part:
            try:
                self.logs[new.topic_partition] = self._open_log(new, path)
            except KafkaError as error:
                self.errors[new.topic_partition] = error

    def finish(self, part: Sequence[PlannedLog]) -> None:
        """Let the manager have the logs, whatever became of `run`."""
        for new, path in part:
            at = new.topic_partition
            error = self._keep(at, self.logs.get(at))
            if at not in self.errors and (error is not None or at not in self.logs):
                self.logs.pop(at, None)
                self.errors[at] = error or KafkaStorageError(f"{path} was not made")

"""Making the logs of new partitions, as many as a topic has, without holding the event loop up.

    plan (loop)   where each log goes; a name is taken from here on
    run           makes directories and files; some 0.4 ms a log [any thread]
    finish (loop) the logs are there, unless their topic was deleted or their disk failed meanwhile

`LogManager.creation` plans. Several creations may be under way, each of other partitions.
"""

from collections.abc import Callable
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


class LogCreation:
    """Runs once, then is finished; `logs` and `errors` then have all partitions that were asked for."""

    def __init__(
        self,
        *,
        open_log: Callable[[NewLog, Path], Log],
        keep: Callable[[TopicPartition, Log | None], KafkaError | None],
    ) -> None:
        self.logs: dict[TopicPartition, Log] = {}
        self.errors: dict[TopicPartition, KafkaError] = {}
        self._open_log = open_log
        self._keep = keep
        #: With their paths.
        self._planned: list[tuple[NewLog, Path]] = []

    def plan(self, new: NewLog, path: Path) -> None:
        """The log is to lie there."""
        self._planned.append((new, path))

    def run(self) -> None:
        """Make the logs. [any thread]"""
        for new, path in self._planned:
            try:
                self.logs[new.topic_partition] = self._open_log(new, path)
            except KafkaError as error:
                self.errors[new.topic_partition] = error

    def finish(self) -> None:
        """Let the manager have the logs, whatever became of `run`."""
        for new, path in self._planned:
            at = new.topic_partition
            error = self._keep(at, self.logs.get(at))
            if at not in self.errors and (error is not None or at not in self.logs):
                self.logs.pop(at, None)
                self.errors[at] = error or KafkaStorageError(f"{path} was not made")

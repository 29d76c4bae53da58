"""Checkpoint files: text files that keep an offset for each log, and the leader epochs of one log.

All have Kafka's format: a version (0), the number of entries, one entry per line. A file is replaced as a
whole, by a rename; a durable write flushes the content first.

- `recovery-point-offset-checkpoint`: everything before it is flushed; recovery starts there
- `log-start-offset-checkpoint`: the log start offset, if it is not the first segment's base offset
- `replication-offset-checkpoint`: high watermarks
- `cleaner-offset-checkpoint`: the first dirty offset of a compacted log

Source: CheckpointFile, OffsetCheckpointFile of Kafka.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from ottla.protocol.types import MAX_OFFSET, MAX_PARTITION, TopicPartition
from ottla.storage.files import Files

T = TypeVar("T")

VERSION = 0
RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_FILE = "log-start-offset-checkpoint"
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
CLEANER_FILE = "cleaner-offset-checkpoint"


class CorruptCheckpoint(ValueError):
    """The file is not a valid checkpoint; its content must be rebuilt from other files."""


def number(text: str, largest: int) -> int:
    """Parse a number in [0, `largest`], which messages can hold, too. Raises CorruptCheckpoint, ValueError."""
    found = int(text)
    if not 0 <= found <= largest:
        raise CorruptCheckpoint(f"{text} is not in [0, {largest}]")
    return found


def encode(lines: Iterable[str], count: int) -> bytes:
    """The content of a checkpoint file with these entries."""
    return "".join(f"{line}\n" for line in (str(VERSION), str(count), *lines)).encode()


def decode(data: bytes, parse: Callable[[Sequence[str]], T]) -> list[T]:
    """The entries; `parse` makes each one from the words of its line. Raises CorruptCheckpoint.

    An empty file has no entries.
    """
    try:
        lines = data.decode().splitlines()
        if len(lines) < 2:
            if lines and int(lines[0]) != VERSION:
                raise CorruptCheckpoint(f"Version {lines[0]} is unknown")
            return []
        if int(lines[0]) != VERSION:
            raise CorruptCheckpoint(f"Version {lines[0]} is unknown")
        if not data.endswith(b"\n"):
            raise CorruptCheckpoint("The last line was cut off")  # perhaps within its number
        entries = [parse(line.split()) for line in lines[2:]]
        if len(entries) != int(lines[1]):
            raise CorruptCheckpoint(f"{len(entries)} entries instead of {lines[1]}")
    except CorruptCheckpoint:
        raise
    except (ValueError, IndexError, TypeError) as error:
        raise CorruptCheckpoint(str(error)) from error
    return entries


class OffsetCheckpoint:
    """An offset for each of a directory's logs."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self._files = files

    def read(self) -> dict[TopicPartition, int]:
        """The offsets; empty if the file is missing. Raises CorruptCheckpoint."""
        try:
            data = self._files.read(self.path)
        except FileNotFoundError:
            return {}
        return dict(decode(data, _parse))

    def write(self, offsets: Mapping[TopicPartition, int], *, durable: bool = True) -> None:
        """Replace the file. [any thread] Cost: one fsync of the file, one of its directory, if `durable`."""
        assert min(offsets.values(), default=0) >= 0, (str(self.path), offsets)
        lines = (f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items()))
        self._files.write_atomically(self.path, encode(lines, len(offsets)), durable=durable)


def _parse(words: Sequence[str]) -> tuple[TopicPartition, int]:
    topic, partition, offset = words
    return TopicPartition(topic, number(partition, MAX_PARTITION)), number(offset, MAX_OFFSET)

"""`_rlmm_committed_offsets`: the offset that all snapshots have reached, for each metadata partition.

    0                     version
    number of entries
    metadata partition, offset: all snapshots of its user partitions have the records before it

After a restart the tail of a metadata partition begins there, at the latest; user partitions whose snapshots are older
catch up beside it. The file may be lost: then the tail begins where the furthest snapshot ends.

Source: CommittedOffsetsFile of Kafka 3.0, and its format, as of all checkpoint files; 4.3.1 has no such file any more.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ottla.protocol.types import MAX_OFFSET, MAX_PARTITION
from ottla.storage import checkpoints
from ottla.storage.files import Files

FILE_NAME: Final = "_rlmm_committed_offsets"


def write(log_dir: Path, offsets: Mapping[int, int], files: Files) -> None:
    """Replace the file of committed offsets. Raises OSError. [any thread]"""
    lines = (f"{partition} {offset}" for partition, offset in sorted(offsets.items()))
    data = checkpoints.encode(lines, len(offsets))
    files.write_atomically(log_dir / FILE_NAME, data, durable=False)


def read(log_dir: Path, files: Files) -> dict[int, int]:
    """Return the offset of each metadata partition; none if there is no file.

    Raises CorruptCheckpoint, OSError. [any thread]
    """
    try:
        data = files.read(log_dir / FILE_NAME)
    except FileNotFoundError:
        return {}
    return dict(checkpoints.decode(data, _parse))


def _parse(words: Sequence[str]) -> tuple[int, int]:
    partition, offset = words
    return checkpoints.number(partition, MAX_PARTITION), checkpoints.number(offset, MAX_OFFSET)

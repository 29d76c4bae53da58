"""`partition.metadata`: the topic id that a log folder belongs to (KIP-516).

A topic that was deleted and created again has the same folder name; the id distinguishes their logs.
Source: PartitionMetadataFile of Kafka.
"""

from functools import lru_cache
from pathlib import Path
from uuid import UUID

from ottla.protocol import kafka_uuid
from ottla.protocol.types import ZERO_UUID
from ottla.storage.files import Files

FILE_NAME = "partition.metadata"


def write(directory: Path, topic_id: UUID, files: Files, *, durable: bool = True) -> None:
    """Write the file, before the first record is written: a log with data always has its topic id."""
    assert topic_id != ZERO_UUID, directory
    text = f"version: 0\ntopic_id: {kafka_uuid.to_text(topic_id)}"
    files.write_atomically(directory / FILE_NAME, text.encode(), durable=durable)


def read(directory: Path, files: Files) -> UUID | None:
    """The topic id, None without a file. Raises ValueError if the file has no valid id."""
    try:
        return _parse(files.read(directory / FILE_NAME))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{directory / FILE_NAME}: {error}") from error


@lru_cache(1024)  # all partitions of a topic have the same
def _parse(data: bytes) -> UUID:
    text = data.decode()
    lines = [line.partition(":") for line in text.splitlines()]
    fields = {name.strip(): value.strip() for name, _, value in lines}
    if int(fields.get("version", "-1")) < 0:
        raise ValueError("it has no valid version")
    topic_id = kafka_uuid.from_text(fields.get("topic_id", ""))
    if topic_id == ZERO_UUID:
        raise ValueError("its topic id is zero")
    return topic_id

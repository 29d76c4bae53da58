"""Small value types that every layer speaks of."""

from typing import NamedTuple
from uuid import UUID

#: Kafka's "no id": what a UUID field holds on the wire when nothing is known.
ZERO_UUID = UUID(int=0)


class TopicPartition(NamedTuple):
    """A partition by its topic's name; prints as its log directory is named."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

"""Value types that every layer uses: TopicPartition, and the zero UUID."""

from typing import NamedTuple
from uuid import UUID

#: Kafka's Uuid.ZERO_UUID, "no id": the wire's value of a UUID field without an id.
ZERO_UUID = UUID(int=0)


class TopicPartition(NamedTuple):
    """A partition by its topic's name; printed as the name of its log directory."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

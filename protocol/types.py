"""Value types that every layer uses: TopicPartition, the zero UUID, and the largest numbers."""

from typing import Final, NamedTuple
from uuid import UUID

#: Kafka's Uuid.ZERO_UUID, "no id": the wire's value of a UUID field without an id.
ZERO_UUID = UUID(int=0)

#: The largest numbers that messages can hold: offsets are 64-bit integers, epochs and the numbers of
#: partitions 32-bit ones.
MAX_OFFSET: Final = 2**63 - 1
MAX_EPOCH: Final = 2**31 - 1
MAX_PARTITION: Final = 2**31 - 1


class TopicPartition(NamedTuple):
    """A partition by its topic's name; printed as the name of its log directory."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

"""Who appends: it decides how much is checked."""

from enum import Enum, auto


class AppendOrigin(Enum):
    """Where records come from, as in Kafka's AppendOrigin."""

    #: The leader of a partition, copied by its follower: everything was checked before.
    REPLICATION = auto()
    #: A coordinator of this broker: its own records, without sequence numbers.
    COORDINATOR = auto()
    #: A Produce request: nothing is believed.
    CLIENT = auto()
    #: The active controller: its own records; they may be longer than `max.message.bytes`.
    RAFT_LEADER = auto()

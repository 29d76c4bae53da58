"""The origin of an append, which decides how much is checked (Kafka's AppendOrigin)."""

from enum import Enum, auto


class AppendOrigin(Enum):
    """Where the records of an append come from."""

    #: The partition's leader, on a follower: the leader has checked everything.
    REPLICATION = auto()
    #: A coordinator of this broker: its own records, without sequence numbers.
    COORDINATOR = auto()
    #: A Produce request: everything is checked.
    CLIENT = auto()
    #: The active controller: its own records, which may exceed `max.message.bytes`.
    RAFT_LEADER = auto()

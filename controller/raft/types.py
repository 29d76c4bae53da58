"""Raft's value types (ReplicaKey, OffsetAndEpoch, LeaderAndEpoch, ElectionState), and a node's settings (QuorumConfig).

Source: KIP-595, KIP-853; ReplicaKey, OffsetAndEpoch, LeaderAndEpoch, ElectionState and QuorumConfig of Kafka 4.3.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from ottla.protocol import kafka_uuid
from ottla.protocol.types import ZERO_UUID
from ottla.storage.manager.log_directory import METADATA_TOPIC_ID

#: The topic of the metadata log, its only partition, and the id that it has in every cluster.
TOPIC: Final = "__cluster_metadata"
PARTITION: Final = 0
TOPIC_ID: Final = METADATA_TOPIC_ID
#: No time: larger than every time of the clock.
NEVER_MS: Final = 2**62
#: The wire's values for an unknown node, offset and time.
NO_NODE: Final = -1
NO_OFFSET: Final = -1
NO_TIMESTAMP: Final = -1
#: The largest epoch of the wire format (int32). Elections do not reach it, and no node could be elected after it.
LAST_EPOCH: Final = 2**31 - 1
#: A request raises the epoch by at most so much. Whatever reaches the listener may send one, and the epochs up
#: to LAST_EPOCH are all that a quorum ever has: they last for two million such requests, each of which waits
#: for an fsync. A replica that is further behind adopts the epoch from the response to its own request, since
#: it has chosen the node that it asks.
MAX_EPOCH_STEP: Final = 1_000
#: The kraft.version level from which the voter set is in the log and can be changed (KIP-853).
RECONFIGURABLE: Final = 1


class ReplicaKey(NamedTuple):
    """A replica: the node's id, and the id of its metadata log directory. A lost disk: another replica (KIP-853)."""

    id: int
    #: ZERO_UUID: not known, as for configured voters (kraft.version 0).
    directory_id: UUID = ZERO_UUID

    def __repr__(self) -> str:
        """The key as Kafka writes it: the text is part of error messages that operators read.

        >>> str(ReplicaKey(1, UUID(int=1))), str([ReplicaKey(2)])
        ('ReplicaKey(id=1, directoryId=AAAAAAAAAAAAAAAAAAAAAQ)', '[ReplicaKey(id=2, directoryId=<undefined>)]')
        """
        directory = "<undefined>" if self.directory_id == ZERO_UUID else kafka_uuid.to_text(self.directory_id)
        return f"ReplicaKey(id={self.id}, directoryId={directory})"

    def matches(self, other: "ReplicaKey") -> bool:
        """Whether a voter with this key is `other`. A key without a directory id matches the node on any disk.

        >>> ReplicaKey(1).matches(ReplicaKey(1, UUID(int=7))), ReplicaKey(1, UUID(int=7)).matches(ReplicaKey(1))
        (True, False)
        """
        return self.id == other.id and self.directory_id in (ZERO_UUID, other.directory_id)


class OffsetAndEpoch(NamedTuple):
    """A position in the log's history: an end offset (exclusive), and the epoch of the record before it.

    Compared as Raft compares logs: by epoch first, then by offset.

    >>> OffsetAndEpoch(offset=9, epoch=1) < OffsetAndEpoch(offset=3, epoch=2)
    True
    """

    offset: int
    epoch: int

    def __lt__(self, other: tuple[int, ...]) -> bool:
        return (self[1], self[0]) < (other[1], other[0])

    def __le__(self, other: tuple[int, ...]) -> bool:
        return (self[1], self[0]) <= (other[1], other[0])

    def __gt__(self, other: tuple[int, ...]) -> bool:
        return (self[1], self[0]) > (other[1], other[0])

    def __ge__(self, other: tuple[int, ...]) -> bool:
        return (self[1], self[0]) >= (other[1], other[0])


#: The snapshot that a log directory is formatted with. It is never replicated, since the first leader appends
#: its content to the log.
BOOTSTRAP_SNAPSHOT: Final = OffsetAndEpoch(offset=0, epoch=0)


class LeaderAndEpoch(NamedTuple):
    """An epoch and its leader; leader_id is None if it is not known yet, or has resigned."""

    leader_id: int | None
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionState:
    """The content of `quorum-state`: the last epoch that this node knows, its leader, and this node's vote in it.

    `voted_id` is None unless this node voted in the epoch without knowing a leader yet.
    """

    leader_epoch: int
    leader_id: int | None
    #: 0: voters are configured; 1: they are in the log (KIP-853). Kafka's "data_version".
    kraft_version: int
    voted_id: int | None = None
    voted_directory_id: UUID = ZERO_UUID
    #: Configured voters, of kraft.version 0 only.
    voters: tuple[int, ...] = ()


class Address(NamedTuple):
    """Host and port of a listener."""

    host: str
    port: int


class Node(NamedTuple):
    """A destination of requests. Bootstrap servers, whose ids are not known, have ids below -1."""

    id: int
    address: Address


#: A controller's endpoints: addresses by listener name.
Endpoints = Mapping[str, Address]


class VersionRange(NamedTuple):
    """The levels of a feature that a node supports, both ends included."""

    min_version: int
    max_version: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.min_version <= version <= self.max_version


#: The kraft.version levels that this software supports.
SUPPORTED_KRAFT_VERSIONS: Final = VersionRange(0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings:
    """One node's part of the configuration; names and defaults are those of Kafka's `controller.quorum.*` keys."""

    node_id: int
    #: The id of the directory with the metadata log (meta.properties).
    directory_id: UUID
    cluster_id: str
    #: The listener on which voters reach each other: the first of controller.listener.names.
    listener_name: str
    #: This node's controller listeners; empty for a broker.
    endpoints: Endpoints = field(default_factory=dict)
    #: controller.quorum.voters; empty if voters are found through bootstrap servers.
    static_voters: Mapping[int, Address] = field(default_factory=dict)
    #: controller.quorum.bootstrap.servers
    bootstrap_servers: tuple[Address, ...] = ()
    #: Whether this node has the controller role. An observer without it does not flush its appends, and never joins.
    can_become_voter: bool = True
    auto_join_enable: bool = False
    election_timeout_ms: int = 1_000
    fetch_timeout_ms: int = 2_000
    election_backoff_max_ms: int = 1_000
    request_timeout_ms: int = 2_000
    retry_backoff_ms: int = 20
    #: How long the leader may delay a Fetch that finds nothing new; Kafka's MAX_FETCH_WAIT_MS.
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 1024 * 1024
    fetch_snapshot_max_bytes: int = 1024 * 1024

    @property
    def key(self) -> ReplicaKey:
        """The replica key of this node: its node id, and the id of its directory."""
        return ReplicaKey(self.node_id, self.directory_id)

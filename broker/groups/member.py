"""Member of a classic group (Kafka's ClassicGroupMember)."""

from collections.abc import Container
from dataclasses import dataclass

#: The protocols that a member supports, in order of preference: (name of the assignor, subscription for it).
Protocols = tuple[tuple[str, bytes], ...]


@dataclass(slots=True, kw_only=True)
class Member:
    """A member of a classic group: its identity, protocols, assignment and delayed requests."""

    member_id: str
    #: Set for a static member (KIP-345): its membership survives a restart of its process.
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    #: The JoinGroup that waits for the rest of the group.
    join_waiter: object | None = None
    #: The SyncGroup that waits for the leader's assignment.
    sync_waiter: object | None = None
    #: Whether it has received no JoinGroup response yet, so that it does not know its id and cannot send
    #: heartbeats.
    is_new: bool = False

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """Whether a delayed request replaces heartbeats: a client sends none while it waits.

        Not for a new member: its client may have retried under another id, and the member with the first id
        would never expire.
        """
        return not self.is_new and (self.join_waiter is not None or self.sync_waiter is not None)

    @property
    def protocol_names(self) -> frozenset[str]:
        """The names of the protocols that the member supports."""
        return frozenset(name for name, _ in self.protocols)

    def subscription(self, protocol: str | None) -> bytes:
        """Return the member's subscription for this protocol, which must be one of its own."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise AssertionError(f"member {self.member_id} does not support protocol {protocol!r}")

    def vote(self, candidates: Container[str]) -> str:
        """Return the candidate that the member prefers; at least one of its protocols must be a candidate."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise AssertionError(f"member {self.member_id} supports none of {candidates}")

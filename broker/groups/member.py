"""One member of a classic group."""

from collections.abc import Container
from dataclasses import dataclass

#: What a member can speak, most wanted first: (name of the assignor, its subscription for it).
Protocols = tuple[tuple[str, bytes], ...]


@dataclass(slots=True, kw_only=True)
class Member:
    """A member: who it is, what it speaks, what it was assigned, and whether it waits for an answer."""

    member_id: str
    #: Set for a static member (KIP-345): its place in the group outlives its process.
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
    #: It has never been answered, so it does not know its own id and cannot send heartbeats.
    is_new: bool = False

    @property
    def is_alive_by_waiting(self) -> bool:
        """A parked request stands for heartbeats: a client sends none while it waits.

        Not for a new member: it would be retried by its client under another id, and the
        first one would stay for ever.
        """
        return not self.is_new and (self.join_waiter is not None or self.sync_waiter is not None)

    @property
    def protocol_names(self) -> frozenset[str]:
        """The names of what it speaks."""
        return frozenset(name for name, _ in self.protocols)

    def subscription(self, protocol: str | None) -> bytes:
        """What it said for this protocol; it must speak it."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise AssertionError(f"member {self.member_id} does not speak {protocol!r}")

    def vote(self, candidates: Container[str]) -> str:
        """The candidate that it wants most; there must be one."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise AssertionError(f"member {self.member_id} speaks none of {candidates}")

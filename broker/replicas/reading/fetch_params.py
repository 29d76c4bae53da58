"""Parameters of a Fetch for all its partitions (Kafka's FetchParams)."""

from dataclasses import dataclass

from ottla.replication.replica_selector import ClientMetadata


@dataclass(slots=True, kw_only=True)
class FetchParams:
    """The parameters of one Fetch request that hold for all of its partitions.

    Never changed; not frozen, since that takes 2 us to create.
    """

    version: int
    #: The fetching follower and its broker epoch (-1: none sent); None for a consumer.
    replica_id: int | None
    replica_epoch: int = -1
    #: A consumer that may be redirected to a nearer replica (KIP-392); None: no redirection.
    client: ClientMetadata | None = None
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    is_read_committed: bool
    #: When the request arrived: a follower that fetches is alive, and has all records before its fetch
    #: offset, since then.
    now_ms: int

    @property
    def must_lead(self) -> bool:
        """Whether only a leader may answer: a follower's Fetch, and a consumer's before version 11 (KIP-392).

        Kafka's fetchOnlyLeader.
        """
        return self.replica_id is not None or self.version < 11

"""A partition and its replicas, as their brokers and the cluster's metadata report them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ottla.metadata.leader_preference import NO_PREFERENCE, LeaderPreference
from ottla.protocol.local_log import LocalLog
from ottla.protocol.types import TopicPartition


@dataclass(slots=True, frozen=True, kw_only=True)
class ReplicaLog:
    """The log of one replica. None: the broker does not report it, or there is no such offset."""

    log_start_offset: int | None = None
    local_log_start_offset: int | None = None
    #: The first offset that is not in the remote tier.
    pending_upload_offset: int | None = None
    high_watermark: int | None = None
    log_end_offset: int | None = None
    local_bytes: int | None = None
    #: Timestamp of the first local batch; only asked for where the topic's elections use it.
    oldest_local_timestamp_ms: int | None = None

    @property
    def local_log(self) -> LocalLog | None:
        """The replica's local log, as elections compare it (KIP-1303); None: unknown."""
        if self.local_log_start_offset is None:
            return None
        return LocalLog(self.local_log_start_offset, self.local_bytes or 0, self.oldest_local_timestamp_ms)


@dataclass(slots=True, frozen=True, kw_only=True)
class Replica:
    """One replica of a partition."""

    broker_id: int
    rack: str | None = None
    #: The metadata names its broker, or its log directory, as offline.
    is_offline: bool = False
    is_adding: bool = False
    is_removing: bool = False
    log: ReplicaLog = ReplicaLog()
    #: Why `log` is empty: its broker cannot be reached, or the broker's error.
    problem: str | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class TopicSettings:
    """The configurations of a topic that matter for its leaders; None: not known."""

    preference: LeaderPreference = NO_PREFERENCE
    min_isr: int | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class Description:
    """One partition's leader, ISR, ELR and replicas, as `ottla partitions describe` shows them."""

    topic_partition: TopicPartition
    #: None: it has none now.
    leader: int | None
    leader_epoch: int
    #: In the order of the assignment: the first one is the preferred replica.
    replicas: Sequence[Replica]
    isr: Sequence[int]
    #: Eligible leader replicas (KIP-966); None: the cluster does not report them.
    elr: Sequence[int] | None = None
    last_known_elr: Sequence[int] = ()
    settings: TopicSettings = TopicSettings()

    @property
    def by_id(self) -> Mapping[int, Replica]:
        """The replicas by broker id."""
        return {replica.broker_id: replica for replica in self.replicas}

    def may_lead(self, broker_id: int) -> bool:
        """Whether a clean election may choose this replica now; the ELR counts where the ISR is empty (KIP-966)."""
        return not self.by_id[broker_id].is_offline and broker_id in (self.isr or self.elr or ())

    @property
    def candidates(self) -> list[int]:
        """The replicas that may lead, in the order of the assignment."""
        return [each.broker_id for each in self.replicas if self.may_lead(each.broker_id)]

    @property
    def local_logs(self) -> Mapping[int, LocalLog]:
        """The known local logs, by broker id."""
        return {
            replica.broker_id: known
            for replica in self.replicas
            if (known := replica.log.local_log) is not None
        }

"""A partition and its replicas, as their brokers and the cluster's metadata report them, and why its leader leads.

The controller keeps no reasons, but what it would decide now is known: a preferred leader election chooses
the preferred replica if that one may lead and has enough local data (`ottla.metadata.leader_preference`),
else keeps a leader that has enough. So the reason is what prevents the preferred replica from leading now; or
nothing does, and the leader is a former election's. The local logs are those that brokers report now; the
controller's are those of the leader's last AlterPartition (KIP-1303).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ottla.broker.reports.words import duration_text, size_text
from ottla.metadata.leader_preference import NO_PREFERENCE, LeaderPreference, preference_order
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


def preferred_election(partition: Description, *, now_ms: int) -> int | None:
    """The leader after a preferred leader election; None: no replica may lead."""
    settings = partition.settings
    groups = preference_order(partition.candidates, partition.local_logs, settings.preference, now_ms=now_ms)
    if not groups:
        return None
    first, *_ = group = groups[0]
    is_kept = partition.leader in group and first != partition.replicas[0].broker_id
    return partition.leader if is_kept else first


def why(partition: Description, *, now_ms: int) -> str:
    """Return why the leader leads, or why there is none, as one sentence for an operator."""
    leader, preferred = partition.leader, partition.replicas[0].broker_id
    if leader is None:
        return _why_none(partition)
    if not partition.may_lead(leader):
        return f"{leader} is the leader in the metadata, which does not name it as alive and in sync now"
    if partition.candidates == [leader]:
        return f"{leader} is the only replica that may lead{_why_not(partition)}"
    next_leader = preferred_election(partition, now_ms=now_ms)
    if leader == preferred == next_leader:
        return f"{leader} is the preferred replica, and may lead"
    reason = (
        f"{leader} is the preferred replica, but"
        if leader == preferred
        else f"the preferred replica {preferred}"
    )
    if not partition.may_lead(preferred):
        reason += f" {_state(partition, partition.replicas[0])}"
    elif next_leader != preferred:
        reason += f" {_less_data(partition, preferred, now_ms)}"
    else:
        reason += " may lead, but could not when this leader was elected"
    if next_leader == leader:
        return reason
    return f"{reason}; a preferred leader election would choose {next_leader}"


def _why_none(partition: Description) -> str:
    names = ("ISR", partition.isr) if partition.isr else ("ELR", partition.elr or ())
    if names[1]:
        return f"no leader: no replica of the {names[0]} ({_list(names[1])}) is alive"
    last = f"; last known: {_list(partition.last_known_elr)}" if partition.last_known_elr else ""
    return f"no leader: ISR and ELR are empty{last}"


def _why_not(partition: Description) -> str:
    """Return why each replica but the leader may not lead, as a part of a sentence."""
    found = [
        f"{each.broker_id} {_state(partition, each)}"
        for each in partition.replicas
        if each.broker_id != partition.leader
    ]
    return f": {', '.join(found)}" if found else ""


def _state(partition: Description, replica: Replica) -> str:
    """Return why a replica may not lead, as a part of a sentence."""
    if replica.is_offline:
        return "is not alive"
    return "is not in the ISR" if partition.isr else "is neither in the ISR nor in the ELR"


def _less_data(partition: Description, broker_id: int, now_ms: int) -> str:
    """Return which local data a replica lacks, with the numbers that elections compare (KIP-1303)."""
    preference, local_logs = partition.settings.preference, partition.local_logs
    # An unknown local log counts as a complete one, so it is known here.
    own = local_logs[broker_id]
    starts = {
        each: local_logs[each].start_offset if each in local_logs else 0 for each in partition.candidates
    }
    earliest = min(starts, key=lambda each: starts[each])
    is_known = earliest in local_logs
    other = f"from {starts[earliest]}" if is_known else "is unknown and counts as complete"
    parts = [f"local from {own.start_offset}, {earliest} {other}"]
    if preference.prefers_early_start:
        parts[0] += (
            f": {own.start_offset - starts[earliest]} later, {preference.start_offset_threshold} make a difference"
        )
    if preference.eligible_local_ms is not None:
        oldest_ms = own.oldest_timestamp_ms
        age = "unknown" if oldest_ms is None else duration_text(max(0, now_ms - oldest_ms))
        parts.append(f"age {age} of at least {duration_text(preference.eligible_local_ms)}")
    if preference.eligible_local_bytes is not None:
        parts.append(f"{size_text(own.size_bytes)} of at least {size_text(preference.eligible_local_bytes)}")
    return f"has less local data ({'; '.join(parts)})"


def _list(broker_ids: Sequence[int]) -> str:
    return ", ".join(map(str, broker_ids))

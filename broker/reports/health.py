"""The health of a cluster in a sentence with its reasons, as `ottla cluster status` and the page show it. Values only.

| level | example of a reason |
|---|---|
| unavailable | partitions without leader, or with fewer replicas in sync than producers need; no active controller |
| degraded | a broker that is not alive, followers or voters that lag behind |
| healthy | none |
"""

from bisect import insort
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain
from typing import Any, Final

from ottla.broker.reports.words import counted, duration_text
from ottla.protocol.messages.describe_quorum import PartitionDataResponse, ReplicaState
from ottla.protocol.types import TopicPartition

#: A voter that has not caught up for so long would not help if the leader failed.
_VOTER_LAG_MS: Final = 10_000
#: The partitions, groups or topics that a reason names.
_NAMED: Final = 3


class Level(IntEnum):
    """The state of a cluster; the number is the exit status of the command, but for 2."""

    HEALTHY = 0
    DEGRADED = 1
    UNAVAILABLE = 3


#: The states of a partition that is not in sync, the worst first.
LEADERLESS: Final = "leaderless"
UNDER_MIN_ISR: Final = "under min ISR"
UNDER_REPLICATED: Final = "under-replicated"
IN_SYNC: Final = "in sync"


def partition_state(*, has_leader: bool, replica_count: int, isr_count: int, min_isr: int | None) -> str:
    """The worst that can be said of a partition; None: min.insync.replicas of its topic is not known.

    >>> partition_state(has_leader=True, replica_count=2, isr_count=1, min_isr=2)
    'under min ISR'
    """
    if not has_leader:
        return LEADERLESS
    if min_isr is not None and isr_count < min(min_isr, replica_count):
        return UNDER_MIN_ISR
    return UNDER_REPLICATED if isr_count < replica_count else IN_SYNC


class PartitionTally:
    """The partitions of a cluster, counted one after the other: what its health depends on, in bounded space.

    Only the first partitions of each state are kept, which a sentence names.
    """

    __slots__ = ("_first", "count", "offline", "replicas", "states", "topics")

    def __init__(self) -> None:
        self.count = 0
        self.topics: set[str] = set()
        self.states: Counter[str] = Counter()
        self._first: dict[str, list[TopicPartition]] = {}
        #: Replicas, and offline replicas, by broker.
        self.replicas: Counter[int] = Counter()
        self.offline: Counter[int] = Counter()

    def add(
        self, at: TopicPartition, state: str, *, replicas: Sequence[int], offline: Sequence[int] = ()
    ) -> None:
        """Count one partition, which is in a state that `partition_state` has returned."""
        self.count += 1
        self.topics.add(at.topic)
        self.states[state] += 1
        if state != IN_SYNC:
            named = self._first.setdefault(state, [])
            insort(named, at)
            del named[_NAMED + 1 :]  # one more shows that there are more
        self.replicas.update(replicas)
        if offline:
            self.offline.update(offline)

    def first(self, state: str) -> Sequence[TopicPartition]:
        """The first partitions of a state in the order of their names."""
        return self._first.get(state, ())


@dataclass(slots=True, frozen=True)
class Reason:
    """A part of a sentence that names what is wrong."""

    level: Level
    text: str


@dataclass(slots=True, frozen=True, kw_only=True)
class GroupLag:
    """The lag of a group."""

    group: str
    lag: int
    members_count: int


@dataclass(slots=True, frozen=True, kw_only=True)
class Cluster:
    """The responses of a cluster, as far as they say how it is."""

    cluster_id: str
    #: The brokers that are alive, and those that are registered and fenced.
    alive: Sequence[int]
    fenced: Sequence[int] = ()
    #: None: it is not reported, as the brokers of other software, or those without a controller, do not know it.
    quorum: PartitionDataResponse | None = None
    partitions: PartitionTally = field(default_factory=PartitionTally)
    groups: Sequence[GroupLag] = ()
    #: The records of each tiered partition that are not copied yet; None: its leader does not report it.
    not_copied: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    #: Questions that were not answered, as sentences.
    unanswered: Sequence[str] = ()
    #: The lag of a group from which on it is a reason; None: never.
    max_lag: int | None = None

    @property
    def missing(self) -> list[int]:
        """The brokers that have replicas and are neither alive nor fenced."""
        known = {*self.alive, *self.fenced}
        return sorted(self.partitions.replicas.keys() - known)


def reasons_of(cluster: Cluster) -> list[Reason]:
    """All reasons why a cluster is not healthy, the worst first."""
    found = chain(
        _of_controllers(cluster),
        _of_partitions(cluster),
        _of_brokers(cluster),
        _of_groups(cluster),
        (Reason(Level.DEGRADED, each) for each in cluster.unanswered),
    )
    return sorted(found, key=lambda each: -each.level)


def _of_controllers(cluster: Cluster) -> Iterator[Reason]:
    quorum = cluster.quorum
    if quorum is None:
        return
    if quorum.leader_id < 0:
        yield Reason(
            Level.UNAVAILABLE,
            "no controller is active: nothing can be changed, and no leader of a partition elected",
        )
        return
    lagging = lagging_voters(quorum)
    for voter, lag_ms in lagging.items():
        since = "" if lag_ms is None else f" for {duration_text(lag_ms)}"
        yield Reason(Level.DEGRADED, f"controller {voter} has not caught up with the metadata log{since}")
    spare = (len(quorum.current_voters) - 1) // 2 - len(lagging)
    if lagging and spare <= 0:
        yield Reason(
            Level.DEGRADED, f"the quorum of {len(quorum.current_voters)} voters cannot lose another one"
        )


def lagging_voters(quorum: PartitionDataResponse) -> dict[int, int | None]:
    """The voters that are not caught up, and for how long in ms; None: since the leader was elected, at least."""
    leader = next((each for each in quorum.current_voters if each.replica_id == quorum.leader_id), None)
    now_ms = -1 if leader is None else leader.last_caught_up_timestamp
    found: dict[int, int | None] = {}
    for voter in quorum.current_voters:
        if voter.replica_id == quorum.leader_id or _is_caught_up(voter, now_ms):
            continue
        is_known = now_ms >= 0 and voter.last_caught_up_timestamp >= 0
        found[voter.replica_id] = now_ms - voter.last_caught_up_timestamp if is_known else None
    return found


def _is_caught_up(voter: ReplicaState, now_ms: int) -> bool:
    # Versions that report no times: the log end alone does not show whether the voter still fetches.
    if now_ms < 0:
        return voter.log_end_offset >= 0
    return now_ms - voter.last_caught_up_timestamp < _VOTER_LAG_MS


def _of_partitions(cluster: Cluster) -> Iterator[Reason]:
    texts = {
        LEADERLESS: (Level.UNAVAILABLE, "without a leader", ": nothing is read or written there"),
        UNDER_MIN_ISR: (
            Level.UNAVAILABLE,
            "with fewer replicas in sync than min.insync.replicas",
            ": producers with acks=all are refused there",
        ),
        UNDER_REPLICATED: (Level.DEGRADED, "with followers that are not in sync", ""),
    }
    tally = cluster.partitions
    for state, (level, text, effect) in texts.items():
        if count := tally.states[state]:
            yield Reason(
                level, f"{counted(count, 'partition')} {text} ({_named(tally.first(state))}){effect}"
            )


def _of_brokers(cluster: Cluster) -> Iterator[Reason]:
    for broker in cluster.fenced:
        yield Reason(
            Level.DEGRADED, f"broker {broker} is fenced: it sends no heartbeats, or has not started yet"
        )
    tally = cluster.partitions
    for broker in cluster.missing:
        count = tally.replicas[broker]
        yield Reason(Level.DEGRADED, f"broker {broker} is not alive, and has {counted(count, 'replica')}")
    for broker, count in sorted(tally.offline.items()):
        if broker in cluster.alive:
            yield Reason(
                Level.DEGRADED,
                f"broker {broker} is alive with {counted(count, 'offline replica')}: a log directory has failed",
            )


def _of_groups(cluster: Cluster) -> Iterator[Reason]:
    for each in cluster.groups:
        if cluster.max_lag is not None and each.lag > cluster.max_lag:
            yield Reason(
                Level.DEGRADED,
                f"the group {each.group} with {counted(each.members_count, 'member')} lags by {each.lag}, "
                f"more than {cluster.max_lag}",
            )


def _named(things: Sequence[object]) -> str:
    names = ", ".join(map(str, things[:_NAMED]))
    return f"{names}, ..." if len(things) > _NAMED else names


def level_of(reasons: Sequence[Reason]) -> Level:
    """The level of the worst reason."""
    return max((each.level for each in reasons), default=Level.HEALTHY)


def facts_of(cluster: Cluster) -> dict[str, str]:
    """The numbers of a cluster by what they are about."""
    facts = {"cluster": cluster.cluster_id}
    if (quorum := cluster.quorum) is not None:
        voters = ", ".join(str(each.replica_id) for each in quorum.current_voters)
        leader = f"{quorum.leader_id} is active" if quorum.leader_id >= 0 else "none is active"
        facts["controllers"] = f"{leader}, epoch {quorum.leader_epoch}, voters {voters}"
    facts["brokers"] = f"{len(cluster.alive)} alive: {', '.join(map(str, cluster.alive))}"
    facts["partitions"] = f"{cluster.partitions.count} in {counted(len(cluster.partitions.topics), 'topic')}"
    if cluster.groups:
        largest = max(cluster.groups, key=lambda each: each.lag)
        facts["groups"] = f"{len(cluster.groups)}, the largest lag is {largest.lag} ({largest.group})"
    if cluster.not_copied:
        count = sum(each or 0 for each in cluster.not_copied.values())
        facts["tier"] = (
            f"{counted(len(cluster.not_copied), 'tiered partition')}, "
            f"{counted(count, 'record')} {'is' if count == 1 else 'are'} not copied yet"
        )
    return facts


def sentence_of(cluster: Cluster, reasons: Sequence[Reason]) -> str:
    """The health of a cluster as one sentence.

    >>> sentence_of(Cluster(cluster_id="c", alive=[1]), [])
    'Healthy: 1 broker is alive, and 0 partitions have all replicas in sync.'
    """
    level = level_of(reasons).name.capitalize()
    if reasons:
        return f"{level}: {'; '.join(each.text for each in reasons)}."
    parts = [f"{counted(len(cluster.alive), 'broker')} {'is' if len(cluster.alive) == 1 else 'are'} alive"]
    if cluster.quorum is not None:
        count = len(cluster.quorum.current_voters)
        parts.append(f"controller {cluster.quorum.leader_id} is active with {counted(count, 'voter')}")
    count = cluster.partitions.count
    parts.append(f"and {counted(count, 'partition')} {'has' if count == 1 else 'have'} all replicas in sync")
    return f"{level}: {', '.join(parts)}."


def status_row(cluster: Cluster) -> dict[str, Any]:
    """The object of `ottla cluster status --json`."""
    reasons = reasons_of(cluster)
    quorum = cluster.quorum
    return {
        "kind": "status",
        "level": level_of(reasons).name.lower(),
        "sentence": sentence_of(cluster, reasons),
        "reasons": [{"level": each.level.name.lower(), "text": each.text} for each in reasons],
        "cluster_id": cluster.cluster_id,
        "brokers": {"alive": list(cluster.alive), "fenced": list(cluster.fenced), "missing": cluster.missing},
        "controller": None if quorum is None or quorum.leader_id < 0 else quorum.leader_id,
        "voters": [] if quorum is None else [each.replica_id for each in quorum.current_voters],
        "partitions": cluster.partitions.count,
        "groups": [
            {"group": each.group, "lag": each.lag, "members": each.members_count} for each in cluster.groups
        ],
        "not_copied": None
        if not cluster.not_copied
        else sum(each or 0 for each in cluster.not_copied.values()),
    }

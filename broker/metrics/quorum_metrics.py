"""Metrics of the metadata quorum (raft-metrics, broker-metadata-metrics) and of its controller (KafkaController).

The controller's counts are shown by the active controller and by standby ones, from the image that each of them has.

Source: KafkaRaftMetrics, BrokerServerMetrics, QuorumControllerMetrics and ControllerMetadataMetrics of Kafka 4.3.1.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol
from uuid import UUID

from ottla.broker.metrics.families import Family, Reading, exporter, kafka, one
from ottla.metadata.image import LeaderRecoveryState, MetadataDelta, MetadataImage
from ottla.runtime.windows import IdleRatio, WindowedMax, WindowedSum


class Elections(Protocol):
    """The elections in which this node has stood, `ottla.controller.quorum.election_times`."""

    count: int
    total_ms: float
    #: The longest of the last ones, in ms.
    max_ms: WindowedMax


class Progress(Protocol):
    """The records that this node appends and fetches, `ottla.controller.quorum.log_progress`."""

    appended: WindowedSum
    fetched: WindowedSum
    #: Milliseconds for each record.
    commit_ms: WindowedSum
    commit_max_ms: WindowedMax


class Quorum(Protocol):
    """This node's replica of the metadata log, `ottla.controller.quorum.raft_client`, as the metrics read it."""

    @property
    def leader(self) -> tuple[int | None, int]:
        """The leader's id (None while none is known) and the leader epoch."""

    @property
    def role_name(self) -> str:
        """The present role of this node in Raft, by its name."""

    @property
    def is_voter(self) -> bool:
        """Whether this node is a voter."""

    @property
    def high_watermark(self) -> int | None:
        """The high watermark of the metadata log; None: not known yet."""

    @property
    def end_offset(self) -> int:
        """The log end offset of the metadata log, exclusive."""

    @property
    def elections(self) -> Elections:
        """The times of the elections in which this node has stood."""

    @property
    def progress(self) -> Progress:
        """The records that this node appends and fetches, and the times of commits."""

    @property
    def idle(self) -> IdleRatio:
        """The part of the time in which Raft waits for events."""

    @property
    def voted_id(self) -> int | None:
        """The node that this one has voted for in the present epoch; None: for none."""

    @property
    def unknown_voter_count(self) -> int:
        """The voters whose address this node does not know."""

    @property
    def applied_offset(self) -> int:
        """The end offset of the records of which this node's listeners were notified, exclusive."""


class ActiveController(Protocol):
    """The controller of this node, `ottla.controller.controller`, as the metrics read it."""

    @property
    def is_active(self) -> bool:
        """Whether the controller leads the quorum."""

    @property
    def image(self) -> MetadataImage:
        """The image of the metadata on which the controller decides."""


def quorum_families(quorum: Quorum) -> Sequence[Family]:
    """Return the metrics of Raft, and of the metadata that this node has applied."""
    raft, metadata = "kafka.server:type=raft-metrics", "kafka.server:type=broker-metadata-metrics"

    def state() -> Iterable[Reading]:
        role = quorum.role_name
        # As the rule of the JMX exporter's example for an attribute that is a text.
        return [({"state": role if quorum.is_voter or role != "follower" else "observer"}, 1)]

    return [
        kafka(raft, "The role of this node in the metadata quorum, as a label.", state,
              attribute="current-state-info"),
        kafka(raft, "The leader's id; -1 while none is known.",
              one(lambda: -1 if quorum.leader[0] is None else quorum.leader[0]), attribute="current-leader"),
        kafka(raft, "The epoch of the quorum.", one(lambda: quorum.leader[1]), attribute="current-epoch"),
        kafka(raft, "The exclusive end of the committed records; -1 while this node does not know it.",
              one(lambda: -1 if quorum.high_watermark is None else quorum.high_watermark),
              attribute="high-watermark"),
        kafka(raft, "The offset of the metadata log's next record on this node.", one(lambda: quorum.end_offset),
              attribute="log-end-offset"),
        kafka(raft, "Milliseconds from this node's candidacy until a leader was known, on average since the start.",
              one(lambda: quorum.elections.total_ms / quorum.elections.count if quorum.elections.count else 0.0),
              attribute="election-latency-avg"),
        kafka(raft, "The longest of these times in the last 30 to 60 seconds.",
              one(lambda: quorum.elections.max_ms.read()), attribute="election-latency-max"),
        kafka(raft, "The node that this one has voted for in the present epoch; -1: for none.",
              one(lambda: -1 if quorum.voted_id is None else quorum.voted_id), attribute="current-vote"),
        kafka(raft, "Voters whose address this node does not know.", one(lambda: quorum.unknown_voter_count),
              attribute="number-unknown-voter-connections"),
        kafka(raft, "Records of metadata that this node appends as the leader, a second, in the last 30 to 60 seconds.",
              one(lambda: quorum.progress.appended.rate()), attribute="append-records-rate"),
        kafka(raft, "Records of metadata that this node fetches, a second, in the last 30 to 60 seconds.",
              one(lambda: quorum.progress.fetched.rate()), attribute="fetch-records-rate"),
        kafka(raft, "Milliseconds from the append of a batch by this leader until its commit, for each record: the "
              "average of the last 30 to 60 seconds.",
              one(lambda: quorum.progress.commit_ms.mean()), attribute="commit-latency-avg"),
        kafka(raft, "The longest of these times.", one(lambda: quorum.progress.commit_max_ms.read()),
              attribute="commit-latency-max"),
        kafka(raft, "The part of the last minute in which Raft waited for events, and neither decided nor waited for "
              "the disk.", one(lambda: quorum.idle.read()), attribute="poll-idle-ratio-avg"),
        kafka(metadata, "The last offset of the metadata log that this node has applied; -1 before the first.",
              one(lambda: quorum.applied_offset - 1), attribute="last-applied-record-offset"),
    ]  # fmt: skip


class ControllerTable:
    """The metrics of KafkaController, and the counts that they show."""

    def __init__(self, quorum: Quorum, controller: ActiveController) -> None:
        self._quorum = quorum
        self._controller = controller
        self._partitions = self._offline = self._unpreferred = 0
        self._unclean_elections = 0
        #: Partition, by topic id and index -> the leader epoch of the unclean election that was counted last.
        self._recovering: dict[tuple[UUID, int], int] = {}

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Count the unclean elections among the changes: their leaders have not recovered yet.

        Only as the active controller: a node that starts replays those of the past.
        """
        if not self._controller.is_active:
            return
        for topic_id, indexes in delta.partitions_changed.items():
            for index in indexes:
                partition = image.partition(topic_id, index)
                if partition is None or partition.leader_recovery_state is not LeaderRecoveryState.RECOVERING:
                    self._recovering.pop((topic_id, index), None)
                elif partition.leader is not None and self._recovering.get((topic_id, index)) != (
                    epoch := partition.leader_epoch
                ):
                    self._recovering[topic_id, index] = epoch
                    self._unclean_elections += 1

    def prepare(self) -> Iterator[None]:
        """Count all partitions of the cluster, one topic after the other."""
        partitions = offline = unpreferred = 0
        for topic in list(self._controller.image.topics_by_id.values()):
            for partition in list(topic.partitions.values()):
                partitions += 1
                offline += partition.leader is None
                unpreferred += partition.leader != partition.replicas[0]
            yield
        self._partitions, self._offline, self._unpreferred = partitions, offline, unpreferred

    def families(self) -> Sequence[Family]:
        """Return the metrics of the cluster as its controller sees it."""
        mbean = "kafka.controller:type=KafkaController,name="

        def brokers(*, is_fenced: bool) -> int:
            return sum(each.is_fenced is is_fenced for each in self._controller.image.brokers.values())

        return [
            kafka(f"{mbean}ActiveControllerCount", "1 while this node is the active controller.",
                  one(lambda: int(self._controller.is_active))),
            kafka(f"{mbean}GlobalTopicCount", "Topics of the cluster.",
                  one(lambda: len(self._controller.image.topics_by_id))),
            kafka(f"{mbean}GlobalPartitionCount", "Partitions of the cluster.", one(lambda: self._partitions)),
            kafka(f"{mbean}OfflinePartitionsCount", "Partitions without a leader.", one(lambda: self._offline)),
            kafka(f"{mbean}PreferredReplicaImbalanceCount", "Partitions that their preferred replica does not lead.",
                  one(lambda: self._unpreferred)),
            kafka(f"{mbean}ActiveBrokerCount", "Brokers that are registered and unfenced.",
                  one(lambda: brokers(is_fenced=False))),
            kafka(f"{mbean}FencedBrokerCount", "Brokers that are registered and fenced.",
                  one(lambda: brokers(is_fenced=True))),
            kafka("kafka.controller:type=ControllerStats,name=UncleanLeaderElectionsPerSec",
                  "Unclean elections of leaders, by this node as the active controller.",
                  one(lambda: self._unclean_elections), attribute="Count"),
            exporter("brokers", "Unfenced brokers; by the active controller only.",
                     one(lambda: brokers(is_fenced=False) if self._controller.is_active else None)),
            kafka(f"{mbean}LastAppliedRecordOffset", "The last offset that this controller has applied.",
                  one(lambda: self._quorum.applied_offset - 1)),
            kafka(f"{mbean}LastCommittedRecordOffset", "The last offset of the metadata log that is committed.",
                  one(lambda: -1 if self._quorum.high_watermark is None else self._quorum.high_watermark - 1)),
        ]  # fmt: skip

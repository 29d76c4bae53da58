"""Bugs planted on purpose: a simulation that does not find them is no test. Each is a patch of one rule.

Which story finds it, by what, and within how many seeds, is in MUTANTS; `test_a_planted_bug_is_found` of
`test_cluster_simulation` holds the simulation to it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from cluster_blackout_mutants import metadata_of_copies_are_not_flushed
from cluster_configuration_mutants import (
    a_compacted_default_ends_tiering,
    total_retention_without_delete,
)
from cluster_group_mutants import commits_are_not_fenced, offsets_outlive_their_topic
from cluster_local_log_mutants import local_retention_changes_no_row
from cluster_tier_mutants import (
    copied_before_it_is_finished,
    copies_are_read_to_their_end,
    copies_of_any_epoch_count,
    copies_of_older_epochs_are_lost,
    deleted_topics_keep_their_copies,
    log_start_after_the_deletion,
    lost_branches_go_while_replicas_have_them,
    lost_branches_stay,
    one_transaction_index_is_read,
    the_remote_end_outlives_a_truncation,
    transactions_in_the_order_of_their_producers,
    undecided_segments_are_copied,
    what_is_remote_only_is_not_tiered,
)
from cluster_voter_mutants import (
    a_removed_leader_goes_on,
    snapshots_lack_a_voter,
    voters_change_before_the_last_change_is_committed,
)

from ottla.broker.groups import shard_runtime
from ottla.broker.groups.loader import ReplicaLog
from ottla.broker.groups.log_state import LogState
from ottla.broker.groups.resuming import Resumable
from ottla.broker.replicas.cluster_view import ClusterView
from ottla.broker.replicas.following.partition_fetch_states import key_of
from ottla.broker.replicas.following.replica_fetcher import ReplicaFetcher
from ottla.broker.replicas.leading.delayed_produce import PartitionStatus
from ottla.broker.replicas.partition import Partition
from ottla.broker.replicas.partition_leader import PartitionLeader
from ottla.broker.replicas.replica_manager import ReplicaManager
from ottla.controller.partitions import leader_and_isr_updates
from ottla.replication.follower import Action, Follower
from ottla.replication.follower_states import Transitions
from ottla.replication.leader_state import NO_BROKER_EPOCH, FollowerProgress, LeaderState
from ottla.runtime import Pool
from ottla.runtime.simulated import SimulatedRuntime
from ottla.storage import log_reader
from ottla.storage.fast_append import FastAppend
from ottla.storage.files import Files
from ottla.storage.log import AppendInfo, Log
from ottla.storage.segment import Segment
from ottla.stories.partition.replica_bugs import (
    expansion_before_the_epoch_start,
    followers_serve_all_that_they_have,
    no_epoch_without_records,
)
from ottla.stories.partition.tier_bugs import (
    local_retention_does_not_wait_for_copies,
    objects_before_the_metadata,
    unfinished_copies_are_forgotten,
)

Patch = Callable[[], Any]


@contextmanager
def truncate_to_high_watermark() -> Iterator[None]:
    """Truncate followers to their own high watermark without a request for epochs, as before KIP-101."""

    def follow(self: Follower, leader_epoch: int) -> Action | None:
        if leader_epoch == self.leader_epoch:
            return None
        self.leader_epoch = leader_epoch
        kept = min(self._log.high_watermark, self._log.log_end_offset)
        return self._truncate_to(Transitions.NEW_EPOCH_WITHOUT_ONE, kept)

    with (
        patch.object(Follower, "follow", follow),
        patch.object(Partition, "diverging_epoch", lambda self, **_: None),
    ):
        yield


@contextmanager
def offsets_of_an_older_epoch_count() -> Iterator[None]:
    """A broker that leads again remembers how far its followers were when it led before."""
    begin = Partition._begin_leader_epoch
    remembered: dict[Partition, dict[int, FollowerProgress]] = {}

    def begin_with_memories(self: Partition) -> None:
        begin(self)
        assert self.leader is not None
        for replica, old in remembered.get(self, {}).items():
            if replica in self.leader.state.followers:
                old.leader_epoch = self.leader.state.epoch  # an assertion would find it otherwise
                self.leader.state.followers[replica] = old
        remembered[self] = self.leader.state.followers

    with patch.object(Partition, "_begin_leader_epoch", begin_with_memories):
        yield


@contextmanager
def high_watermark_by_the_committed_isr() -> Iterator[None]:
    """The high watermark does not wait for a replica that is about to join."""

    def high_watermark_candidate(
        self: LeaderState, *, log_end_offset: int, min_isr: int, now_ms: int
    ) -> int | None:
        if len(self.isr) < min_isr:
            return None
        ends = [self.followers[replica].log_end_offset for replica in self.isr if replica in self.followers]
        return None if None in ends else min([log_end_offset, *(end for end in ends if end is not None)])

    with (
        patch.object(LeaderState, "high_watermark_candidate", high_watermark_candidate),
        patch.object(LeaderState, "maximal_isr", property(lambda self: self.isr)),
    ):
        yield


@contextmanager
def high_watermark_by_the_proposed_isr() -> Iterator[None]:
    """The high watermark does not wait for a replica that is about to leave."""
    with patch.object(LeaderState, "maximal_isr", property(lambda self: self.proposed_isr or self.isr)):
        yield


@contextmanager
def answers_of_an_older_epoch_are_appended() -> Iterator[None]:
    """Append records of a response from a former leader."""

    def unfollow(self: ReplicaFetcher, partition: Partition) -> None:
        fetch_state = self._states.get(key_of(partition))
        if fetch_state is not None:
            fetch_state.is_removed = True
            self._states.update(fetch_state)

    with patch.object(ReplicaFetcher, "unfollow", unfollow):
        yield


@contextmanager
def stale_broker_epochs_in_the_isr() -> Iterator[None]:
    """A broker that restarted since its last Fetch counts as caught up (before KIP-903)."""

    def is_isr_eligible(self: ClusterView, broker_id: int, broker_epoch: int | None) -> bool:
        broker = self._metadata.broker(broker_id)
        return broker is not None and broker.is_active

    def members(self: LeaderState, *, own_broker_epoch: int) -> list[tuple[int, int]]:
        own = {self.node_id: own_broker_epoch}
        return [(each, own.get(each, NO_BROKER_EPOCH)) for each in sorted(self.proposed_isr or ())]

    with (
        patch.object(ClusterView, "is_isr_eligible", is_isr_eligible),
        patch.object(LeaderState, "proposed_members", members),
    ):
        yield


@contextmanager
def writes_in_the_epoch_before() -> Iterator[None]:
    """A leader's records bear the epoch of its predecessor."""
    append, append_fast = Log.append_as_leader, FastAppend.append_as_leader
    assign = Log.assign_epoch

    def is_metadata(log: Log) -> bool:
        return log.topic_partition.topic == "__cluster_metadata"

    def assign_in_metadata(self: Log, epoch: int, *, start_offset: int) -> None:
        if is_metadata(self):
            assign(self, epoch, start_offset=start_offset)

    def append_late(self: Log, records: Any, *, leader_epoch: int, **others: Any) -> AppendInfo:
        late = 0 if is_metadata(self) else 1
        return append(self, records, leader_epoch=max(leader_epoch - late, 0), **others)

    def append_fast_late(self: FastAppend, records: Any, *, leader_epoch: int, **others: Any) -> int | None:
        return append_fast(self, records, leader_epoch=max(leader_epoch - 1, 0), **others)

    with (
        patch.object(Log, "append_as_leader", append_late),
        patch.object(FastAppend, "append_as_leader", append_fast_late),
        patch.object(Log, "assign_epoch", assign_in_metadata),
    ):
        yield


@contextmanager
def acks_all_is_answered_at_once() -> Iterator[None]:
    """The leader's own append is enough."""
    with patch.object(PartitionLeader, "is_committed", lambda self, end_offset: True):
        yield


@contextmanager
def an_offset_is_all_that_is_waited_for() -> Iterator[None]:
    """A broker that leads again counts offsets of its earlier leadership as reached."""

    with patch.object(Partition, "leader_since", lambda self, leader_epoch: self.as_leader()):
        yield


@contextmanager
def no_condition_is_checked_before_it_waits() -> Iterator[None]:
    """Delay a request without a check of its condition, so that an earlier signal is lost."""
    is_complete = PartitionStatus.is_complete
    parked: dict[PartitionStatus, None] = {}

    def is_complete_later(self: PartitionStatus) -> bool:
        if self in parked:
            return is_complete(self)
        parked[self] = None
        return False

    with patch.object(PartitionStatus, "is_complete", is_complete_later):
        yield


@contextmanager
def consumers_see_the_log_end() -> Iterator[None]:
    """A leader's high watermark is where its log ends."""
    with patch.object(
        LeaderState, "high_watermark_candidate", lambda self, *, log_end_offset, **_: log_end_offset
    ):
        yield


@contextmanager
def one_pool_for_everything() -> Iterator[None]:
    """Cold reads, validation and upkeep have the eight threads in which Raft votes and flushes."""
    run_blocking = SimulatedRuntime.run_blocking

    async def run_in_one(self: SimulatedRuntime, function: Any, *args: object, pool: Pool) -> Any:
        return await run_blocking(self, function, *args, pool=Pool.READS)

    with patch.object(SimulatedRuntime, "run_blocking", run_in_one):
        yield


@contextmanager
def a_replay_goes_on_whatever_the_log_says() -> Iterator[None]:
    """A coordinator that leads again keeps what it had loaded, though its log was truncated meanwhile."""
    with patch.object(Resumable, "is_of", lambda self, log: True):
        yield


@contextmanager
def a_load_that_is_broken_off_counts_as_complete() -> Iterator[None]:
    """A coordinator that leads again goes on from the end of its log."""
    keep = shard_runtime.resumable

    def keep_early(state: LogState, log: ReplicaLog) -> Resumable | None:
        state.next_offset = log.log_end_offset
        return keep(state, log)

    with patch.object(shard_runtime, "resumable", keep_early):
        yield


@contextmanager
def threads_lend_slices() -> Iterator[None]:
    """A read in a thread maps the file that the loop replaces, and takes slices of the mapping that the
    loop gives back.
    """

    def read_in_thread(segment: Segment, offset: int, *, max_bytes: int, files: Files) -> None:
        segment.reader.read(offset, max_bytes=max_bytes, min_one_message=True, lend=True)

    with patch.object(log_reader, "warm_up", read_in_thread):
        yield


class Mutant(NamedTuple):
    """A bug, and the story that finds it: by one of these seeds, as this invariant or error."""

    plant: Patch
    story: str
    seeds: Sequence[int]
    found_by: str


#: From the first seed that finds it on; more of them, since any change of the code gives the seeds other stories.
@contextmanager
def a_clean_stop_is_enough() -> Iterator[None]:
    """A replica stays in ISR and ELR without its log directory, if its broker has stopped cleanly (as in
    Kafka), and the broker does not mind.
    """
    with (
        patch.object(leader_and_isr_updates, "remove_replicas_without_directory", lambda *_: []),
        patch.object(ReplicaManager, "is_eligible_without_directory", lambda _: False),
    ):
        yield


MUTANTS = [
    Mutant(voters_change_before_the_last_change_is_committed, "voters", range(10, 24), "OneChangeAtATime"),
    Mutant(a_removed_leader_goes_on, "voters", range(20), "RemovedLeaderResigns"),
    Mutant(snapshots_lack_a_voter, "voters", range(16, 30), "OneChangeAtATime"),
    Mutant(commits_are_not_fenced, "group_blackouts", range(1, 12), "FencedMembersDoNotCommit"),
    Mutant(offsets_outlive_their_topic, "group_blackouts", range(2, 14), "DeletedOffsetsStayDeleted"),
    Mutant(truncate_to_high_watermark, "late_words", range(3, 20), "StrongIsr"),
    Mutant(high_watermark_by_the_committed_isr, "bad_network", range(2, 20), "ReplicationQuorumSuperset"),
    Mutant(high_watermark_by_the_proposed_isr, "bad_network", range(2, 20), "ReplicationQuorumSuperset"),
    Mutant(expansion_before_the_epoch_start, "restless", range(5, 30), "AssertionError in propose"),
    Mutant(followers_serve_all_that_they_have, "crashes", range(20), "HighWatermarkIsCommitted"),
    Mutant(consumers_see_the_log_end, "crashes", range(20), "StrongIsr"),
    Mutant(acks_all_is_answered_at_once, "restless", range(20), "AcknowledgedIsCommitted"),
    Mutant(offsets_of_an_older_epoch_count, "late_words", range(4, 20), "StrongIsr"),
    Mutant(answers_of_an_older_epoch_are_appended, "late_words", range(20), "ValidFetcherState"),
    Mutant(no_epoch_without_records, "late_words", range(3, 20), "HighWatermarkNeverMovesBack"),
    Mutant(writes_in_the_epoch_before, "late_words", range(3, 20), "which has named"),
    Mutant(an_offset_is_all_that_is_waited_for, "parked", range(20), "AcknowledgedIsCommitted"),
    Mutant(no_condition_is_checked_before_it_waits, "parked", range(20), "NoSignalIsLost"),
    Mutant(threads_lend_slices, "slow_reads", range(10), "AssertionError in lend"),
    Mutant(one_pool_for_everything, "slow_reads", range(10), "NoLeaderIsDeposed"),
    Mutant(a_replay_goes_on_whatever_the_log_says, "groups", range(20), "LoadedIsTheLog"),
    Mutant(a_load_that_is_broken_off_counts_as_complete, "groups", range(20), "LoadedIsTheLog"),
    Mutant(a_clean_stop_is_enough, "left_directories", range(4, 14), "StrongIsr"),
    Mutant(stale_broker_epochs_in_the_isr, "amnesia", range(12, 40), "StrongIsr"),
    Mutant(local_retention_changes_no_row, "tiered", range(1, 10), "EventuallyLocalLogsAreKnown"),
    Mutant(local_retention_does_not_wait_for_copies, "tiered", range(10), "AssertionError in _remove"),
    Mutant(copied_before_it_is_finished, "tiered", range(10), "RemoteEndIsCopied"),
    Mutant(what_is_remote_only_is_not_tiered, "tiered", range(1, 10), "BoundsAreInOrder"),
    Mutant(log_start_after_the_deletion, "tiered", range(10), "NeededCopiesStay"),
    Mutant(unfinished_copies_are_forgotten, "tiered", range(9, 20), "EventuallyCopiesAreDecided"),
    Mutant(objects_before_the_metadata, "tiered", range(10), "FinishedCopiesStay"),
    Mutant(deleted_topics_keep_their_copies, "tiered", range(10), "NothingIsOrphaned"),
    Mutant(undecided_segments_are_copied, "tiered_transactions", range(10), "CopiesAreDecided"),
    Mutant(one_transaction_index_is_read, "tiered_transactions", range(10), "IsolatedRead"),
    Mutant(transactions_in_the_order_of_their_producers, "tiered_transactions", range(1, 5), "IsolatedRead"),
    Mutant(copies_are_read_to_their_end, "tiered_branches", range(1, 15), "-poll"),
    Mutant(copies_of_any_epoch_count, "tiered_branches", range(1, 10), "RemoteEndIsCopied"),
    Mutant(a_compacted_default_ends_tiering, "tiered_configurations", range(2, 12), "LogStartIsTheLeaders"),
    Mutant(total_retention_without_delete, "tiered_configurations", range(10), "LogStartIsTheLeaders"),
    Mutant(copies_of_older_epochs_are_lost, "tiered", range(10), "NeededCopiesStay"),
    Mutant(lost_branches_stay, "tiered_branches", range(1, 10), "LostBranchesAreDeleted"),
    Mutant(lost_branches_go_while_replicas_have_them, "tiered_returns", range(5), "NoHoleBetweenTiers"),
    Mutant(
        the_remote_end_outlives_a_truncation, "tiered_branches", range(20, 30), "AssertionError in _check"
    ),
    Mutant(
        metadata_of_copies_are_not_flushed, "tiered_blackouts", range(2, 12), "NoCommittedRecordLostGlobally"
    ),
]

"""Follower replica of one partition: its requests to the leader, and its actions on responses. No I/O, no clock.

    TRUNCATING  FETCHING  LOCATING  LOCATING_LOCAL  BUILDING_REMOTE_LOG_AUX  CONFIRMING_COPY  FENCED  FAILED

`ottla.replication.follower_states` has the states, and the table of transitions that this module executes.

The point of divergence is found by KIP-101's rule with KIP-279's correction, detected in the Fetch itself as in
KIP-595: each fetch names the epoch of the last record (`last_fetched_epoch`). If that epoch ends elsewhere in the
leader's log, the leader returns its own largest epoch that is not newer, and that epoch's end offset. If the follower
knows that epoch, it truncates to where both logs have it. If not, it truncates to the end of its next older epoch,
and the next fetch names that one. An example with two fast leader changes (KIP-279); offset ranges in brackets:

    our log      e0 [0, 10)   e1 [10, 15)       -> Fetch offset 15, last fetched epoch 1
    the leader's e0 [0, 8)    e2 [8, 20)        <- diverging: epoch 0, end offset 8 (it has no epoch 1)
    our log      e0 [0, 8)                      -> Fetch offset 8, last fetched epoch 0
                                                <- records 8 to 19 of e2

The high watermark does not determine what may be kept: truncating to it loses records (KIP-101, scenario 1) or keeps
records that no other replica has (scenario 2). `tests/scenario/lineage` has both, step by step.

Two of the four rules from the TLA+ model of KIP-320 are kept and asserted here; the others are the leader's
(`leadership`).

1. In every epoch the log is reconciled with the leader's before anything is appended (`_assert_reconciled`).
2. That step is fenced, too: a response to a request of an older epoch is ignored (`_is_current`; the partition
   asserts it for what is appended).

What restarts after the remote tier is in `remote_log_aux`. A follower is empty (KIP-1023) if it has no record
in either tier: also one that has just been truncated fully, to start at its leader's log start. For Kafka's
only a log that ends at 0 is.

A log with local segments from offset 6 on, whose records
diverge at offset 3, has none that the leader has. It is not truncated to 3: then its log would start there,
and the tiered records before would be lost with the old leader (Kafka 4.3.1). It begins again at the leader's
log start, as an empty one.

Source: KIP-101, 279, 320, 405, 595, 1023; AbstractFetcherThread, TierStateMachine of Kafka 4.3.1. Where the
leader's log covers ours but no longer has the epoch of our end, Kafka's follower retries the same fetch
indefinitely; here it truncates fully and restarts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, assert_never

from ottla.protocol.hot.fetch import Records
from ottla.replication.follower_states import ReplicaState, Transition, Transitions
from ottla.replication.remote_log_aux import (
    BuildRemoteLogAux,
    EpochEnd,
    FetchEpochEnd,
    FetchLeaderOffsets,
    LeaderOffsets,
)
from ottla.replication.replica_rules import truncation_offset

_new_tuple = tuple.__new__


class LocalOffsets(Protocol):
    """The offsets of a follower's own log. Attributes of an object of their own: each round reads most of them."""

    @property
    def log_start_offset(self) -> int:
        """The earliest offset, in either tier."""

    @property
    def local_log_start_offset(self) -> int:
        """The earliest offset in local segments."""

    @property
    def high_watermark(self) -> int:
        """The last high watermark that a leader has reported, limited to this log."""

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""

    @property
    def first_gap_offset(self) -> int | None:
        """The offset from which a crash may have lost records in the middle of the log; None: nowhere."""


class LocalEpochs(Protocol):
    """The leader epochs of a follower's own log."""

    @property
    def latest_epoch(self) -> int | None:
        """The leader epoch of the last record; None in a log that has none."""


class LocalLog(Protocol):
    """The follower's view of its own log."""

    @property
    def offsets(self) -> LocalOffsets:
        """The log's start offset, end offset and high watermark; always the same object."""

    @property
    def leader_epochs(self) -> LocalEpochs:
        """The log's leader epochs; always the same object."""

    def epoch_for_offset(self, offset: int) -> int | None:
        """The leader epoch of the record at `offset`; None where it is unknown."""

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int] | None:
        """(largest known epoch <= `epoch`, its end offset, exclusive); None: `epoch` is newer than all known ones."""


# -- requests ------------------------------------------------------------------------------------------
# What each round has, is a tuple: 0.15 us to build instead of 0.5 to 0.7.


class FetchRecords(NamedTuple):
    """One partition's row of a Fetch request."""

    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int | None
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchBounds:
    """Asks where the leader's log starts and ends: one row in each of two ListOffsets requests."""

    leader_epoch: int


FollowerRequest = FetchRecords | FetchBounds | FetchLeaderOffsets | FetchEpochEnd


# -- actions on the log --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateTo:
    """Remove everything from `offset` on; then call `on_truncated`."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateFullyAndStartAt:
    """Remove everything, and continue at `offset`; then call `on_truncated`."""

    offset: int


class Append(NamedTuple):
    """Append the leader's batches, adopt its high watermark and log start offset; then call `on_appended`."""

    leader_epoch: int
    #: The other fields are those of `Records`.
    records: memoryview
    high_watermark: int
    log_start_offset: int


assert Append._fields[1:] == Records._fields

Action = TruncateTo | TruncateFullyAndStartAt | Append | BuildRemoteLogAux


# -- responses -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The leader's largest epoch <= the follower's last fetched epoch, and that epoch's end offset (exclusive)."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Log start offset and log end offset of the leader."""

    log_start_offset: int
    log_end_offset: int


class Follower:
    """A follower replica's state machine: its requests to the leader, and its actions on the responses.

    The caller executes each action before it asks for the next request (`next_request`).
    """

    __slots__ = (
        "_building",
        "_epochs",
        "_is_superseded",
        "_log",
        "_offsets",
        "_out_of_range",
        "_out_of_range_count",
        "_prefers_last_tiered",
        "_unconfirmed_epoch",
        "fetch_offset",
        "lag",
        "last_fetched_epoch",
        "leader_epoch",
        "state",
    )

    def __init__(self, log: LocalLog, *, prefers_last_tiered: Callable[[], bool] = lambda: False) -> None:
        """`prefers_last_tiered`: whether this log, while it is empty, restarts after all that is tiered (KIP-1023)."""
        self._log = log
        self._offsets = log.offsets
        self._epochs = log.leader_epochs
        self._prefers_last_tiered = prefers_last_tiered
        self.state = ReplicaState.FENCED
        self.leader_epoch = -1
        self.fetch_offset = self._offsets.log_end_offset
        self.last_fetched_epoch = self._epochs.latest_epoch
        #: How many offsets the leader's high watermark is ahead of this log; None until the leader has answered.
        self.lag: int | None = None
        #: The last request that was out of range, and how often in a row it was.
        self._out_of_range: FetchRecords | None = None
        self._out_of_range_count = 0
        #: No record in a local segment is in the leader's log.
        self._is_superseded = False
        #: The action of BUILDING_REMOTE_LOG_AUX; and the epoch that CONFIRMING_COPY asks for.
        self._building: BuildRemoteLogAux | None = None
        self._unconfirmed_epoch: int | None = None

    # -- leadership --------------------------------------------------------------------------------

    def follow(self, leader_epoch: int) -> Action | None:
        """Follow the leader of this epoch, as the metadata log names it; the same epoch again changes nothing."""
        assert leader_epoch >= self.leader_epoch, (leader_epoch, self.leader_epoch)
        if leader_epoch == self.leader_epoch:
            return None
        self.leader_epoch = leader_epoch
        self.lag = None
        if self._epochs.latest_epoch is None:
            # Without epochs the leader cannot be asked where they end: only what is known to be committed is kept.
            kept = min(self._offsets.high_watermark, self._offsets.log_end_offset)
            return self._truncate_to(Transitions.NEW_EPOCH_WITHOUT_ONE, kept)
        self._fetch(Transitions.NEW_EPOCH)
        return None

    def next_request(self) -> FollowerRequest | None:
        """The next request to the leader; None: none for now."""
        match self.state:
            case ReplicaState.FETCHING:
                fields = (
                    self.leader_epoch,
                    self.fetch_offset,
                    self.last_fetched_epoch,
                    self._offsets.log_start_offset,
                )
                return _new_tuple(FetchRecords, fields)
            case ReplicaState.LOCATING:
                return FetchBounds(leader_epoch=self.leader_epoch)
            case ReplicaState.LOCATING_LOCAL:
                return FetchLeaderOffsets(
                    leader_epoch=self.leader_epoch, prefers_last_tiered=self._restarts_after_last_tiered()
                )
            case ReplicaState.CONFIRMING_COPY:
                assert self._unconfirmed_epoch is not None
                return FetchEpochEnd(leader_epoch=self.leader_epoch, epoch=self._unconfirmed_epoch)
            case ReplicaState.TRUNCATING | ReplicaState.BUILDING_REMOTE_LOG_AUX:
                return None
            case ReplicaState.FENCED | ReplicaState.FAILED:
                return None
            case _:
                assert_never(self.state)

    # -- responses ---------------------------------------------------------------------------------

    def on_records(self, asked: FetchRecords, answer: Records) -> Action | None:
        """The leader returns records: it has our last record, so these follow it directly."""
        if not self._is_current(asked):
            return None
        self._assert_reconciled(asked)
        if (first_gap_offset := self._offsets.first_gap_offset) is not None:
            # Only after a leader has answered: before that, this may be the only copy of the records after the gap.
            return self._truncate_to(Transitions.GAP, first_gap_offset)
        return _new_tuple(Append, (self.leader_epoch, *answer))

    def on_divergence(self, asked: FetchRecords, answer: Divergence) -> Action | None:
        """The leader's log diverges from ours before our end, maybe before our local segments begin.

        The rule (KIP-101, KIP-279) is `ottla.replication.replica_rules.truncation_offset`, which the metadata
        log uses too. It truncates to at most our log end offset, so the next fetch names an epoch that is not
        newer.
        """
        if not self._is_current(asked):
            return None
        offset = truncation_offset(
            (answer.epoch, answer.end_offset),
            self._log.end_offset_for_epoch(answer.epoch),
            log_end_offset=self._offsets.log_end_offset,
        )
        if self._is_before_local_segments(offset):
            self._is_superseded = True
            self._enter(Transitions.DIVERGED_IN_REMOTE_PART)
            return None
        return self._truncate_to(Transitions.DIVERGED, offset)

    def on_out_of_range(self, asked: FetchRecords) -> None:
        """Locate the leader's log bounds, after OFFSET_OUT_OF_RANGE.

        Our log end is not in the leader's log, or the leader does not know our last epoch.
        """
        if self._is_current(asked):
            self._enter(Transitions.OUT_OF_RANGE)
            self._out_of_range_count = self._out_of_range_count + 1 if asked == self._out_of_range else 1
            self._out_of_range = asked

    def on_bounds(self, asked: FetchBounds, answer: Bounds) -> Action | None:
        """Continue from an offset within the leader's log.

        After an unclean election we may have records after the leader's log end: they are truncated. If the
        leader's log has grown past our end since, the next fetch finds the records that differ, since it names
        our last epoch.
        """
        if asked.leader_epoch != self.leader_epoch or self.state is not ReplicaState.LOCATING:
            return None
        end = self._offsets.log_end_offset
        if answer.log_end_offset < end and not self._is_superseded:
            if not self._is_before_local_segments(answer.log_end_offset):
                return self._truncate_to(Transitions.LEADER_ENDS_BEFORE, answer.log_end_offset)
            self._is_superseded = True
        sound_end, _ = self._sound_end()
        if answer.log_start_offset > sound_end or self._out_of_range_count > 1 or self._is_superseded:
            # A second refusal is due to the epoch, not the offset: our last epoch ended before the leader's log
            # start, so none of our records of that epoch from there on is in the leader's log.
            self.lag = answer.log_end_offset - answer.log_start_offset
            if answer.log_start_offset > sound_end and self._restarts_after_last_tiered():
                self._enter(Transitions.EMPTY)
                return None
            return self._truncate_fully_and_start_at(Transitions.LEADER_STARTS_AFTER, answer.log_start_offset)
        self.lag = answer.log_end_offset - sound_end
        self._fetch(Transitions.LEADER_COVERS_END)
        return None

    def on_offset_moved(self, asked: FetchRecords) -> None:
        """Locate the leader's local log start: only the remote tier has the records from our end on.

        The leader has returned OFFSET_MOVED_TO_TIERED_STORAGE.
        """
        if self._is_current(asked):
            self._enter(Transitions.TIERED)

    def on_leader_offsets(self, asked: FetchLeaderOffsets, answer: LeaderOffsets) -> Action | None:
        """Restart at the bootstrap offset; what the leader has before that is in the remote tier.

        The leader may have moved these offsets since it has refused our Fetch: only with the newest ones the next
        Fetch succeeds.
        """
        if asked.leader_epoch != self.leader_epoch or self.state is not ReplicaState.LOCATING_LOCAL:
            return None
        if answer.local_log_start_offset <= self.fetch_offset:
            self._fetch(Transitions.LOCAL_START_REACHED)
            return None
        if answer.log_start_offset >= answer.bootstrap_offset:
            return self._truncate_fully_and_start_at(Transitions.TIERED_IS_DELETED, answer.log_start_offset)
        assert answer.previous_epoch is not None, answer
        return self._build(
            Transitions.LOCAL_START_AFTER,
            BuildRemoteLogAux(
                leader_epoch=self.leader_epoch,
                log_start_offset=answer.log_start_offset,
                end_offset=answer.bootstrap_offset,
                previous_epoch=answer.previous_epoch,
                leader_ends={},
            ),
        )

    def on_epoch_end(self, asked: FetchEpochEnd, answer: EpochEnd) -> Action | None:
        """Continue to build, with the end of a copy's last epoch in the leader's log."""
        is_current = (asked.leader_epoch, asked.epoch) == (self.leader_epoch, self._unconfirmed_epoch)
        if not is_current or self.state is not ReplicaState.CONFIRMING_COPY:
            return None
        assert self._building is not None
        assert asked.epoch not in self._building.leader_ends, (asked, self._building)
        end_offset = answer.end_offset if answer.epoch == asked.epoch else None
        ends = {**self._building.leader_ends, asked.epoch: end_offset}
        return self._build(Transitions.CONFIRMED, replace(self._building, leader_ends=ends))

    def on_fenced(self, asked: FollowerRequest) -> None:
        """Stop until the metadata log names a newer leader epoch, which the leader knows (FENCED_LEADER_EPOCH)."""
        if asked.leader_epoch == self.leader_epoch:
            self._enter(Transitions.FENCED)

    # -- after an action ---------------------------------------------------------------------------

    def on_truncated(self) -> None:
        """Fetch from the new log end: the truncation is complete."""
        self._fetch(Transitions.TRUNCATED)

    def on_appended(self, done: Append) -> None:
        """Continue after the log has appended the batches, or those that it accepts
        (`Log.append_as_follower`).
        """
        if done.leader_epoch != self.leader_epoch:
            return
        requested = self.fetch_offset
        self._fetch(Transitions.APPENDED)
        assert self.fetch_offset >= requested, (self.fetch_offset, requested)
        self.lag = max(0, done.high_watermark - self.fetch_offset)

    def on_batch_before_start(self) -> None:
        """Truncate first: our empty log starts within the batch to be appended, as the leader's does.

        It restarts where that batch begins.
        """
        self._enter(Transitions.STARTS_WITHIN_BATCH)

    def on_unconfirmed_copy(self, asked: BuildRemoteLogAux, *, epoch: int) -> None:
        """The copy ends after `asked.end_offset`, in `epoch`: the leader's log may have others instead."""
        if self._is_building(asked):
            assert epoch not in asked.leader_ends, (epoch, asked)
            self._enter(Transitions.UNCONFIRMED)
            self._unconfirmed_epoch = epoch

    def on_remote_log_aux_built(self, done: BuildRemoteLogAux) -> None:
        """Fetch again, after the log has restarted behind a copy."""
        assert self._is_building(done), (self.state, done)
        self._fetch(Transitions.BUILT)

    def on_remote_log_aux_failed(self) -> None:
        """The copy could not be found or read, and the log is unchanged: the Fetch is sent again.

        Not only the copy is looked for again: meanwhile the leader may have deleted more local segments.
        """
        if self.state is ReplicaState.BUILDING_REMOTE_LOG_AUX:
            self._fetch(Transitions.NOT_BUILT)

    def on_failure(self) -> None:
        """The log cannot be written or truncated: no more requests in this epoch."""
        self._enter(Transitions.FAILED)

    # -- steps -------------------------------------------------------------------------------------

    def _is_current(self, asked: FetchRecords) -> bool:
        """Whether the response is to the request that this follower would send now (rule 2)."""
        return (
            self.state is ReplicaState.FETCHING
            and asked.leader_epoch == self.leader_epoch
            and asked.fetch_offset == self.fetch_offset
        )

    def _assert_reconciled(self, asked: FetchRecords) -> None:
        # Rule 1: the request named the epoch of our last record, and in the leader's log that epoch reaches our end.
        own_end = self._sound_end()
        assert (asked.fetch_offset, asked.last_fetched_epoch) == own_end, (asked, own_end)

    def _enter(self, transition: Transition) -> None:
        """Change the state by a row of the table, which has to begin with the present state."""
        assert self.state in transition.sources, (self.state, transition)
        self.state = transition.target

    def _truncate_to(self, transition: Transition, offset: int) -> TruncateTo:
        """Truncate to `offset`, at most to a gap: the records behind a gap are copied again."""
        self._enter(transition)
        return TruncateTo(offset=min(offset, self._sound_end()[0]))

    def _truncate_fully_and_start_at(self, transition: Transition, offset: int) -> TruncateFullyAndStartAt:
        self._enter(transition)
        return TruncateFullyAndStartAt(offset=offset)

    def _is_before_local_segments(self, offset: int) -> bool:
        """Whether `offset` is before our local segments, and the remote tier has what is before them."""
        local_log_start_offset = self._offsets.local_log_start_offset
        return offset < local_log_start_offset and self._offsets.log_start_offset < local_log_start_offset

    def _restarts_after_last_tiered(self) -> bool:
        """Whether the log is empty, and such a log restarts after all that is tiered (KIP-1023)."""
        return self._offsets.log_start_offset == self._offsets.log_end_offset and self._prefers_last_tiered()

    def _build(self, transition: Transition, action: BuildRemoteLogAux) -> BuildRemoteLogAux:
        assert action.leader_epoch == self.leader_epoch, (action, self.leader_epoch)
        assert action.log_start_offset < action.end_offset, action
        self._enter(transition)
        self._building, self._unconfirmed_epoch = action, None
        return action

    def _is_building(self, asked: BuildRemoteLogAux) -> bool:
        return self.state is ReplicaState.BUILDING_REMOTE_LOG_AUX and asked is self._building

    def _fetch(self, transition: Transition) -> None:
        self._enter(transition)
        self._is_superseded = False
        self._building = self._unconfirmed_epoch = None
        self.fetch_offset, self.last_fetched_epoch = self._sound_end()

    def _sound_end(self) -> tuple[int, int | None]:
        """The end of the part without gaps, and the epoch of its last record.

        The leader counts everything before the fetch offset as replicated, so a fetch offset is never beyond it.
        """
        offsets = self._offsets
        first_gap_offset = offsets.first_gap_offset
        if first_gap_offset is None:
            return offsets.log_end_offset, self._epochs.latest_epoch
        assert first_gap_offset <= offsets.log_end_offset, (first_gap_offset, offsets.log_end_offset)
        return first_gap_offset, self._log.epoch_for_offset(first_gap_offset - 1)

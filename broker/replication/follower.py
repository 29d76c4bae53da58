"""A follower of one partition: what it asks its leader, and what it does with the answers. No I/O, no clock.

    any         --a new leader epoch, the log has epochs--------------> FETCHING
    any         --a new leader epoch, the log has none----------------> TRUNCATING to the high watermark
    FETCHING    --records---------------------------------------------> FETCHING, from behind them
    FETCHING    --the leader's log parts from ours--------------------> TRUNCATING to where both may agree
    FETCHING    --our end is not in the leader's log------------------> LOCATING: where is the leader's log?
    LOCATING    --it ends before ours (an unclean election)-----------> TRUNCATING to its end
    LOCATING    --it begins behind our end (we were away too long)----> TRUNCATING: empty, to begin there
    LOCATING    --it covers our end-----------------------------------> FETCHING
    LOCATING    --so it did before, and the question was the same-----> TRUNCATING: empty, to begin where it does
    FETCHING    --records, and our log has a gap since a crash--------> TRUNCATING to the gap
    TRUNCATING  --truncated-------------------------------------------> FETCHING, from the log end
    any         --fenced: the leader knows a newer epoch--------------> FENCED, until the metadata log names it
    any         --the log cannot be written---------------------------> FAILED, until the next leader epoch

Where a log parts from its leader's is found as KIP-101 wants it, with the question of KIP-279 asked the way of
KIP-595: each fetch names the epoch of the last record (`last_fetched_epoch`). A leader that has another end for
that epoch answers with the largest epoch of its own that is not newer, and where it ends. If we know that epoch,
we cut our log to where both have it. If not, we cut to the end of our next older one, and the next fetch asks
again with that. Two fast changes of leaders (KIP-279), as an example; offsets in brackets, ends left out:

    our log      e0 [0, 10)   e1 [10, 15)       -> records from 15 after e1?
    the leader's e0 [0, 8)    e2 [8, 20)        <- diverging: of e1 I know nothing; my e0 ends at 8
    our log      e0 [0, 8)                      -> records from 8 after e0?
                                                <- records 8 to 19 of e2

A high watermark alone never says what may be kept: truncating to it loses records (KIP-101, scenario 1) or keeps
ones that nobody else has (scenario 2). `tests/scenario/lineage` tells both, with all steps.

Two of the four rules that the TLA+ work on KIP-320 gives are kept and asserted here; the others are the leader's
(`leadership`).

1. In every epoch the log is reconciled with the leader's before anything is appended (`_assert_reconciled`).
2. That step is fenced, too: no answer counts that was asked for in an older epoch (`_is_current`; the partition
   asserts it of what is appended).

Source: KIP-101, 279, 320, 595; AbstractFetcherThread of Kafka 4.3.1, which asks for ever where the leader's log covers
ours but has lost the epoch of our end: here that follower begins anew.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol


class ReplicaState(Enum):
    """What a follower is about; the module shows how one leads to another."""

    #: Reconciles its log with the leader's; asks for nothing meanwhile.
    TRUNCATING = auto()
    #: The only state that asks for records.
    FETCHING = auto()
    #: Asks for the bounds of the leader's log.
    LOCATING = auto()
    #: Believes in a leader epoch that is over.
    FENCED = auto()
    #: Its log takes nothing any more.
    FAILED = auto()


class LocalLog(Protocol):
    """What a follower knows of its own log."""

    @property
    def log_start_offset(self) -> int:
        """The earliest offset."""

    @property
    def high_watermark(self) -> int:
        """As far as a leader has told."""

    @property
    def log_end_offset(self) -> int:
        """Where the next record goes."""

    @property
    def latest_epoch(self) -> int | None:
        """The leader epoch of the last record; None in a log that has none."""

    @property
    def doubtful_from(self) -> int | None:
        """Where a crash may have taken records from its middle; None: nowhere."""

    def epoch_for_offset(self, offset: int) -> int | None:
        """The leader epoch of what is at `offset`; None where nothing is known."""

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int] | None:
        """(largest known epoch that is not newer, where it ends); None: it is newer than all that is known."""


# -- what a follower asks ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRecords:
    """A row of a Fetch."""

    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int | None
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskBounds:
    """Where the leader's log begins and ends: rows of two ListOffsets."""

    leader_epoch: int


Question = FetchRecords | AskBounds


# -- what it does with its log -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateTo:
    """Remove everything from `offset` on; then tell `on_truncated`."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateFullyAndStartAt:
    """Remove everything, and go on at `offset`; then tell `on_truncated`."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Append the leader's batches, take over its offsets; then tell `on_appended`."""

    leader_epoch: int
    records: memoryview
    high_watermark: int
    log_start_offset: int


Action = TruncateTo | TruncateFullyAndStartAt | Append


# -- what the leader answers ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Whole batches from the fetch offset on, perhaps none."""

    records: memoryview
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The leader's largest epoch that is not newer than the one asked for, and where it ends there."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The leader's log."""

    log_start_offset: int
    log_end_offset: int


class Follower:
    """See the module. The caller carries each action out before it asks for the next question."""

    __slots__ = (
        "_log",
        "_refusals",
        "_refused",
        "fetch_offset",
        "lag",
        "last_fetched_epoch",
        "leader_epoch",
        "state",
    )

    def __init__(self, log: LocalLog) -> None:
        self._log = log
        self.state = ReplicaState.FENCED
        self.leader_epoch = -1
        self.fetch_offset = log.log_end_offset
        self.last_fetched_epoch = log.latest_epoch
        #: How many offsets the leader's high watermark is ahead; None until the leader has answered.
        self.lag: int | None = None
        #: What was out of range the last time, and how often in a row.
        self._refused: FetchRecords | None = None
        self._refusals = 0

    # -- leadership --------------------------------------------------------------------------------

    def follow(self, leader_epoch: int) -> Action | None:
        """The metadata log names a leader for this epoch; the same epoch again changes nothing."""
        assert leader_epoch >= self.leader_epoch, (leader_epoch, self.leader_epoch)
        if leader_epoch == self.leader_epoch:
            return None
        self.leader_epoch = leader_epoch
        self.lag = None
        if self._log.latest_epoch is None:
            # Nobody can be asked where an unknown epoch ends: all that is known to be everywhere is kept.
            return self._truncate_to(min(self._log.high_watermark, self._log.log_end_offset))
        self._fetch()
        return None

    def question(self) -> Question | None:
        """What to ask the leader next; None: nothing for now."""
        match self.state:
            case ReplicaState.FETCHING:
                return FetchRecords(
                    leader_epoch=self.leader_epoch,
                    fetch_offset=self.fetch_offset,
                    last_fetched_epoch=self.last_fetched_epoch,
                    log_start_offset=self._log.log_start_offset,
                )
            case ReplicaState.LOCATING:
                return AskBounds(leader_epoch=self.leader_epoch)
            case _:
                return None

    # -- answers -----------------------------------------------------------------------------------

    def on_records(self, asked: FetchRecords, answer: Records) -> Action | None:
        """The leader has our last record, too; what comes after it, if anything does."""
        if not self._is_current(asked):
            return None
        self._assert_reconciled(asked)
        if (doubtful_from := self._log.doubtful_from) is not None:
            # Not before a leader has answered: as long as there is none, what is behind the gap may be all there is.
            return self._truncate_to(doubtful_from)
        return Append(
            leader_epoch=self.leader_epoch,
            records=answer.records,
            high_watermark=answer.high_watermark,
            log_start_offset=answer.log_start_offset,
        )

    def on_divergence(self, asked: FetchRecords, answer: Divergence) -> Action | None:
        """The leader's log parts from ours before our end (KIP-279's cases, one by one)."""
        if not self._is_current(asked):
            return None
        log_end_offset = self._log.log_end_offset
        known = self._log.end_offset_for_epoch(answer.epoch)
        if known is None:
            # Nothing is known here of that epoch or of newer ones, as in a log from before there were epochs: where it
            # ends at the leader is all there is to go by.
            return self._truncate_to(min(answer.end_offset, log_end_offset))
        epoch, end_offset = known
        if epoch == answer.epoch:
            return self._truncate_to(min(end_offset, answer.end_offset, log_end_offset))
        # We never saw that epoch: what we have behind our next older one is not in the leader's log, and of the
        # older one, the next fetch asks.
        return self._truncate_to(min(end_offset, log_end_offset))

    def on_out_of_range(self, asked: FetchRecords) -> None:
        """Our log's end is not in the leader's log, or it knows nothing of our last epoch."""
        if self._is_current(asked):
            self.state = ReplicaState.LOCATING
            self._refusals = self._refusals + 1 if asked == self._refused else 1
            self._refused = asked

    def on_bounds(self, asked: AskBounds, answer: Bounds) -> Action | None:
        """Begin where the leader's log can be joined to ours.

        An unclean election may have left us with records behind the leader's end: they go. If the leader's
        log has grown past our end since, records that differ are found by the next fetch, which names our
        last epoch.
        """
        if asked.leader_epoch != self.leader_epoch or self.state is not ReplicaState.LOCATING:
            return None
        end = self._log.log_end_offset
        if answer.log_end_offset < end:
            return self._truncate_to(answer.log_end_offset)
        sound_end, _ = self._sound_end()
        self.lag = answer.log_end_offset - max(answer.log_start_offset, sound_end)
        if answer.log_start_offset > sound_end or self._refusals > 1:
            # The second time it is not the offsets but the epoch: our last one ended before the leader's log
            # begins, so all that we have of it from there on is not the leader's.
            self.state = ReplicaState.TRUNCATING
            return TruncateFullyAndStartAt(offset=answer.log_start_offset)
        self._fetch()
        return None

    def on_fenced(self, asked: Question) -> None:
        """The leader knows a newer epoch than the one that we asked in."""
        if asked.leader_epoch == self.leader_epoch:
            self.state = ReplicaState.FENCED

    # -- after an action ---------------------------------------------------------------------------

    def on_truncated(self) -> None:
        """The log was truncated as wanted."""
        assert self.state is ReplicaState.TRUNCATING, self.state
        self._fetch()

    def on_appended(self, done: Append) -> None:
        """The batches are in the log, or those of them that it takes (`Log.append_as_follower`)."""
        if done.leader_epoch != self.leader_epoch:
            return
        assert self._log.log_end_offset >= self.fetch_offset, (self._log.log_end_offset, self.fetch_offset)
        self._fetch()
        self.lag = max(0, done.high_watermark - self.fetch_offset)

    def on_failure(self) -> None:
        """The log cannot be written or truncated: nothing more is asked in this epoch."""
        self.state = ReplicaState.FAILED

    # -- steps -------------------------------------------------------------------------------------

    def _is_current(self, asked: FetchRecords) -> bool:
        """Whether nothing has happened since that makes the answer one to another question."""
        return (
            self.state is ReplicaState.FETCHING
            and asked.leader_epoch == self.leader_epoch
            and asked.fetch_offset == self.fetch_offset
        )

    def _assert_reconciled(self, asked: FetchRecords) -> None:
        # The leader was told the epoch of our last record, and has that epoch up to our end at least.
        own_end = self._sound_end()
        assert (asked.fetch_offset, asked.last_fetched_epoch) == own_end, (asked, own_end)

    def _truncate_to(self, offset: int) -> TruncateTo:
        self.state = ReplicaState.TRUNCATING
        return TruncateTo(offset=offset)

    def _fetch(self) -> None:
        self.state = ReplicaState.FETCHING
        self.fetch_offset, self.last_fetched_epoch = self._sound_end()

    def _sound_end(self) -> tuple[int, int | None]:
        """Up to where the log surely has everything, and the epoch there: to the leader, all before it counts as had."""
        doubtful_from = self._log.doubtful_from
        if doubtful_from is None:
            return self._log.log_end_offset, self._log.latest_epoch
        return doubtful_from, self._log.epoch_for_offset(doubtful_from - 1)

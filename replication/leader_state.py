"""Leader replica: followers' progress, and from it the ISR and the high watermark candidate. No I/O, no clock.

    committed --a follower has caught up, or members have fallen behind--> proposed: AlterPartition is sent
    proposed  --the metadata log has another partition state-------------> committed, with its ISR
    proposed  --refused: not attempted, or not eligible------------------> committed, with the ISR of before
    proposed  --refused: out of date-------------------------------------> proposed, until the metadata log has more

While a proposal is pending the leader does not know which of the two ISRs is in effect. The high watermark waits for
the union of both, the *maximal* ISR (KIP-497): any replica that the controller elects from either has everything below
the high watermark.

Two of the four rules from the TLA+ model of KIP-320 are kept and asserted here; the others are the follower's
(`follower`).

3. Only fetches in this leader's own epoch move the high watermark: followers' progress is reset with each epoch
   (`high_watermark_candidate`).
4. Shrinking the ISR is safe; a replica that joins it has reached the start of this epoch (`propose`).

A follower that has restarted since its last fetch counts as another one: KIP-903 distinguishes them by broker epoch.

Source: KIP-497, KIP-841, KIP-903, KIP-966; Partition (CommittedPartitionState, PendingExpandIsr, PendingShrinkIsr) and
Replica of Kafka 4.3.1.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from ottla.protocol.local_log import LocalLog
from ottla.replication.local_log_reports import LocalLogReports
from ottla.replication.replica_rules import caught_up_ms

#: The broker epoch of a follower that sends none: the field exists since Fetch version 15.
NO_BROKER_EPOCH: Final = -1

#: (broker id, broker epoch of its fetches; None: it has not fetched) -> may it be in an ISR?
IsrEligible = Callable[[int, int | None], bool]


class FetchClock(Protocol):
    """A fetch session: shows contact with its client also while its requests have no row for this partition."""

    last_used_ms: int


@dataclass(slots=True, kw_only=True)
class FollowerProgress:
    """One follower's progress by its fetches in this epoch. Times are in ms of one clock, offsets None until known."""

    leader_epoch: int
    log_end_offset: int | None = None
    log_start_offset: int | None = None
    #: The local log that the follower's Fetch reports (draft KIP-1303); None: it reports none.
    local_log: LocalLog | None = None
    broker_epoch: int | None = None
    #: When its log was last known to reach the leader's log end offset of that time.
    caught_up_ms: int | None = None
    fetched_ms: int | None = None
    #: The leader's log end offset at its last fetch.
    leader_end_offset: int | None = None
    session: FetchClock | None = None

    def on_fetch(
        self,
        *,
        fetch_offset: int,
        log_start_offset: int,
        local_log: LocalLog | None,
        leader_end_offset: int,
        broker_epoch: int | None,
        session: FetchClock | None,
        now_ms: int,
    ) -> None:
        """Record that the follower fetches from `fetch_offset`, so that it has everything before that offset."""
        reached_ms = caught_up_ms(
            fetch_offset,
            leader_end_offset=leader_end_offset,
            now_ms=now_ms,
            previous_leader_end_offset=self.leader_end_offset,
            previous_fetch_ms=self.fetched_ms,
        )
        # A time after `now_ms` is of a clock that was set back since: it would keep a dead follower in the
        # ISR until then. Or `now_ms` is the arrival of a Fetch that is read in turns of the loop, and another
        # one came in between: the follower then counts as caught up that much earlier, milliseconds of
        # replica.lag.time.max.ms.
        if reached_ms is not None and (
            self.caught_up_ms is None or not reached_ms <= self.caught_up_ms <= now_ms
        ):
            self.caught_up_ms = reached_ms
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.local_log = local_log
        # A leader's log never shrinks within its epoch, and its followers have nothing that it lacks.
        assert fetch_offset <= leader_end_offset >= (self.leader_end_offset or 0), (
            fetch_offset, leader_end_offset, self,
        )  # fmt: skip
        self.leader_end_offset = leader_end_offset
        self.fetched_ms = now_ms
        self.broker_epoch = broker_epoch
        self.session = session

    def on_append(self, *, old_end_offset: int) -> None:
        """The leader appends at `old_end_offset`: a follower there was caught up until its session's last fetch."""
        if self.log_end_offset == old_end_offset and self.session is not None:
            self.caught_up_ms = max(self.caught_up_ms or 0, self.session.last_used_ms)

    def is_caught_up(self, leader_end_offset: int, *, now_ms: int, max_lag_ms: int) -> bool:
        """Whether it is at the leader's log end, or was within the last `max_lag_ms` (replica.lag.time.max.ms).

        Raft's observers have another rule (KIP-853, `ottla.controller.raft.follower_progress`): they have to
        have been caught up once, and to have fetched within the last hour. Commits wait for a majority there,
        here for each member.
        """
        if self.log_end_offset == leader_end_offset:
            return True
        return self.caught_up_ms is not None and now_ms - self.caught_up_ms <= max_lag_ms


class LeaderState:
    """Leader state of one partition in one leader epoch.

    Invariant: the ISR and the proposed ISR contain this broker, and else replicas in `followers` only, which never
    contains it.
    """

    __slots__ = (
        "_is_isr_eligible",
        "_isr_in_order",
        "_max_lag_ms",
        "_proposed_epochs",
        "epoch",
        "followers",
        "isr",
        "node_id",
        "proposed_isr",
        "reports",
        "start_offset",
    )

    def __init__(
        self,
        *,
        node_id: int,
        epoch: int,
        start_offset: int,
        replicas: Iterable[int],
        isr: Collection[int],
        local_logs: Mapping[int, LocalLog],
        is_isr_eligible: IsrEligible,
        max_lag_ms: int,
        now_ms: int,
    ) -> None:
        """`isr` and `local_logs` are those of the metadata log."""
        self.node_id = node_id
        self.epoch = epoch
        assert min(epoch, start_offset) >= 0, (epoch, start_offset)
        #: The first offset of this epoch.
        self.start_offset = start_offset
        self._is_isr_eligible = is_isr_eligible
        self._max_lag_ms = max_lag_ms
        #: The ISR that the controller has committed.
        self.isr = frozenset(isr)
        self._isr_in_order = tuple(isr)
        self.proposed_isr: frozenset[int] | None = None
        #: Which local logs of the ISR are to be reported (draft KIP-1303).
        self.reports = LocalLogReports(local_logs)
        #: The broker epochs of its members when it was proposed.
        self._proposed_epochs: dict[int, int | None] = {}
        # Members of the ISR have one max lag for their first fetch; other replicas do not delay the high watermark.
        self.followers = {
            replica: FollowerProgress(
                leader_epoch=epoch, caught_up_ms=now_ms if replica in self.isr else None
            )
            for replica in replicas
            if replica != node_id
        }
        self._assert_members(self.isr)

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Every replica that may be in the ISR now (KIP-497)."""
        return self.isr if self.proposed_isr is None else self.isr | self.proposed_isr

    def update(
        self, *, replicas: Iterable[int], isr: Collection[int], local_logs: Mapping[int, LocalLog]
    ) -> None:
        """The controller has committed this partition state; it decides a pending proposal."""
        self.isr = frozenset(isr)
        self._isr_in_order = tuple(isr)
        self.reports.on_image(local_logs)
        self.proposed_isr = None
        self.assign(replicas)
        self._assert_members(self.isr)

    def _assert_members(self, isr: frozenset[int]) -> None:
        """Assert the invariant that an ISR, a proposed one too, has the leader, and replicas of the partition
        only.
        """
        assert self.node_id in isr, (self.node_id, isr)
        assert isr <= self.followers.keys() | {self.node_id}, (isr, [*self.followers])

    def assign(self, replicas: Iterable[int]) -> None:
        """Set the partition's replicas; the progress of those that remain is kept."""
        known = self.followers
        self.followers = {
            replica: known.get(replica) or FollowerProgress(leader_epoch=self.epoch)
            for replica in replicas
            if replica != self.node_id
        }
        assert all(progress.leader_epoch == self.epoch for progress in self.followers.values()), (
            self.followers
        )

    # -- the ISR -----------------------------------------------------------------------------------

    def expanded(self, replica: int, *, high_watermark: int) -> frozenset[int] | None:
        """The ISR with this follower, if it may join now; None if it may not, is a member, or a proposal is pending.

        It must have everything that may be committed: all records below the high watermark and below the start of
        this epoch, since an older leader may have committed up to there and this one may not know it yet.
        """
        if self.proposed_isr is not None or replica in self.isr:
            return None
        progress = self.followers[replica]
        end = progress.log_end_offset
        if end is None or end < high_watermark or end < self.start_offset:
            return None
        return self.isr | {replica} if self._is_isr_eligible(replica, progress.broker_epoch) else None

    def expanded_by_caught_up(
        self, *, high_watermark: int, log_end_offset: int, now_ms: int
    ) -> frozenset[int] | None:
        """The ISR with a follower that caught up earlier but could not join then; None: there is none.

        A follower whose row does not change sends none within its fetch session: a follower that was delayed by another
        proposal, or by a registration not yet known here, would stay out of the ISR until the next append. One without
        a broker epoch does have to wait for that: it may have restarted since with a shorter log.
        """
        for replica, progress in self.followers.items():
            if (
                replica not in self.isr
                and progress.broker_epoch != NO_BROKER_EPOCH
                and progress.is_caught_up(log_end_offset, now_ms=now_ms, max_lag_ms=self._max_lag_ms)
                and (isr := self.expanded(replica, high_watermark=high_watermark)) is not None
            ):
                return isr
        return None

    def shrunk(self, *, log_end_offset: int, now_ms: int) -> frozenset[int] | None:
        """The ISR without the members that have fallen behind; None if there are none, or a proposal is pending."""
        if self.proposed_isr is not None:
            return None
        behind = {
            replica
            for replica in self.isr
            if replica != self.node_id
            and not (
                (progress := self.followers.get(replica)) is not None
                and progress.is_caught_up(log_end_offset, now_ms=now_ms, max_lag_ms=self._max_lag_ms)
            )
        }
        assert self.node_id not in behind, (self.node_id, behind)
        return self.isr - behind if behind else None

    def propose(self, isr: frozenset[int]) -> None:
        """Record this ISR as proposed to the controller, with the members' present broker epochs (KIP-903)."""
        assert self.proposed_isr is None, self.proposed_isr
        self._assert_members(isr)
        for replica in isr - self.isr:
            end = self.followers[replica].log_end_offset
            assert end is not None, (replica, isr)
            assert end >= self.start_offset, (replica, end, self.start_offset)
        self.proposed_isr = isr
        self._proposed_epochs = {
            replica: progress.broker_epoch for replica, progress in self.followers.items() if replica in isr
        }

    def withdraw(self) -> None:
        """The controller has refused the proposal: the committed ISR remains in effect."""
        self.proposed_isr = None

    def proposed_members(self, *, own_broker_epoch: int) -> list[tuple[int, int]]:
        """Return (broker id, broker epoch) of each member of the proposed ISR, by id.

        The epoch is -1 for a member that had sent none (KIP-903).
        The epochs are those of the proposal, also when the request is sent later or again: a member that has restarted
        since may have lost records.
        """
        assert self.proposed_isr is not None
        return _with_epochs(
            sorted(self.proposed_isr), self._proposed_epochs | {self.node_id: own_broker_epoch}
        )

    def members(self, *, own_broker_epoch: int) -> list[tuple[int, int]]:
        """Return (broker id, broker epoch) of each member of the committed ISR, in its order.

        Another order would be a change.
        """
        epochs = {replica: progress.broker_epoch for replica, progress in self.followers.items()}
        return _with_epochs(self._isr_in_order, epochs | {self.node_id: own_broker_epoch})

    def local_logs(self, isr: Iterable[int], own: LocalLog | None) -> dict[int, LocalLog]:
        """The local logs of these members, as far as they are known; `own` is this broker's (draft KIP-1303)."""
        known = {}
        for replica in isr:
            value = own if replica == self.node_id else self.followers[replica].local_log
            if value is not None:
                known[replica] = value
        return known

    # -- offsets -----------------------------------------------------------------------------------

    def high_watermark_candidate(self, *, log_end_offset: int, min_isr: int, now_ms: int) -> int | None:
        """High watermark candidate: the end offset that all relevant replicas have; None: nothing can be committed now.

        Relevant are the members of the maximal ISR, and caught-up replicas that are about to join it: otherwise a
        caught-up follower would never reach a high watermark that advances with the leader's log end. With fewer than
        `min_isr` members nothing is committed: clients would otherwise see records on fewer replicas than they
        required (KIP-966). Cost: O(replicas).
        """
        if len(self.isr) < min_isr:
            return None
        end = log_end_offset
        for replica, progress in self.followers.items():
            assert progress.leader_epoch == self.epoch, (replica, progress, self.epoch)
            reached = progress.log_end_offset
            if reached is not None and reached >= end:
                continue
            if replica in self.maximal_isr:
                if reached is None:
                    return None
                end = reached
            elif (
                reached is not None
                and progress.is_caught_up(log_end_offset, now_ms=now_ms, max_lag_ms=self._max_lag_ms)
                and self._is_isr_eligible(replica, progress.broker_epoch)
            ):
                end = reached
        assert 0 <= end <= log_end_offset, (end, log_end_offset, self.followers)
        return end

    def low_watermark(self, log_start_offset: int, *, is_alive: Callable[[int], bool]) -> int:
        """The smallest log start offset of all live replicas; DeleteRecords waits for it. -1 until all are known."""
        starts = [
            -1 if progress.log_start_offset is None else progress.log_start_offset
            for replica, progress in self.followers.items()
            if is_alive(replica)
        ]
        return min([log_start_offset, *starts])


def _with_epochs(isr: Iterable[int], epochs: Mapping[int, int | None]) -> list[tuple[int, int]]:
    return [
        (replica, NO_BROKER_EPOCH if (epoch := epochs.get(replica)) is None else epoch) for replica in isr
    ]

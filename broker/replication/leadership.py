"""What a leader knows of its followers, and decides from it: the ISR and the high watermark. No I/O, no clock.

    settled  --a follower has caught up, or members have fallen behind--> proposed: the controller is asked
    proposed --the controller grants it, or the metadata log says more--> settled, with that ISR
    proposed --refused: not attempted, or not eligible------------------> settled, with the ISR of before
    proposed --refused: something newer is on its way in the log--------> proposed, until the log brings it

While a proposal is under way nobody knows which of the two ISRs holds. The high watermark waits for both, the
*maximal* ISR (KIP-497): whoever the controller elects from either has everything below it.

Two of the four rules that the TLA+ work on KIP-320 gives are kept and asserted here; the others are the follower's
(`follower`).

3. Only what followers have told in this leader's own epoch moves the high watermark: they are forgotten with each epoch
   (`committed_end`).
4. Shrinking the ISR is safe; who joins it has reached the start of this epoch (`propose`).

A follower that has restarted since it was heard of is another one: KIP-903 tells them apart by broker epochs.

Source: KIP-497, KIP-841, KIP-903, KIP-966; Partition and Replica of Kafka 4.3.1.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

#: Of a follower that tells none: before Fetch version 15 there was no field for it.
NO_BROKER_EPOCH: Final = -1

#: (broker id, broker epoch that it fetches in; None: it has not fetched) -> may it be in an ISR?
Eligible = Callable[[int, int | None], bool]


class FetchClock(Protocol):
    """A fetch session: its client is heard of also where it has nothing new to ask."""

    last_used_ms: int


@dataclass(slots=True, kw_only=True)
class FollowerProgress:
    """One follower, as its fetches in this epoch show it. Times are in ms of one clock, offsets None until known."""

    leader_epoch: int
    log_end_offset: int | None = None
    log_start_offset: int | None = None
    broker_epoch: int | None = None
    #: When it was last known to have all that the leader had then.
    caught_up_ms: int | None = None
    fetched_ms: int | None = None
    #: The leader's log end at that fetch.
    leader_end_offset: int | None = None
    session: FetchClock | None = None

    def on_fetch(
        self,
        *,
        fetch_offset: int,
        log_start_offset: int,
        leader_end_offset: int,
        broker_epoch: int | None,
        session: FetchClock | None,
        now_ms: int,
    ) -> None:
        """It asks for what comes from `fetch_offset` on, so it has everything before that."""
        if fetch_offset >= leader_end_offset:
            self.caught_up_ms = now_ms
        elif self.leader_end_offset is not None and fetch_offset >= self.leader_end_offset:
            # All that was there at its last fetch: slower than a steady stream of small appends, but not behind.
            self.caught_up_ms = max(self.caught_up_ms or 0, self.fetched_ms or 0)
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.leader_end_offset = max(leader_end_offset, self.leader_end_offset or 0)
        self.fetched_ms = now_ms
        self.broker_epoch = broker_epoch
        self.session = session

    def on_append(self, *, old_end_offset: int) -> None:
        """The leader's log grows from here: until its last fetch, a follower that had it all was caught up."""
        if self.log_end_offset == old_end_offset and self.session is not None:
            self.caught_up_ms = max(self.caught_up_ms or 0, self.session.last_used_ms)

    def is_caught_up(self, leader_end_offset: int, *, now_ms: int, max_lag_ms: int) -> bool:
        """Whether it has everything, or had within the last `max_lag_ms` (replica.lag.time.max.ms)."""
        if self.log_end_offset == leader_end_offset:
            return True
        return self.caught_up_ms is not None and now_ms - self.caught_up_ms <= max_lag_ms


class Leadership:
    """One leader epoch of one partition, from its leader's side."""

    __slots__ = (
        "_is_eligible",
        "_max_lag_ms",
        "_proposed_epochs",
        "epoch",
        "followers",
        "isr",
        "node_id",
        "proposed_isr",
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
        is_eligible: Eligible,
        max_lag_ms: int,
        now_ms: int,
    ) -> None:
        self.node_id = node_id
        self.epoch = epoch
        #: Where the records of this epoch begin.
        self.start_offset = start_offset
        self._is_eligible = is_eligible
        self._max_lag_ms = max_lag_ms
        #: As the controller has committed it.
        self.isr = frozenset(isr)
        self.proposed_isr: frozenset[int] | None = None
        #: The broker epochs of its members when it was proposed.
        self._proposed_epochs: dict[int, int | None] = {}
        # Members have the time of one lag to be heard of; who is none does not hold up the high watermark.
        self.followers = {
            replica: FollowerProgress(
                leader_epoch=epoch, caught_up_ms=now_ms if replica in self.isr else None
            )
            for replica in replicas
            if replica != node_id
        }

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Every replica that may be in the ISR now (KIP-497)."""
        return self.isr if self.proposed_isr is None else self.isr | self.proposed_isr

    def update(self, *, replicas: Iterable[int], isr: Collection[int]) -> None:
        """The metadata log, or the controller's answer, says what holds now."""
        self.isr = frozenset(isr)
        self.proposed_isr = None
        self.assign(replicas)

    def assign(self, replicas: Iterable[int]) -> None:
        """The partition's replicas are these; what is known of those that stay is kept."""
        known = self.followers
        self.followers = {
            replica: known.get(replica) or FollowerProgress(leader_epoch=self.epoch)
            for replica in replicas
            if replica != self.node_id
        }

    # -- the ISR -----------------------------------------------------------------------------------

    def expanded(self, replica: int, *, high_watermark: int) -> frozenset[int] | None:
        """The ISR with this follower, if it may join now; None if it may not, is in, or something is proposed.

        It has to have all that may be committed: everything below the high watermark, and below the start of
        this epoch, since an older leader may have committed up to there without our knowing yet.
        """
        if self.proposed_isr is not None or replica in self.isr:
            return None
        progress = self.followers[replica]
        end = progress.log_end_offset
        if end is None or end < high_watermark or end < self.start_offset:
            return None
        return self.isr | {replica} if self._is_eligible(replica, progress.broker_epoch) else None

    def returned(self, *, high_watermark: int, log_end_offset: int, now_ms: int) -> frozenset[int] | None:
        """The ISR with a follower that has caught up before, when it could not join; None: there is none that can.

        A follower that has nothing new to ask is not heard of again within its fetch session: whoever was held up by
        another proposal, or by a registration that was not known here yet, would stay out until the next append. Who
        tells no broker epoch has to: it may have restarted since with less than it had.
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
        """The ISR without the members that have fallen behind; None if there are none, or something is proposed."""
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
        return self.isr - behind if behind else None

    def propose(self, isr: frozenset[int]) -> None:
        """The controller is being asked for this ISR, of brokers as they are now: one that restarts is another one."""
        assert self.proposed_isr is None, self.proposed_isr
        assert self.node_id in isr, isr
        for replica in isr - self.isr:
            end = self.followers[replica].log_end_offset
            assert end is not None, (replica, isr)
            assert end >= self.start_offset, (replica, end, self.start_offset)
        self.proposed_isr = isr
        self._proposed_epochs = {
            replica: progress.broker_epoch for replica, progress in self.followers.items() if replica in isr
        }

    def withdraw(self) -> None:
        """The controller has not changed anything, and will not: the ISR is what it was."""
        self.proposed_isr = None

    def proposed_members(self, *, own_broker_epoch: int) -> list[tuple[int, int]]:
        """(broker id, broker epoch) of each member of the proposal, by id; -1 where one had told none (KIP-903).

        However late the controller is asked, or how often: whoever has restarted since may lack what it had.
        """
        assert self.proposed_isr is not None

        def epoch_of(replica: int) -> int:
            epoch = own_broker_epoch if replica == self.node_id else self._proposed_epochs.get(replica)
            return NO_BROKER_EPOCH if epoch is None else epoch

        return [(replica, epoch_of(replica)) for replica in sorted(self.proposed_isr)]

    # -- offsets -----------------------------------------------------------------------------------

    def committed_end(self, *, log_end_offset: int, min_isr: int, now_ms: int) -> int | None:
        """Up to where every replica that counts has the log; None: nothing can be committed now.

        Those of the maximal ISR count, and those about to join it: who has caught up would otherwise never
        reach a high watermark that runs away with the leader. With fewer than `min_isr` members nothing is
        committed, or clients would be told of records that are on fewer replicas than they asked for (KIP-966).
        """
        if len(self.isr) < min_isr:
            return None
        end = log_end_offset
        maximal = self.maximal_isr
        for replica, progress in self.followers.items():
            assert progress.leader_epoch == self.epoch, (replica, progress, self.epoch)
            reached = progress.log_end_offset
            if reached is not None and reached >= end:
                continue
            if replica in maximal:
                if reached is None:
                    return None
                end = reached
            elif (
                reached is not None
                and progress.is_caught_up(log_end_offset, now_ms=now_ms, max_lag_ms=self._max_lag_ms)
                and self._is_eligible(replica, progress.broker_epoch)
            ):
                end = reached
        return end

    def low_watermark(self, log_start_offset: int, *, is_alive: Callable[[int], bool]) -> int:
        """The smallest log start offset of all live replicas; what DeleteRecords waits for."""
        starts = [
            -1 if progress.log_start_offset is None else progress.log_start_offset
            for replica, progress in self.followers.items()
            if is_alive(replica)
        ]
        return min([log_start_offset, *starts])

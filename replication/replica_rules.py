"""Rules for replicas of every log: a partition's (`ottla.replication`), the metadata log's (`ottla.controller.raft`).

    leader's log   e1 [0, 7)   e3 [7, 12)
    follower's log e1 [0, 5)   e2 [5, 9)     -> Fetch at offset 9, last fetched epoch 2
                                             <- has_diverged: the leader's largest epoch <= 2 is 1, which ends at 7
    follower's log e1 [0, 5)                 truncation_offset: its own epoch 1 ends at 5
                                             -> Fetch at offset 5, last fetched epoch 1

Where the two replications differ, each has its own rule, and says why: what is answered where the leader does not know
the follower's epoch at all (`Partition.diverging_epoch`, `MetadataLog.validate`); who counts as caught up
(`FollowerProgress.is_caught_up`, `ottla.controller.raft.follower_progress`).

Source: KIP-101, KIP-279, KIP-595; AbstractFetcherThread.getOffsetTruncationState, RaftLog.truncateToEndOffset,
Replica.updateFetchStateOrThrow, LeaderState.ReplicaState of Kafka 4.3.1.
"""


def has_diverged(leader_epoch_end: tuple[int, int], *, last_fetched_epoch: int, fetch_offset: int) -> bool:
    """Whether a follower's log is no prefix of the leader's.

    The follower's log ends at `fetch_offset`; its last record is of `last_fetched_epoch`.

    `leader_epoch_end` is the leader's largest epoch that is not newer than `last_fetched_epoch`, and where
    that one ends.

    >>> def diverged(leader_epoch_end: tuple[int, int]) -> bool:  # of a follower that ends with (epoch 2, offset 8)
    ...     return has_diverged(leader_epoch_end, last_fetched_epoch=2, fetch_offset=9)
    >>> diverged((2, 9)), diverged((2, 12))  # a prefix
    (False, False)
    >>> diverged((2, 8)), diverged((1, 12))  # more of epoch 2; an epoch that the leader lacks
    (True, True)
    """
    epoch, end_offset = leader_epoch_end
    return epoch != last_fetched_epoch or end_offset < fetch_offset


def truncation_offset(
    leader_epoch_end: tuple[int, int], own_epoch_end: tuple[int, int] | None, *, log_end_offset: int
) -> int:
    """Return the offset at which a follower truncates its diverged log; at most its log end offset.

    `leader_epoch_end` is what the leader has reported (`has_diverged`), `own_epoch_end` the same of the
    follower's log: its largest epoch that is not newer than the leader's, and where that one ends. None: it
    has no epochs.

    Both logs have the epoch: they agree up to the smaller end (KIP-101). The follower lacks it: nothing after its next
    older epoch is in the leader's log, and the next Fetch names that one (KIP-279). Counter-example: with the
    leader's end alone, the follower above would keep its records of epoch 2 at offsets 5 and 6. No epochs:
    the end is all that is known.

    >>> truncation_offset((1, 7), (1, 5), log_end_offset=9), truncation_offset((1, 4), (1, 5), log_end_offset=9)
    (5, 4)
    >>> truncation_offset((3, 7), (1, 5), log_end_offset=9), truncation_offset((3, 7), None, log_end_offset=9)
    (5, 7)
    """
    leader_epoch, leader_end = leader_epoch_end
    if own_epoch_end is None:
        return min(leader_end, log_end_offset)
    own_epoch, own_end = own_epoch_end
    return (
        min(own_end, leader_end, log_end_offset)
        if own_epoch == leader_epoch
        else min(own_end, log_end_offset)
    )


def caught_up_ms(
    fetch_offset: int,
    *,
    leader_end_offset: int,
    now_ms: int,
    previous_leader_end_offset: int | None,
    previous_fetch_ms: int | None,
) -> int | None:
    """Return the time at which a replica that fetches at `fetch_offset` had all of the leader's log.

    None: the time is not known from this Fetch. The replica has all of the log now, or it had it at its previous
    Fetch, if it has reached the leader's log end offset of that time. Counter-example to the first rule alone:
    under a steady stream of appends a replica fetches at 8, 10, 12, ... while the leader's log ends at 10, 12,
    14, ...: it keeps up, and is never at the present end.

    >>> before = {"previous_leader_end_offset": 10, "previous_fetch_ms": 400}
    >>> caught_up_ms(12, leader_end_offset=12, now_ms=500, **before)
    500
    >>> caught_up_ms(10, leader_end_offset=12, now_ms=500, **before)
    400
    >>> caught_up_ms(9, leader_end_offset=12, now_ms=500, **before)
    """
    if fetch_offset >= leader_end_offset:
        return now_ms
    if previous_leader_end_offset is not None and fetch_offset >= previous_leader_end_offset:
        return previous_fetch_ms
    return None

"""Resumed replay: a broker that leads a partition again soon continues the replay, if the log up to there is unchanged.

A broker that is fenced briefly resigns, and leads again in the next epoch. If it read gigabytes again each time, it
might never finish loading its partitions.

The proof is Raft's log matching property: a leader epoch and an offset never name two batches (docs/SIMULATION.md,
Names), so logs with the same epoch at an offset are equal up to there. Compaction may have removed records since, but
only records that later ones replace, and those have been replayed, too, or will be. Kafka always loads from the log
start.
"""

from typing import Final, NamedTuple

from ottla.broker.groups.loader import ReplicaLog
from ottla.broker.groups.log_state import LogState

#: How long the state of a partition is kept without leadership, in seconds: elections after a fencing take less, and
#: the memory of partitions that have moved to other brokers has to be freed.
KEPT_S: Final = 60


class Resumable(NamedTuple):
    """A replay, and the conditions on the log under which it may continue."""

    state: LogState
    #: Compared by identity: a topic that was deleted and created again has another log.
    log: ReplicaLog
    log_start_offset: int
    #: The epoch of the last record that may have been replayed, also in a batch whose replay was interrupted: another
    #: leader may have truncated that batch.
    leader_epoch: int

    def is_of(self, log: ReplicaLog) -> bool:
        """Whether `log` still begins with everything that was replayed."""
        end = self.state.end_offset
        return (
            log is self.log
            and log.log_start_offset == self.log_start_offset
            and end <= log.log_end_offset
            and log.epoch_for_offset(end - 1) == self.leader_epoch
        )


def resumable(state: LogState, log: ReplicaLog) -> Resumable | None:
    """The replay at the end of the leadership; None if there is nothing to keep.

    Precondition: no record of the new leader is in the log yet, so it still has everything that was replayed.
    """
    if state.next_offset is None or not state.is_complete or state.next_offset <= log.log_start_offset:
        return None
    assert state.next_offset <= log.log_end_offset, (
        state.topic_partition,
        state.next_offset,
        log.log_end_offset,
    )
    leader_epoch = log.epoch_for_offset(state.end_offset - 1)
    return None if leader_epoch is None else Resumable(state, log, log.log_start_offset, leader_epoch)

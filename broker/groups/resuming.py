"""A partition whose leadership comes back soon: its replay goes on where it stood, if the log before is still the same.

A broker that is fenced for a moment resigns, and leads again in the next epoch. Reading gigabytes once more then is what
kept it from ever having loaded its partitions.

The proof is that of Raft's log matching: a leader epoch and an offset never name two batches (docs/SIMULATION.md, Names),
so that logs with the same epoch at an offset are the same up to there. Compaction may have removed records since: only
such as later ones replace, which have been replayed, too, or will be.
"""

from typing import Final, NamedTuple

from broker.groups.loader import ReplicaLog
from broker.groups.log_state import LogState

#: How long the state of a partition is kept without leadership, seconds: elections after a fencing take less, and the
#: memory of partitions that have moved to other brokers is to be had again.
KEPT_S: Final = 60


class Resumable(NamedTuple):
    """A replay, and what must still be true of the log for it to go on."""

    state: LogState
    #: Held for its identity: a topic that was deleted and created again has another log.
    log: ReplicaLog
    log_start_offset: int
    #: Of the last record that may have been replayed: also of one in a batch whose replay was broken off. Another leader
    #: may have truncated that batch.
    leader_epoch: int

    def is_of(self, log: ReplicaLog) -> bool:
        """Whether `log` begins with all that was replayed."""
        end = self.state.end_offset
        return (
            log is self.log
            and log.log_start_offset == self.log_start_offset
            and end <= log.log_end_offset
            and log.epoch_for_offset(end - 1) == self.leader_epoch
        )


def resumable(state: LogState, log: ReplicaLog) -> Resumable | None:
    """The replay as it stands when the leadership ends; None if there is nothing to keep.

    To be called before the new leader's records arrive: the log still holds what was replayed.
    """
    if state.next_offset is None or not state.is_complete or state.next_offset <= log.log_start_offset:
        return None
    leader_epoch = log.epoch_for_offset(state.end_offset - 1)
    return None if leader_epoch is None else Resumable(state, log, log.log_start_offset, leader_epoch)

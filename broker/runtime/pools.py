"""The pools of threads for blocking work: what waits in one of them cannot hold up what waits in another.

A disk that is slow for one kind of work (eight cold reads of a second each) would otherwise stop all of them: with one
pool, consumers that read old records deposed the quorum's leader, because its fsync waited behind their reads.

Each pool has a fixed number of threads; work beyond that waits in the order of its arrival. How much can wait is bounded
where the work comes from, and stated beside each pool: a pool that refused work would only move the wait.
"""

from enum import Enum
from typing import Final


class Pool(Enum):
    """Which work waits together. The values are the names of the threads."""

    #: The metadata log and Raft: votes, flushes, reads for the quorum's listeners, snapshots, removals. Waiting: the
    #: quorum carries out one effect at a time, and writes one snapshot at a time; so no work ever waits.
    METADATA = "metadata"
    #: Reads that clients and followers cause: records that are not in memory, look-ups of timestamps. Waiting: one read
    #: for each connection, since a connection has one request in progress.
    READS = "reads"
    #: Produced batches that are decompressed to be checked. Waiting: one batch for each connection, as above.
    VALIDATION = "validation"
    #: What an append or a truncation waits for: fsync, the copy of a truncated file. Waiting: one for each partition.
    FLUSHES = "flushes"
    #: Internal partitions that a coordinator loads. Waiting: the partitions this broker has become the leader of.
    LOADING = "loading"
    #: Logs and log directories that are created, opened, closed. Waiting: one batch of new logs, one start or stop.
    LOGS = "logs"
    #: Retention, periodic flushes, checkpoints, compaction, deletion, moves between log directories. Waiting: each of
    #: these tasks has one piece of work at a time.
    UPKEEP = "upkeep"


#: Threads of each pool, started when they are needed. fsync and cold reads wait for the disk, not for the processor: more
#: of them than cores is right, and a disk gains nothing from more than a few at once.
THREADS: Final[dict[Pool, int]] = {
    # One for the quorum's effects, one for a snapshot, which may take long.
    Pool.METADATA: 2,
    Pool.READS: 8,
    # Work for the processor; most of it holds the interpreter's lock.
    Pool.VALIDATION: 2,
    Pool.FLUSHES: 4,
    Pool.LOADING: 2,
    Pool.LOGS: 2,
    # One each for maintenance, compaction, and the two kinds of work of a log's move.
    Pool.UPKEEP: 4,
}

"""The thread pools for blocking work, one for each kind: a slow kind of work cannot delay another one.

With a single pool, slow work of one kind (eight cold reads of a second each) stops all the others: because of consumers
that read old records the quorum's leader lost its leadership, since its fsync waited behind their reads.

Each pool has a number of threads, which `Runtime.resize_pool` changes; further work waits in the order of its
arrival. The amount of waiting work is bounded by its callers, as stated beside each pool: a pool that refused
work would only move the wait.
"""

from enum import Enum
from typing import Final


class Pool(Enum):
    """A kind of work with threads of its own. The values are the names of the threads."""

    #: The metadata log and Raft: votes, flushes, reads for the quorum's listeners, snapshots, removals. Waiting: none,
    #: since the quorum carries out one effect at a time, and writes one snapshot at a time.
    METADATA = "metadata"
    #: Reads for clients and followers: records that are not in memory. Waiting: one read for each connection, since a
    #: connection has one request in progress.
    READS = "reads"
    #: Look-ups of timestamps, which decompress and parse: they use the processor. Waiting: one for each
    #: connection, as above.
    LOOK_UPS = "look-ups"
    #: Decompression and validation of produced batches. Waiting: one batch for each connection, as above.
    VALIDATION = "validation"
    #: Disk work of an append or a truncation: fsync, the copy of a truncated file. Waiting: one for each partition.
    FLUSHES = "flushes"
    #: Loading of internal partitions by a coordinator. Waiting: the partitions this broker has become the leader of.
    LOADING = "loading"
    #: Creating, opening and closing logs and log directories. Waiting: one batch of new logs, one start or stop.
    LOGS = "logs"
    #: Retention, periodic flushes, checkpoints, compaction, deletion, moves between log directories. Waiting: one piece
    #: of work for each of these tasks.
    UPKEEP = "upkeep"
    #: Copies of segments to the remote tier. Waiting: none, since the copy tasks take a permit first. The
    #: remote pools wait for a store that may not answer: a thread is occupied until the store's own deadline.
    REMOTE_COPIES = "remote-copies"
    #: Reads from the remote tier for consumers: batches, indexes. Waiting: remote.log.reader.max.pending.tasks.
    REMOTE_READS = "remote-reads"
    #: Deletions in the remote tier. Waiting: none, since the expiration tasks take a permit first.
    REMOTE_DELETIONS = "remote-deletions"
    #: Leader epochs and producer snapshots that followers read from the remote tier. Waiting: none, since they
    #: take a permit.
    REMOTE_AUXILIARY = "remote-auxiliary"
    #: The end of a remote store's manager, which may wait for the store, too. Waiting: none.
    REMOTE_CLOSING = "remote-closing"


#: Threads of each pool, started when they are needed. fsync and cold reads wait for the disk, not for the processor, so
#: there may be more of them than cores; a disk gains nothing from more than a few at once.
THREADS: Final[dict[Pool, int]] = {
    # One for the quorum's effects, one for a snapshot, which may take a long time.
    Pool.METADATA: 2,
    Pool.READS: 8,
    # CPU-bound work; most of it holds the interpreter's lock.
    Pool.LOOK_UPS: 2,
    Pool.VALIDATION: 2,
    Pool.FLUSHES: 4,
    Pool.LOADING: 2,
    Pool.LOGS: 2,
    # One each for maintenance, compaction, and the two kinds of work of a log's move.
    Pool.UPKEEP: 4,
    # The defaults of remote.log.manager.copier.thread.pool.size, remote.log.reader.threads and
    # remote.log.manager.expiration.thread.pool.size, by which a broker resizes them.
    Pool.REMOTE_COPIES: 10,
    Pool.REMOTE_READS: 10,
    Pool.REMOTE_DELETIONS: 10,
    Pool.REMOTE_AUXILIARY: 4,
    Pool.REMOTE_CLOSING: 1,
}

#: Pools whose work is for clients, or is repeated at the next start: none of it is begun once the runtime ends.
WITHOUT_LOSS: Final = frozenset({Pool.READS, Pool.LOOK_UPS, Pool.VALIDATION, Pool.LOADING})

#: Pools whose work waits for a remote store, which may never answer: at its end the runtime leaves it behind.
WAITING_FOR_STORES: Final = frozenset(
    {Pool.REMOTE_COPIES, Pool.REMOTE_READS, Pool.REMOTE_DELETIONS, Pool.REMOTE_AUXILIARY, Pool.REMOTE_CLOSING}
)

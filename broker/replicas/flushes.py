"""flush.messages: appended records count only after a flush, which runs in a thread.

    append -> not due -> the request is answered at once
    append -> due --> a thread flushes --> the high watermark advances, waiting requests are answered
               ^---- another one is due ----'

Invariant: while a flush is due, the leader's high watermark does not pass its recovery point. So records that are not
on the disk are neither returned to consumers nor acknowledged to acks=all. A request with acks=1 waits for this
broker's flush (`delayed_produce.FlushPartitionStatus`). A follower flushes before its next fetch, which the leader
counts as its acknowledgement.

Source: Kafka's UnifiedLog.append, which flushes synchronously.
"""

from ottla.broker.replicas.partition import Partition
from ottla.runtime import Pool, Runtime
from ottla.storage.log import Log


async def flush_log(runtime: Runtime, log: Log) -> None:
    """Flush up to the present log end; if the disk fails, the flush takes its log directory offline."""
    job = log.flusher.job(log.log_end_offset, now_ms=runtime.now_ms())
    await runtime.run_blocking(job.run, pool=Pool.FLUSHES)
    job.finish()


class Flushes:
    """Flushes of partitions that this broker leads: at most one at a time for each partition."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._running: set[Partition] = set()

    def begin(self, partition: Partition) -> None:
        """Begin a flush that is due; if one is running, another follows it."""
        if partition not in self._running:
            self._running.add(partition)
            self._runtime.create_task(self._flush(partition), name=f"flush of {partition}")

    async def _flush(self, partition: Partition) -> None:
        try:
            # At least once: if maintenance has flushed meanwhile, `on_flushed` must still be called.
            while partition.log.is_writable and not partition.is_deleted:
                await flush_log(self._runtime, partition.log)
                partition.on_flushed()
                if not partition.log.flusher.is_due:
                    break
        finally:
            self._running.discard(partition)

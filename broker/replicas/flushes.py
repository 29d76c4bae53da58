"""flush.messages: what was appended counts only after a flush, which a thread does.

    append -> not due -> answered as ever
    append -> due --> a thread flushes --> the high watermark moves, requests that wait are answered, followers fetch on
               ^------------- more is due by now -------------'

While a flush is due, the leader's high watermark does not pass its recovery point, so that neither a consumer nor the
answer to an acks=all overtakes the disk; a request with acks=1 waits for the flush alone (`committing.Flush`), and a
follower flushes before its next fetch, which counts as its acknowledgement.

Source: Kafka's UnifiedLog.append, which flushes in place.
"""

from broker.replicas.partition import Partition
from broker.runtime import Pool, Runtime
from storage.flushing import flush_job
from storage.log import Log


async def flush_log(runtime: Runtime, log: Log) -> None:
    """Flush all that the log has now; a disk that fails has taken its directory offline."""
    job = flush_job(log, log.log_end_offset, runtime.now_ms())
    await runtime.run_blocking(job.run, pool=Pool.FLUSHES)
    job.finish()


class Flushes:
    """The flushes of partitions that this broker leads: one at a time for each."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._running: set[Partition] = set()

    def begin(self, partition: Partition) -> None:
        """A flush is due; a running one is followed by another."""
        if partition not in self._running:
            self._running.add(partition)
            self._runtime.create_task(self._flush(partition), name=f"flush of {partition}")

    async def _flush(self, partition: Partition) -> None:
        try:
            # Once at least: where the upkeep has flushed meanwhile, the partition has still to look again.
            while partition.log.is_writable and not partition.is_deleted:
                await flush_log(self._runtime, partition.log)
                partition.on_flushed()
                if not partition.log.is_flush_due:
                    break
        finally:
            self._running.discard(partition)

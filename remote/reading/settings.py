"""The settings of reads from the remote tier; `ottla.broker.tiering.settings` makes them from the configuration."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True, kw_only=True)
class RemoteReadSettings:
    """The settings of consumers' reads from the remote tier; each field is the configuration beside it."""

    #: remote.log.reader.threads: reads that run at a time.
    reader_threads: int = 10
    #: remote.log.reader.max.pending.tasks: reads that wait for a thread; more are refused.
    max_pending_reads: int = 100
    #: remote.fetch.max.wait.ms: a Fetch is answered after this time without the records that have not arrived.
    fetch_max_wait_ms: int = 500
    #: remote.list.offsets.request.timeout.ms: a search by timestamp fails after this time.
    list_offsets_timeout_ms: int = 30_000
    #: remote.log.index.file.cache.total.size.bytes
    index_cache_bytes: int = 1024 * 1024 * 1024
    #: remote.log.index.file.cache.ttl.ms: None: an index stays until the cache is full.
    index_cache_ttl_ms: int | None = 900_000

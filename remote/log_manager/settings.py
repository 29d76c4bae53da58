"""The settings of a RemoteLogManager; read at each use, since most of them are dynamic configurations.

Source: RemoteLogManagerConfig of Kafka 4.3.1. Differs: the back-off of retries is really used, and transfers
have a deadline.
"""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True, kw_only=True)
class RemoteLogManagerSettings:
    """The settings of a RemoteLogManager; each field is the configuration beside it, with Kafka's default."""

    #: remote.log.manager.task.interval.ms
    task_interval_ms: int = 30_000
    #: remote.log.manager.task.retry.backoff.ms, .backoff.max.ms, .jitter
    retry_backoff_ms: int = 500
    retry_backoff_max_ms: int = 30_000
    retry_jitter: float = 0.2
    #: remote.log.manager.copier.thread.pool.size: segments that are copied at a time.
    copier_pool_size: int = 10
    #: remote.log.manager.expiration.thread.pool.size: partitions whose copies are deleted at a time.
    expiration_pool_size: int = 10
    #: remote.log.manager.follower.thread.pool.size
    follower_pool_size: int = 2
    #: remote.log.manager.copy.max.bytes.per.second; None: unlimited. Its windows: .copy.quota.window.num, .size.seconds
    copy_max_bytes_per_second: int | None = None
    copy_quota_window_count: int = 11
    copy_quota_window_ms: int = 1_000
    #: remote.log.manager.fetch.max.bytes.per.second; None: unlimited. Its windows: .fetch.quota.window.num,
    #: .size.seconds
    fetch_max_bytes_per_second: int | None = None
    fetch_quota_window_count: int = 11
    fetch_quota_window_ms: int = 1_000
    #: remote.log.metadata.custom.metadata.max.bytes
    custom_metadata_max_bytes: int = 128
    #: remote.log.manager.transfer.deadline.ms: a copy or deletion that takes longer is abandoned, without the
    #: time that it waits for a quota. Not in Kafka: there a call that never returns stops the copying of its partition.
    transfer_deadline_ms: int = 1_800_000
    #: remote.log.metadata.consume.wait.ms: the deadline of a change of the metadata.
    metadata_deadline_ms: int = 120_000

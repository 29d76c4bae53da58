"""The settings of the remote tier's parts, from the broker's configuration; made again whenever that changes.

A part gets a callable that returns its current settings and calls it at each use: so a dynamic configuration
applies to the next copy or read. Pools of threads are resized when it changes; a follower task runs on the loop, so
that its pool's size is a number of permits, which the RemoteLogManager reads itself.

Source: RemoteLogManagerConfig and DynamicRemoteLogConfig of Kafka 4.3.1.
"""

from typing import Final

from ottla.config.broker_config import BrokerConfig
from ottla.remote.log_manager.settings import RemoteLogManagerSettings
from ottla.remote.reading.settings import RemoteReadSettings
from ottla.runtime import Pool, Runtime

#: The quota, in bytes per second, that means unlimited; the default.
_UNLIMITED: Final = 2**63 - 1


def remote_log_manager_settings(config: BrokerConfig) -> RemoteLogManagerSettings:
    """Return the settings of copying, expiration and follower tasks."""
    return RemoteLogManagerSettings(
        task_interval_ms=config.get("remote.log.manager.task.interval.ms"),
        retry_backoff_ms=config.get("remote.log.manager.task.retry.backoff.ms"),
        retry_backoff_max_ms=config.get("remote.log.manager.task.retry.backoff.max.ms"),
        retry_jitter=config.get("remote.log.manager.task.retry.jitter"),
        transfer_deadline_ms=config.get("remote.log.manager.transfer.deadline.ms"),
        copier_pool_size=config.get("remote.log.manager.copier.thread.pool.size"),
        expiration_pool_size=config.get("remote.log.manager.expiration.thread.pool.size"),
        follower_pool_size=config.remote_log_follower_tasks,
        copy_max_bytes_per_second=_limit(config.get("remote.log.manager.copy.max.bytes.per.second")),
        copy_quota_window_count=config.get("remote.log.manager.copy.quota.window.num"),
        copy_quota_window_ms=config.get("remote.log.manager.copy.quota.window.size.seconds") * 1000,
        fetch_max_bytes_per_second=_limit(config.get("remote.log.manager.fetch.max.bytes.per.second")),
        fetch_quota_window_count=config.get("remote.log.manager.fetch.quota.window.num"),
        fetch_quota_window_ms=config.get("remote.log.manager.fetch.quota.window.size.seconds") * 1000,
        custom_metadata_max_bytes=config.get("remote.log.metadata.custom.metadata.max.bytes"),
    )


def remote_read_settings(config: BrokerConfig) -> RemoteReadSettings:
    """Return the settings of reads from the remote tier."""
    ttl_ms = config.get("remote.log.index.file.cache.ttl.ms")
    return RemoteReadSettings(
        reader_threads=config.get("remote.log.reader.threads"),
        max_pending_reads=config.get("remote.log.reader.max.pending.tasks"),
        fetch_max_wait_ms=config.get("remote.fetch.max.wait.ms"),
        list_offsets_timeout_ms=config.get("remote.list.offsets.request.timeout.ms"),
        index_cache_bytes=config.get("remote.log.index.file.cache.total.size.bytes"),
        index_cache_ttl_ms=ttl_ms if ttl_ms >= 0 else None,
    )


def metadata_listener_name(config: BrokerConfig) -> str:
    """Return the listener over which the metadata manager's clients reach the brokers.

    It is the inter-broker listener unless another one is configured.
    """
    name = config.get("remote.log.metadata.manager.listener.name")
    return config.inter_broker_listener_name if name is None else str(name).upper()


def _limit(bytes_per_second: int) -> int | None:
    return None if bytes_per_second == _UNLIMITED else bytes_per_second


def resize_pools(runtime: Runtime, config: BrokerConfig) -> None:
    """Give each pool the configured number of threads; a pool that has it already does not change."""
    manager, reads = remote_log_manager_settings(config), remote_read_settings(config)
    runtime.resize_pool(Pool.REMOTE_COPIES, manager.copier_pool_size)
    runtime.resize_pool(Pool.REMOTE_DELETIONS, manager.expiration_pool_size)
    runtime.resize_pool(Pool.REMOTE_READS, reads.reader_threads)

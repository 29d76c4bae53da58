"""Resizes the pools of the remote tier's threads when their configurations change.

A follower task runs on the loop, so its pool's size is a number of permits, which the RemoteLogManager reads itself.

Source: DynamicRemoteLogConfig.reconfigure of Kafka 4.3.1.
"""

from ottla.broker.tiering.settings import remote_log_manager_settings, remote_read_settings
from ottla.config.broker_config import BrokerConfig
from ottla.runtime import Pool, Runtime


def resize_pools(runtime: Runtime, config: BrokerConfig) -> None:
    """Give each pool the configured number of threads; a pool that has it already does not change."""
    manager, reads = remote_log_manager_settings(config), remote_read_settings(config)
    runtime.resize_pool(Pool.REMOTE_COPIES, manager.copier_pool_size)
    runtime.resize_pool(Pool.REMOTE_DELETIONS, manager.expiration_pool_size)
    runtime.resize_pool(Pool.REMOTE_READS, reads.reader_threads)

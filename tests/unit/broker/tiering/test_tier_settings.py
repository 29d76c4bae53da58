"""The settings that the remote tier's parts get from the configuration (KIP-405)."""

import pytest

from ottla.broker.roles.tiering import (
    create_storage_manager,
    metadata_manager_settings,
    storage_manager_settings,
)
from ottla.broker.tiering.settings import (
    metadata_listener_name,
    remote_log_manager_settings,
    remote_read_settings,
)
from ottla.config.broker_config import BrokerConfig
from ottla.config.load import standalone_profile
from ottla.protocol.errors import InvalidConfig
from ottla.remote.checked_copies import CheckedCopies
from ottla.remote.log_manager.settings import RemoteLogManagerSettings
from ottla.remote.stores.local_directory import LocalDirectory
from ottla.remote.transfers.worker_store import WorkerStore
from ottla.runtime.spawned_worker import SpawnedWorker
from ottla.storage.files import Files


def config(**changes):
    return BrokerConfig(
        standalone_profile() | {name.replace("_", "."): text for name, text in changes.items()}
    )


def test_the_defaults_are_kafkas():
    assert remote_log_manager_settings(config()) == RemoteLogManagerSettings()
    reads = remote_read_settings(config())
    assert (reads.reader_threads, reads.max_pending_reads, reads.fetch_max_wait_ms) == (10, 100, 500)
    assert (reads.list_offsets_timeout_ms, reads.index_cache_bytes, reads.index_cache_ttl_ms) == (
        30_000,
        2**30,
        900_000,
    )


@pytest.mark.parametrize(("key", "text", "field", "value"), [
    ("remote.log.manager.task.interval.ms",              "7", "task_interval_ms", 7),
    ("remote.log.manager.task.retry.backoff.ms",         "7", "retry_backoff_ms", 7),
    ("remote.log.manager.task.retry.backoff.max.ms",     "7", "retry_backoff_max_ms", 7),
    ("remote.log.manager.task.retry.jitter",             "0.4", "retry_jitter", 0.4),
    ("remote.log.manager.transfer.deadline.ms",          "7", "transfer_deadline_ms", 7),
    ("remote.log.manager.copier.thread.pool.size",       "7", "copier_pool_size", 7),
    ("remote.log.manager.expiration.thread.pool.size",   "7", "expiration_pool_size", 7),
    ("remote.log.manager.follower.thread.pool.size",     "7", "follower_pool_size", 7),
    ("remote.log.manager.copy.max.bytes.per.second",     "7", "copy_max_bytes_per_second", 7),
    ("remote.log.manager.copy.quota.window.num",         "7", "copy_quota_window_count", 7),
    ("remote.log.manager.copy.quota.window.size.seconds", "7", "copy_quota_window_ms", 7000),
    ("remote.log.manager.fetch.max.bytes.per.second",    "7", "fetch_max_bytes_per_second", 7),
    ("remote.log.manager.fetch.quota.window.num",        "7", "fetch_quota_window_count", 7),
    ("remote.log.manager.fetch.quota.window.size.seconds", "7", "fetch_quota_window_ms", 7000),
    ("remote.log.metadata.custom.metadata.max.bytes",    "7", "custom_metadata_max_bytes", 7),
    ("remote.log.reader.threads",                        "7", "reader_threads", 7),
    ("remote.log.reader.max.pending.tasks",              "7", "max_pending_reads", 7),
    ("remote.fetch.max.wait.ms",                         "7", "fetch_max_wait_ms", 7),
    ("remote.list.offsets.request.timeout.ms",           "7", "list_offsets_timeout_ms", 7),
    ("remote.log.index.file.cache.total.size.bytes",     "7", "index_cache_bytes", 7),
    ("remote.log.index.file.cache.ttl.ms",               "-1", "index_cache_ttl_ms", None),
])  # fmt: skip
def test_a_setting_is_its_configuration(key, text, field, value):
    changed = config(**{key: text})
    both = [remote_log_manager_settings(changed), remote_read_settings(changed)]
    assert [getattr(each, field) for each in both if hasattr(each, field)] == [value]


@pytest.mark.parametrize(("new", "former", "size"), [
    (None, None, 2),
    (None, "5",  5),   # the name before Kafka 4.2
    ("3",  "5",  3),
    ("2",  "5",  2),   # set, although it is the default
])  # fmt: skip
def test_the_former_name_of_the_follower_pools_size(new, former, size):
    keys = {
        "remote.log.manager.follower.thread.pool.size": new,
        "remote.log.manager.thread.pool.size": former,
    }
    changed = config(**{key: text for key, text in keys.items() if text is not None})
    assert remote_log_manager_settings(changed).follower_pool_size == size


def test_the_listener_of_the_metadata_managers_clients():
    assert metadata_listener_name(config()) == "PLAINTEXT"
    assert metadata_listener_name(config(remote_log_metadata_manager_listener_name="internal")) == "INTERNAL"


def test_what_reaches_the_managers():
    changed = config(**{"rsm.config.a.b": "c", "rlmm.config.d": "e", "rsm.config.": "?", "log.dirs": "/x,/y"})
    assert storage_manager_settings(changed) == {"a.b": "c", "broker.id": 1}
    assert metadata_manager_settings(changed, cluster_id="i") == {
        "d": "e", "broker.id": 1, "cluster.id": "i", "log.dir": "/x",
    }  # fmt: skip


def test_other_prefixes():
    changed = config(
        **{
            "remote.log.storage.manager.impl.prefix": "s.",
            "remote.log.metadata.manager.impl.prefix": "m.",
            "rsm.config.a": "0",
            "s.a": "1",
            "m.a": "2",
        }
    )
    assert storage_manager_settings(changed)["a"] == "1"
    assert metadata_manager_settings(changed, cluster_id="i")["a"] == "2"


def test_the_storage_manager(tmp_path):
    enabled = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": "directory",
    }
    store = create_storage_manager(
        config(**enabled, **{"rsm.config.dir": str(tmp_path)}), no_worker, Files(), []
    )
    assert isinstance(store, CheckedCopies)
    assert isinstance(store.store, LocalDirectory)
    with pytest.raises(InvalidConfig, match=r"rsm.config.dir is None: set it to a directory"):
        create_storage_manager(config(**enabled), no_worker, Files(), [])


@pytest.mark.parametrize(("had_cache", "is_offline", "is_created"), [
    ([],     False, True),   # the first start
    ([0],    False, False),
    ([1],    False, False),  # the cache had moved, as the first directory had failed
    ([0, 1], False, False),
    ([],     True,  False),  # the directory that is offline may have the cache
])  # fmt: skip
def test_a_store_is_created_by_a_broker_that_has_had_none(tmp_path, had_cache, is_offline, is_created):
    """A directory that is missing at another start is not mounted, and is not created."""
    log_dirs = [tmp_path / name for name in "ab"]
    for number in had_cache:
        (log_dirs[number] / "remote-log-index-cache").mkdir(parents=True)
    settings = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": "directory",
        "rsm.config.dir": str(tmp_path / "tier"),
        "log.dirs": ",".join(map(str, log_dirs)),
    }
    online = log_dirs[is_offline:]
    for _ in range(2):
        create_storage_manager(config(**settings), no_worker, Files(), online).close()
    assert (tmp_path / "tier").exists() == is_created


def no_worker(module, setup):
    """The runtime of a simulation, which has no other process."""


def test_the_storage_manager_has_a_process_of_its_own_unless_that_is_disabled(tmp_path):
    settings = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": "directory",
        "rsm.config.dir": str(tmp_path),
    }
    enabled = create_storage_manager(config(**settings), spawned, Files(), [])
    assert isinstance(enabled, WorkerStore)
    assert enabled.copies.process_id is enabled.deletions.process_id is None
    assert enabled.copies is not enabled.deletions
    enabled.close()
    disabled = {**settings, "remote.log.storage.manager.process.enable": "false"}
    assert isinstance(create_storage_manager(config(**disabled), spawned, Files(), []), CheckedCopies)


def spawned(module, setup):
    return SpawnedWorker(module, setup, niceness=0)

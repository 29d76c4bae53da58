"""Every configuration that can be altered and has an effect is altered at run time,
and seen where it is read (KIP-226).

A row is a configuration, another value, and what its reader says then. A key that becomes dynamic, or begins to be
served, fails the test until it has a row here.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest

from ottla.broker.node import Node
from ottla.broker.tiering.settings import remote_log_manager_settings, remote_read_settings
from ottla.config.config_def import AlterOperation
from ottla.config.definitions import DYNAMIC_BROKER_CONFIGS
from ottla.config.load import load_config
from ottla.config.log_config import SERVER_SYNONYMS, TOPIC_CONFIGS
from ottla.metadata.image import ConfigResourceType
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.types import TopicPartition
from ottla.runtime import Pool
from ottla.runtime.simulated import SimulatedRuntime
from ottla.storage.log import Log
from tests.harness.wire import WireClient

PARTITION = TopicPartition("t", 0)


def log_of(node: Node) -> Log:
    return node.broker.replicas.logs.logs[PARTITION]


def of_log(field: str) -> Callable[[Node], object]:
    """The field of the configuration that a log asks at each use."""
    return lambda node: getattr(log_of(node).config, field)


def of_new_segment(field: str) -> Callable[[Node], object]:
    """The field of the settings of a new segment, which keeps them as long as it exists."""

    def observe(node: Node) -> object:
        log, now_ms = log_of(node), node.broker.runtime.now_ms()
        batch = bytearray(build_batch(simple_records([(b"k", b"v")], timestamp=now_ms)))
        log.append_as_leader(batch, leader_epoch=log.leader_epochs.latest_epoch, now_ms=now_ms)
        return getattr(log.roll(now_ms).indexes.settings, field)

    return observe


def of_controller(key: str) -> Callable[[Node], object]:
    """The effective value of a topic configuration for elections and ISR changes."""

    def observe(node: Node) -> object:
        controller = node._quorum.controller
        assert controller is not None
        assert controller._active is not None
        return controller._active.state.topic_setting("t", key)

    return observe


def of_sockets(field: str) -> Callable[[Node], object]:
    """The field of the limits against which the next connection is checked."""
    return lambda node: getattr(node._broker_role.server.limits.settings, field)


def of_logs(field: str) -> Callable[[Node], object]:
    """The field of the settings that all logs share."""
    return lambda node: getattr(node.broker.replicas.logs.settings, field)


def of_pool(pool: Pool) -> Callable[[Node], object]:
    """Threads for work with the remote tier."""
    return lambda node: node.broker.runtime.pools[pool].threads


def of_tasks(field: str) -> Callable[[Node], object]:
    """The field of the RemoteLogManager's settings, which it reads at each use."""
    return lambda node: getattr(remote_log_manager_settings(node.broker.config), field)


def of_remote_reads(field: str) -> Callable[[Node], object]:
    """The field of the settings of reads from the remote tier."""
    return lambda node: getattr(remote_read_settings(node.broker.config), field)


#: Topic configuration: another value, what its reader says then, the reader.
TOPICS: dict[str, tuple[str, object, Callable[[Node], object]]] = {
    "segment.bytes": ("2097152", 2097152, of_log("segment_bytes")),
    "segment.ms": ("5000", 5000, of_log("max_segment_ms")),
    "segment.jitter.ms": ("40", 40, of_log("segment_jitter_ms")),
    "segment.index.bytes": ("4096", 4096, of_new_segment("max_index_bytes")),
    "flush.messages": ("7", 7, of_log("flush_messages")),
    "flush.ms": ("8", 8, of_log("flush_ms")),
    "retention.bytes": ("9000", 9000, of_log("retention_bytes")),
    "retention.ms": ("9999999", 9999999, of_log("retention_ms")),
    "max.message.bytes": ("500", 500, of_log("max_message_bytes")),
    "max.decompressed.message.bytes": ("501", 501, of_log("max_decompressed_message_bytes")),
    "index.interval.bytes": (
        "77",
        77,
        lambda node: log_of(node).segments.active.indexes.settings.index_interval_bytes,
    ),
    "delete.retention.ms": ("11", 11, of_log("delete_retention_ms")),
    "min.compaction.lag.ms": ("12", 12, of_log("min_compaction_lag_ms")),
    "max.compaction.lag.ms": ("13", 13, of_log("max_compaction_lag_ms")),
    "file.delete.delay.ms": ("14", 14, of_log("file_delete_delay_ms")),
    "min.cleanable.dirty.ratio": ("0.25", 0.25, of_log("min_cleanable_dirty_ratio")),
    "cleanup.policy": ("compact", True, of_log("is_compacted")),
    "unclean.leader.election.enable": ("true", "true", of_controller("unclean.leader.election.enable")),
    "min.insync.replicas": ("2", 2, of_log("min_insync_replicas")),
    "compression.type": ("gzip", "gzip", of_log("compression_type")),
    "compression.gzip.level": ("3", 3, of_log("compression_gzip_level")),
    "compression.lz4.level": ("4", 4, of_log("compression_lz4_level")),
    "compression.zstd.level": ("5", 5, of_log("compression_zstd_level")),
    "preallocate": ("true", 2**30, of_new_segment("preallocated_bytes")),
    "message.timestamp.type": ("LogAppendTime", True, of_log("is_log_append_time")),
    "message.timestamp.before.max.ms": ("15", 15, of_log("message_timestamp_before_max_ms")),
    "message.timestamp.after.max.ms": ("16", 16, of_log("message_timestamp_after_max_ms")),
    "leader.replication.throttled.replicas": ("*", ("*",), of_log("leader_replication_throttled_replicas")),
    "follower.replication.throttled.replicas": (
        "*",
        ("*",),
        of_log("follower_replication_throttled_replicas"),
    ),
    "local.retention.ms": ("17", 17, of_log("effective_local_retention_ms")),
    "local.retention.bytes": ("18", 18, of_log("effective_local_retention_bytes")),
    "remote.copy.lag.ms": ("19", 19, of_log("effective_remote_copy_lag_ms")),
    "remote.copy.lag.bytes": ("20", 20, of_log("effective_remote_copy_lag_bytes")),
    "remote.log.copy.disable": ("true", True, of_log("remote_log_copy_disable")),
    "remote.log.delete.on.disable": ("true", True, of_log("remote_log_delete_on_disable")),
    "remote.storage.enable": ("true", True, of_log("remote_storage_enable")),
    "leader.election.prefer.early.local.log.start.offset": (
        "true",
        "true",
        of_controller("leader.election.prefer.early.local.log.start.offset"),
    ),
    "leader.election.local.log.start.offset.threshold": (
        "33",
        "33",
        of_controller("leader.election.local.log.start.offset.threshold"),
    ),
    "leader.election.eligible.local.log.ms": (
        "34",
        "34",
        of_controller("leader.election.eligible.local.log.ms"),
    ),
    "leader.election.eligible.local.log.bytes": (
        "35",
        "35",
        of_controller("leader.election.eligible.local.log.bytes"),
    ),
    "internal.segment.bytes": ("1234", 1234, of_log("segment_bytes")),
}

#: Broker configurations that topics do not have.
BROKER: dict[str, tuple[str, object, Callable[[Node], object]]] = {
    "max.connections": ("17", 17, of_sockets("max_connections")),
    "max.connection.creation.rate": ("26", 26, of_sockets("max_creation_rate")),
    "listener.name.plaintext.max.connections": (
        "27",
        27,
        lambda node: node._broker_role.server.limits.settings.of_listener("PLAINTEXT").max_connections,
    ),
    "listener.name.plaintext.max.connection.creation.rate": (
        "28",
        28,
        lambda node: node._broker_role.server.limits.settings.of_listener("PLAINTEXT").max_creation_rate,
    ),
    "max.connections.per.ip": ("18", 18, of_sockets("max_connections_per_ip")),
    "max.connections.per.ip.overrides": (
        "10.0.0.1:3",
        {"10.0.0.1": 3},
        of_sockets("max_connections_per_ip_overrides"),
    ),
    "cordoned.log.dirs": ("*", 1, lambda node: len(node.broker.replicas.logs.cordoned_dirs)),
    "num.recovery.threads.per.data.dir": ("4", 4, of_logs("recovery_threads_per_data_dir")),
    "producer.id.expiration.ms": (
        "19",
        19,
        lambda node: log_of(node).producers._producer_id_expiration_ms(),
    ),
    "log.cleaner.dedupe.buffer.size": ("20000000", 20000000, of_logs("cleaner_dedupe_buffer_bytes")),
    "log.cleaner.io.max.bytes.per.second": (
        "21.5",
        21.5,
        lambda node: node._broker_role.maintenance._throttle._bytes_per_second(),
    ),
    "log.cleaner.backoff.ms": ("22", 22, lambda node: node._broker_role.maintenance._cleaner_backoff_ms),
    "num.replica.fetchers": ("2", 2, lambda node: node._broker_role.fetchers._fetcher_count),
    "leader.replication.throttled.rate": (
        "23",
        23,
        lambda node: node.broker.replicas.throttle._quota._rate(),
    ),
    "follower.replication.throttled.rate": (
        "24",
        24,
        lambda node: node._broker_role.fetchers._throttle._quota._rate(),
    ),
    "follower.fetch.last.tiered.offset.enable": (
        "true",
        True,
        lambda node: node._broker_role.fetchers._prefers_last_tiered(),
    ),
    "replica.alter.log.dirs.io.max.bytes.per.second": (
        "25",
        25,
        lambda node: node.broker.replicas.moves._quota._rate(),
    ),
    "remote.log.manager.copier.thread.pool.size": ("7", 7, of_pool(Pool.REMOTE_COPIES)),
    "remote.log.manager.expiration.thread.pool.size": ("8", 8, of_pool(Pool.REMOTE_DELETIONS)),
    "remote.log.manager.follower.thread.pool.size": ("4", 4, of_tasks("follower_pool_size")),
    "remote.log.reader.threads": ("9", 9, of_pool(Pool.REMOTE_READS)),
    "remote.log.manager.copy.max.bytes.per.second": ("31", 31, of_tasks("copy_max_bytes_per_second")),
    "remote.log.manager.fetch.max.bytes.per.second": ("32", 32, of_tasks("fetch_max_bytes_per_second")),
    "remote.fetch.max.wait.ms": ("33", 33, of_remote_reads("fetch_max_wait_ms")),
    "remote.list.offsets.request.timeout.ms": ("34", 34, of_remote_reads("list_offsets_timeout_ms")),
    "remote.log.index.file.cache.total.size.bytes": ("35", 35, of_remote_reads("index_cache_bytes")),
}

#: The same for one listener.
OF_LISTENER = {name for name in BROKER if name.startswith("listener.name.")}

#: Refused when they change, as docs/CONFIGURATION.md says.
REFUSED = {
    "listeners": "PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL",
}

OF_TOPIC = (ConfigResourceType.TOPIC, "t")
OF_BROKER = (ConfigResourceType.BROKER, "1")
OF_CLUSTER = (ConfigResourceType.BROKER, "")


#: Directories belong to one broker; min.insync.replicas belongs to all of them where there are ELRs (KIP-966).
#: Tiering is not just switched off again: see below.
NOT_FOR = {
    OF_CLUSTER: {"cordoned.log.dirs"},
    OF_BROKER: {"min.insync.replicas"},
    OF_TOPIC: {"remote.storage.enable"},
}


def broker_rows() -> dict[str, tuple[str, object, Callable[[Node], object]]]:
    """The rows of brokers' configurations, and of the defaults of topics."""
    of_topics = {
        synonyms[0].name: TOPICS[topic_key]
        for topic_key, synonyms in SERVER_SYNONYMS.items()
        if topic_key in TOPICS
    }
    return of_topics | BROKER


def test_every_key_has_a_row():
    assert set(TOPICS) == {name for name, key in TOPIC_CONFIGS.items() if key.unread is None}
    served = {name for name, key in DYNAMIC_BROKER_CONFIGS.items() if key.unread is None}
    assert {*broker_rows(), *REFUSED} == served | OF_LISTENER


async def alter(
    client: WireClient, resource: tuple[int, str], name: str, value: str | None
) -> tuple[int, str]:
    kind, of = resource
    operation = AlterOperation.DELETE if value is None else AlterOperation.SET
    answer: Any = await client.request(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=kind,
                    resource_name=of,
                    configs=[AlterableConfig(name=name, config_operation=operation, value=value)],
                )
            ]
        ),
    )
    row = answer.responses[0]
    return row.error_code, row.error_message


def run(folder, scenario):
    runtime = SimulatedRuntime(seed=1)

    async def life() -> None:
        node = await Node.start(runtime, load_config(data_dir=folder / "data", tier=folder / "tier"))
        client = await WireClient.connect(node.listeners[0].host, node.listeners[0].port)
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        await client.request(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic]))
        await scenario(node, client)
        await client.close()
        await node.stop()

    try:
        runtime.run(life())
    finally:
        runtime.simulation.close()


@pytest.mark.parametrize(("resource", "rows"), [
    (OF_TOPIC, TOPICS), (OF_BROKER, broker_rows()), (OF_CLUSTER, broker_rows()),
], ids=["topic", "broker", "cluster"])  # fmt: skip
def test_an_altered_value_is_seen_where_it_is_read(tmp_path, resource, rows):
    wrong: dict[str, object] = {}

    async def scenario(node: Node, client: WireClient) -> None:
        for name, (text, expected, observe) in rows.items():
            if name in NOT_FOR.get(resource, ()):
                continue
            before = observe(node)
            error = await alter(client, resource, name, text)
            altered = observe(node)
            # With ELR the cluster's min.insync.replicas cannot be taken away (KIP-966).
            await alter(client, resource, name, "1" if name == "min.insync.replicas" else None)
            after = observe(node)
            if (error, altered, after) != ((0, None), expected, before) or before == expected:
                wrong[name] = (error, before, altered, after)

    run(tmp_path, scenario)
    assert wrong == {}


def test_tiering_is_switched_on_and_off(tmp_path):
    """Off only with the consent to lose what is in the remote tier (KIP-950)."""
    answers = []

    async def scenario(node: Node, client: WireClient) -> None:
        for name, value in (
            ("remote.storage.enable", "true"),
            ("remote.storage.enable", None),
            ("remote.log.delete.on.disable", "true"),
            ("remote.storage.enable", None),
        ):
            error_code, _ = await alter(client, OF_TOPIC, name, value)
            answers.append((error_code, log_of(node).config.remote_storage_enable))

    run(tmp_path, scenario)
    assert answers == [(0, True), (ErrorCode.invalid_config, True), (0, True), (0, False)]


@pytest.mark.logs("nothing is copied to the remote tier, and ")
def test_a_node_that_has_no_remote_tier_any_more_says_which_topics_need_one(tmp_path, caplog):
    async def tiered(node: Node, client: WireClient) -> None:
        await alter(client, OF_TOPIC, "remote.storage.enable", "true")

    run(tmp_path, tiered)

    async def without(runtime: SimulatedRuntime) -> None:
        node = await Node.start(runtime, load_config(data_dir=tmp_path / "data"))
        await node.stop()

    runtime = SimulatedRuntime(seed=1)
    try:
        runtime.run(without(runtime))
    finally:
        runtime.simulation.close()
    assert sum("1 topics (t)" in record.getMessage() for record in caplog.records) == 1


def test_what_cannot_be_altered_is_refused(tmp_path):
    answers = {}

    async def scenario(node: Node, client: WireClient) -> None:
        for name, text in REFUSED.items():
            answers[name] = (await alter(client, OF_BROKER, name, text))[0]

    run(tmp_path, scenario)
    assert answers == dict.fromkeys(REFUSED, ErrorCode.invalid_request)


def test_what_topics_fall_back_to_is_what_they_are_validated_against(tmp_path):
    """The controller goes by altered values, not by those it has started with."""
    answers = []

    async def scenario(node: Node, client: WireClient) -> None:
        await alter(client, OF_CLUSTER, "log.cleaner.max.compaction.lag.ms", "10")
        answers.append(await alter(client, OF_TOPIC, "min.compaction.lag.ms", "11"))

    run(tmp_path, scenario)
    assert answers == [
        (
            ErrorCode.invalid_config,
            "min.compaction.lag.ms (11) must not be above max.compaction.lag.ms (10).",
        )
    ]


@pytest.mark.parametrize(("resource", "name", "text", "warning"), [
    ((ConfigResourceType.GROUP, "g"), "consumer.session.timeout.ms", "46000",
     "GROUP 'g': .* consumer rebalance protocol .*: consumer.session.timeout.ms"),
    ((ConfigResourceType.CLIENT_METRICS, "m"), "interval.ms", "500",
     "CLIENT_METRICS 'm': clients push these metrics, but this broker does not show them: "),
    (OF_BROKER, "sasl.enabled.mechanisms", "PLAIN", "does not serve SASL yet: sasl.enabled.mechanisms"),
    (OF_CLUSTER, "num.io.threads", "9", "without a meaning for this broker: num.io.threads"),
])  # fmt: skip
def test_a_value_without_an_effect_is_accepted_with_one_warning(
    tmp_path, caplog, resource, name, text, warning
):
    answers = []

    async def scenario(node: Node, client: WireClient) -> None:
        answers.append(await alter(client, resource, name, text))
        await alter(client, OF_BROKER, "message.max.bytes", "5000000")  # says nothing of the other one again

    run(tmp_path, scenario)
    assert answers == [(0, None)]
    found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(found) == 1, found
    assert re.search(warning, found[0]), found

"""A topic's configurations: defaults, overrides, and what is refused."""

import pytest

from ottla.config.config_def import InvalidConfigValue
from ottla.config.log_config import (
    SERVER_SYNONYMS,
    TOPIC_CONFIGS,
    LogConfig,
    default_topic_values,
    validate_topic_configs,
)
from ottla.metadata.leader_preference import NO_PREFERENCE, LeaderPreference
from ottla.protocol.errors import InvalidConfig


def test_the_defaults_of_the_dataclass_are_those_of_the_definitions():
    assert LogConfig.from_values(default_topic_values()) == LogConfig()


def test_every_topic_key_has_a_field():
    fields = {field.replace("_", ".") for field in LogConfig.__dataclass_fields__}
    assert fields == {name for name, key in TOPIC_CONFIGS.items() if not key.is_internal}


def test_synonyms_are_of_topic_keys():
    assert set(SERVER_SYNONYMS) < set(TOPIC_CONFIGS)


def test_overrides_go_over_the_brokers_values():
    broker = default_topic_values() | {"segment.bytes": 2**21, "retention.ms": 5}
    config = LogConfig.from_overrides(
        broker, {"segment.bytes": "1048576", "cleanup.policy": "compact,delete"}
    )
    assert (config.segment_bytes, config.retention_ms) == (2**20, 5)
    assert config.is_compacted
    assert config.is_deleting


def test_no_limit_is_none_and_local_retention_follows_the_whole_one():
    config = LogConfig.from_overrides(default_topic_values(), {"retention.ms": "-1", "retention.bytes": "9"})
    assert (config.retention_ms, config.retention_bytes) == (None, 9)
    assert (config.effective_local_retention_ms, config.effective_local_retention_bytes) == (None, 9)
    local = LogConfig.from_overrides(
        default_topic_values(), {"retention.bytes": "9", "local.retention.bytes": "4"}
    )
    assert local.effective_local_retention_bytes == 4


def test_the_internal_segment_size_goes_first():
    assert (
        LogConfig.from_overrides(default_topic_values(), {"internal.segment.bytes": "100"}).segment_bytes
        == 100
    )


def test_an_override_that_is_unknown_by_now_is_left_out():
    assert LogConfig.from_overrides(default_topic_values(), {"gone.in.this.version": "x"}) == LogConfig()


def test_a_compacted_log_rolls_early_enough_to_compact_in_time():
    assert LogConfig(segment_ms=10, max_compaction_lag_ms=5).max_segment_ms == 10
    assert LogConfig(segment_ms=10, max_compaction_lag_ms=5, cleanup_policy=("compact",)).max_segment_ms == 5


TIERED = {"remote.storage.enable": "true"}
PREFERENCE = {
    "leader.election.prefer.early.local.log.start.offset": "true",
    "leader.election.local.log.start.offset.threshold": "5",
    "leader.election.eligible.local.log.ms": "0",
}


# Draft KIP-1303
@pytest.mark.parametrize(("broker", "overrides", "preference"), [
    ({},            {},                                                       NO_PREFERENCE),
    (PREFERENCE,    {},                                                       LeaderPreference(True, 5, 0, None)),
    ({},            PREFERENCE,                                               LeaderPreference(True, 5, 0, None)),
    (PREFERENCE,    {"leader.election.eligible.local.log.ms": "-1"},          LeaderPreference(True, 5, None, None)),
    (PREFERENCE,    {"leader.election.eligible.local.log.bytes": "7"},        LeaderPreference(True, 5, 0, 7)),
    (PREFERENCE,    {"leader.election.prefer.early.local.log.start.offset": "false"},
                                                                              LeaderPreference(False, 5, 0, None)),
    (PREFERENCE,    {"remote.storage.enable": "false"},                       NO_PREFERENCE),
    (PREFERENCE | {"cleanup.policy": "compact"}, {},                          LeaderPreference(True, 5, 0, None)),
])  # fmt: skip
def test_elections_of_tiered_topics_may_prefer_local_data(broker, overrides, preference):
    defaults = default_topic_values() | {
        name: TOPIC_CONFIGS[name].parse(text) for name, text in broker.items()
    }
    assert LogConfig.from_overrides(defaults, TIERED | overrides).leader_preference == preference


@pytest.mark.parametrize(("codec", "level"), [
    ("gzip", -1), ("lz4", 9), ("zstd", 3), ("snappy", None), ("producer", None), ("uncompressed", None),
])  # fmt: skip
def test_the_level_of_a_codec(codec, level):
    assert LogConfig(compression_type=codec).compression_level == level


@pytest.mark.parametrize(("overrides", "refused"), [
    ({},                                                       None),
    ({"segment.bytes": "1048576", "retention.ms": "-1"},       None),
    ({"cleanup.policy": ""},                                   None),  # neither deleted nor compacted
    ({"leader.replication.throttled.replicas": "*"},           None),
    ({"internal.segment.bytes": "1"},                          None),
    ({"segment.bytes": "1048575"},                             "segment.bytes.*at least 1048576"),
    ({"retention.ms": "-2"},                                   "retention.ms.*at least -1"),
    ({"cleanup.policy": "delete,keep"},                        "compact, delete"),
    ({"compression.type": "none"},                             "uncompressed, zstd, lz4, snappy, gzip, producer"),
    ({"compression.gzip.level": "0"},                          "between 1 and 9, or -1"),
    ({"message.timestamp.type": "createtime"},                 "CreateTime, LogAppendTime"),
    ({"min.cleanable.dirty.ratio": "1.1"},                     "between 0 and 1"),
    ({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"}, "min.compaction.lag.ms .5. must not be above"),
    ({"nope": "1"},                                            "Unknown topic config name: nope"),
    ({"segment.ms": None},                                     ("Null value not supported for topic configs: "
                                                                "segment.ms")),
    ({"cleanup.policy": "x" * 40_000},                         "longer than 32767"),
    ({"leader.election.local.log.start.offset.threshold": "-1"}, "at least 0"),
    ({"leader.election.eligible.local.log.ms": "-2"},          "at least -1"),
    ({"leader.election.eligible.local.log.bytes": "1 GiB"},    "a 64-bit integer"),
    ({"leader.election.prefer.early.local.log.start.offset": "yes"}, "true or false"),
    (TIERED,                                                   "Tiered Storage functionality is disabled"),
])  # fmt: skip
def test_what_may_be_set(overrides, refused):
    if refused is None:
        validate_topic_configs(overrides)
    else:
        with pytest.raises(InvalidConfig, match=refused):
            validate_topic_configs(overrides)


# KIP-405
@pytest.mark.parametrize(("overrides", "refused"), [
    ({},                                                            None),
    ({"local.retention.ms": "5", "retention.ms": "5"},              None),
    ({"local.retention.ms": "-1", "retention.ms": "-1"},            None),
    ({"local.retention.ms": "6", "retention.ms": "5"},              ("local.retention.ms.*between 0 and "
                                                                     "retention.ms .5.")),
    ({"local.retention.ms": "-1", "retention.ms": "5"},             "local.retention.ms"),
    ({"local.retention.bytes": "6", "retention.bytes": "5"},        "local.retention.bytes"),
    ({"cleanup.policy": "compact"},                                 "cleanup.policy to be delete"),
    ({"cleanup.policy": ""},                                        None),
    ({"remote.log.copy.disable": "true"},                           None),
    ({"remote.copy.lag.ms": "5", "local.retention.ms": "5"},        None),
    ({"remote.copy.lag.ms": "6", "local.retention.ms": "5"},        "remote.copy.lag.ms.*at most local.retention.ms"),
    ({"remote.copy.lag.ms": "6", "retention.ms": "5"},              "remote.copy.lag.ms.*effective value: 5"),
    ({"remote.copy.lag.ms": "6", "retention.ms": "-1"},             None),
    ({"remote.copy.lag.bytes": "6", "retention.bytes": "5"},        "remote.copy.lag.bytes"),
    ({"remote.copy.lag.bytes": "-1", "local.retention.bytes": "5", "retention.bytes": "5"}, None),
    ({"remote.log.copy.disable": "true", "local.retention.ms": "5"}, "remote.log.copy.disable=true needs"),
])  # fmt: skip
def test_what_may_be_set_on_a_tiered_topic(overrides, refused):
    asked = TIERED | overrides
    if refused is None:
        validate_topic_configs(asked, is_remote_storage_system_enabled=True)
    else:
        with pytest.raises(InvalidConfig, match=refused):
            validate_topic_configs(asked, is_remote_storage_system_enabled=True)


# KIP-950
@pytest.mark.parametrize(("overrides", "is_refused"), [
    ({}, True),
    ({"remote.storage.enable": "false"}, True),
    ({"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}, False),
])  # fmt: skip
def test_tiering_is_not_switched_off_over_data_that_stays(overrides, is_refused):
    if is_refused:
        with pytest.raises(InvalidConfig, match="would leave its data behind"):
            validate_topic_configs(overrides, existing=TIERED)
    else:
        validate_topic_configs(overrides, existing=TIERED)


def test_relations_hold_with_the_brokers_values_too():
    broker = default_topic_values() | {"max.compaction.lag.ms": 10}
    with pytest.raises(InvalidConfig, match=r"min.compaction.lag.ms \(11\)"):
        validate_topic_configs({"min.compaction.lag.ms": "11"}, defaults=broker)


def test_the_error_carries_what_it_is_about():
    with pytest.raises(InvalidConfigValue) as refused:
        validate_topic_configs({"segment.ms": "0"})
    assert (refused.value.name, refused.value.value, refused.value.allowed) == (
        "segment.ms",
        "0",
        "at least 1",
    )

"""The tables of definitions hold together; that they equal Kafka's is shown by tests/compat."""

import re
import typing
from collections import Counter

import pytest

from ottla.config.broker_config import BrokerConfig
from ottla.config.config_def import ConfigType, UpdateMode, text_of
from ottla.config.definitions import (
    BROKER_CONFIGS,
    CLIENT_METRICS_CONFIGS,
    DYNAMIC_BROKER_CONFIGS,
    GROUP_CONFIGS,
)
from ottla.config.definitions import __dict__ as subjects
from ottla.config.log_config import SERVER_SYNONYMS, TOPIC_CONFIGS

ALL = [*BROKER_CONFIGS.values(), *DYNAMIC_BROKER_CONFIGS.values(), *GROUP_CONFIGS.values(),
       *CLIENT_METRICS_CONFIGS.values(), *TOPIC_CONFIGS.values()]  # fmt: skip

#: The tables that a file of config/definitions may have.
TABLES = ("KEYS", "DYNAMIC_KEYS", "GROUP_KEYS", "SUBSCRIPTION_KEYS")


# KIP-932
@pytest.mark.parametrize(("definition", "count"), [
    # as many as Kafka 4.3.1 has, metrics.listeners, metrics.names, metrics.clients.max.series,
    # metrics.groups.max.rows,
    # remote.log.storage.manager.process.enable, remote.log.manager.transfer.deadline.ms, and seven that are dynamic and
    # of topics, too: four of the draft KIP-1303, three of Kafka 4.4
    (BROKER_CONFIGS, 360 + 13), (DYNAMIC_BROKER_CONFIGS, 102 + 7), (TOPIC_CONFIGS, 34 + 7), (GROUP_CONFIGS, 17),
    (CLIENT_METRICS_CONFIGS, 3),
])  # fmt: skip
def test_none_is_missing(definition, count):
    assert len(definition) == count


def test_no_key_is_defined_twice():
    tables = [getattr(module, table, ()) for module in subjects.values() for table in TABLES]
    names = Counter(key.name for table in tables for key in table)
    assert [name for name, count in names.items() if count > 1] == []
    assert set(names) == {*BROKER_CONFIGS, *DYNAMIC_BROKER_CONFIGS, *GROUP_CONFIGS, *CLIENT_METRICS_CONFIGS}


@pytest.mark.parametrize("key", ALL, ids=lambda key: key.name)
def test_a_definition_is_whole(key):
    assert re.fullmatch(r"[A-Z].*\.", key.documentation), key.documentation
    text = text_of(key.type, key.default)
    if text is not None and not key.is_sensitive:
        assert key.parse(text) == key.default


def test_what_topics_fall_back_to_exists():
    for topic_key, synonyms in SERVER_SYNONYMS.items():
        for synonym in synonyms:
            assert synonym.name in BROKER_CONFIGS, topic_key


def test_what_topics_fall_back_to_first_can_be_altered():
    for synonyms in SERVER_SYNONYMS.values():
        assert BROKER_CONFIGS[synonyms[0].name].update_mode is UpdateMode.CLUSTER_WIDE


PYTHON_TYPES = {
    ConfigType.BOOLEAN: bool,
    ConfigType.STRING: str,
    ConfigType.CLASS: str,
    ConfigType.INT: int,
    ConfigType.SHORT: int,
    ConfigType.LONG: int,
    ConfigType.DOUBLE: float,
    ConfigType.LIST: tuple[str, ...],
}


@pytest.mark.parametrize(("attribute", "hint"), typing.get_type_hints(BrokerConfig).items())
def test_an_attribute_is_typed_as_its_key(attribute, hint):
    key = BROKER_CONFIGS[attribute.replace("_", ".")]
    expected = PYTHON_TYPES[key.type]
    assert hint == (expected | None if key.default is None and not key.is_required else expected)

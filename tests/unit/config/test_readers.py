"""Every configuration is read by the code, or its definition says why not: both directions, from the syntax trees."""

import ast

import pytest
from config_readers import (
    asked_key,
    broker_readers,
    listener_readers,
    subscription_readers,
    topic_readers,
    unread_attributes,
    unread_settings,
)
from configuration_page import PAGE, page

from ottla.config.definitions import (
    BROKER_CONFIGS,
    CLIENT_METRICS_CONFIGS,
    DYNAMIC_BROKER_CONFIGS,
    GROUP_CONFIGS,
)
from ottla.config.log_config import SERVER_SYNONYMS, TOPIC_CONFIGS
from ottla.config.names import LISTENER_KEYS

BROKER_KEYS = {**BROKER_CONFIGS, **DYNAMIC_BROKER_CONFIGS}

DEFINITIONS = [
    (BROKER_KEYS, broker_readers),
    (TOPIC_CONFIGS, topic_readers),
    # Read by nothing as long as the features they belong to are not served.
    (GROUP_CONFIGS, dict),
    (CLIENT_METRICS_CONFIGS, subscription_readers),
]
ROWS = [(key, readers_of) for keys, readers_of in DEFINITIONS for key in keys.values()]


@pytest.mark.parametrize(("source", "is_reader"), [
    ("config.get('a.b')",                  True),
    ("get('a.b')",                         True),
    ("config.listener_value(name, 'a.b')", True),
    ("state.topic_setting(topic, 'a.b')",  True),
    ("self.values['a.b']",                 True),
    ("config.listener_value('a.b', key)",  False),  # the listener's name
    ("ConfigKey('a.b', INT, 1)",           False),
    ("properties['a.b']",                  False),
    ("InvalidConfigValue('a.b', 1, '')",   False),
    ("config.get(name)",                   False),
])  # fmt: skip
def test_what_counts_as_a_reader(source, is_reader):
    found = [key for node in ast.walk(ast.parse(source)) if (key := asked_key(node)) is not None]
    assert found == (["a.b"] if is_reader else [])


@pytest.mark.parametrize(("key", "readers_of"), ROWS, ids=[key.name for key, _ in ROWS])
def test_a_key_is_read_or_says_why_not(key, readers_of):
    readers = readers_of().get(key.name, [])
    if key.unread is None:
        assert readers, f"nothing reads {key.name}: give its definition an `unread`, or make it work"
    else:
        assert not readers, f"{key.name} is read at {readers}: take `unread` out of its definition"


@pytest.mark.parametrize("topic_key", SERVER_SYNONYMS)
def test_a_topics_default_is_served_as_the_topics_own_value_is(topic_key):
    for synonym in SERVER_SYNONYMS[topic_key]:
        is_read = BROKER_CONFIGS[synonym.name].unread is None
        assert is_read == (TOPIC_CONFIGS[topic_key].unread is None), synonym.name


def test_what_may_be_set_for_a_listener_is_read_for_a_listener():
    assert listener_readers() == {name for name in LISTENER_KEYS if BROKER_CONFIGS[name].unread is None}


def test_every_attribute_of_a_configuration_is_read():
    assert unread_attributes() == []


def test_the_page_is_what_the_definitions_say():
    assert PAGE.read_text() == page(), (
        "make it again: .venv/bin/python -m tests.unit.config.configuration_page"
    )


def test_settings_carry_nothing_that_nothing_reads():
    """A key that is read into a settings class, and not out of it, has no effect either."""
    assert list(unread_settings()) == []

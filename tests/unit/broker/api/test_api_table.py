"""Every module of ottla.broker.api says what it serves, and serves what Kafka 4.4.0 serves."""

import importlib

import pytest

from ottla.broker.api import Api, api, modules
from ottla.broker.api.k18_api_versions import served
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey, ApiListener, listeners

KEYS = sorted(modules())


@pytest.mark.parametrize("key", KEYS, ids=lambda key: ApiKey(key).name)
def test_a_module_states_its_contract(key):
    module = importlib.import_module(modules()[key])
    assert isinstance(module.API, Api)
    assert module.__name__ == f"ottla.broker.api.k{key:02}_{ApiKey(key).name.lower()}"
    versions = KAFKA_VERSIONS[ApiKey(key)]
    assert module.API.versions == versions
    first_line, *rest = module.__doc__.splitlines()
    assert f"(key {key}):" in first_line
    stated = "v0." if versions == range(1) else f"v{versions.start}-{versions.stop - 1}."
    for heading in ("Who asks:", f"Versions: {stated}", "Differs from Kafka:", "Touches:"):
        assert any(line.startswith(heading) for line in rest), (
            f"{module.__name__}: no line starts {heading!r}"
        )


#: The APIs of Kafka's brokers that are not served yet, by what they are for.
NOT_SERVED = {
    "transactions": {
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
    },
    "security": {
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
    },
    "consumer groups of KIP-848": {ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE},
    "share groups": {
        *range(ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_ACKNOWLEDGE + 1),
        *range(ApiKey.INITIALIZE_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY + 1),
        *range(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, ApiKey.DELETE_SHARE_GROUP_OFFSETS + 1),
    },
    "streams groups": {
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        ApiKey.STREAMS_GROUP_DESCRIBE,
        ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
    },
}


def test_every_api_of_kafkas_brokers_is_served_or_listed_here():
    of_brokers = {key for key in ApiKey if ApiListener.BROKER in listeners(key)}
    missing = set().union(*NOT_SERVED.values())
    assert missing <= of_brokers
    assert set(KEYS) == of_brokers - missing


def test_a_module_is_loaded_once():
    assert api(ApiKey.METADATA) is api(ApiKey.METADATA)
    with pytest.raises(KeyError):
        api(9999)


# KIP-511
def test_produce_is_advertised_from_0_on():
    rows = {row.api_key: row for row in served()}
    assert (rows[ApiKey.PRODUCE].min_version, rows[ApiKey.PRODUCE].max_version) == (0, 13)
    assert (rows[ApiKey.FETCH].min_version, rows[ApiKey.FETCH].max_version) == (4, 18)
    assert sorted(rows) == KEYS


def test_what_is_forwarded_is_served_as_the_controller_serves_it():
    older = {row.api_key: range(row.min_version, row.max_version + 1) for row in served()}
    older[ApiKey.CREATE_TOPICS] = range(2, 6)
    del older[ApiKey.DELETE_TOPICS]
    older[ApiKey.FETCH] = range(2, 6)  # of no interest: not forwarded
    rows = {row.api_key: (row.min_version, row.max_version) for row in served(older)}
    assert rows[ApiKey.CREATE_TOPICS] == (2, 5)
    assert ApiKey.DELETE_TOPICS not in rows
    assert rows[ApiKey.FETCH] == (4, 18)

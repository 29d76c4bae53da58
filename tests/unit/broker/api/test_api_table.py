"""Every module of ottla.broker.api says what it serves, and serves what Kafka 4.3.1 serves."""

import importlib

import pytest

from ottla.broker.api import Api, api, modules
from ottla.broker.api.k18_api_versions import served
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey

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


def test_what_a_standalone_broker_needs_is_served():
    assert set(KEYS) >= {0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23}
    assert set(KEYS) >= {32, 33, 35, 37, 42, 44, 47, 60, 75}


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

"""AlterClientQuotas and what DescribeClientQuotas makes of it.

About KIP-546.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.controller.quotas import alter_client_quotas
from ottla.metadata.client_quotas import QuotaFilter, describe
from ottla.protocol.errors import ErrorCode, KafkaError, PolicyViolation
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from ottla.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from ottla.protocol.refusals import refuse
from ottla.stories.elections.machine import Machine


def entry(entity: tuple[tuple[str, str | None], ...], *ops: tuple[str, float | None]) -> EntryData:
    return EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops],
    )


def alter(machine: Machine, *entries: EntryData, validate_only: bool = False) -> AlterClientQuotasResponse:
    request = AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    return machine.do(alter_client_quotas(machine.state, request))


def outcome(machine: Machine, entity: tuple, *ops: tuple[str, float | None]) -> tuple[int, str | None]:
    (row,) = alter(machine, entry(entity, *ops)).entries
    return row.error_code, row.error_message


ALICE = (("user", "alice"),)
RATE = "producer_byte_rate"


def test_set_change_and_remove():
    machine = Machine()
    assert outcome(machine, ALICE, (RATE, 1000.0), ("request_percentage", 12.5)) == (0, None)
    assert machine.state.image.client_quotas == {ALICE: {RATE: 1000.0, "request_percentage": 12.5}}
    before = len(machine.log)
    assert outcome(machine, ALICE, (RATE, 1000.0), ("consumer_byte_rate", None)) == (0, None)
    assert len(machine.log) == before  # nothing that was not so already
    assert outcome(machine, ALICE, (RATE, None), ("request_percentage", 1.0)) == (0, None)
    assert machine.state.image.client_quotas == {ALICE: {"request_percentage": 1.0}}
    assert outcome(machine, ALICE, ("request_percentage", None)) == (0, None)
    assert machine.state.image.client_quotas == {}


# KIP-612
def test_entities():
    machine = Machine()
    for entity in (
        (("user", None),),
        (("client-id", "c"),),
        (("client-id", None), ("user", "u")),
        (("user", "u"), ("client-id", None)),  # the same one again
    ):
        assert outcome(machine, entity, (RATE, 5.0)) == (0, None)
    assert outcome(machine, (("ip", None),), ("connection_creation_rate", 7.0)) == (0, None)
    assert outcome(machine, (("ip", "127.0.0.1"),), ("connection_creation_rate", 7.0)) == (0, None)
    assert outcome(machine, (("ip", "::1"),), ("connection_creation_rate", 7.0)) == (0, None)
    assert set(machine.state.image.client_quotas) == {
        (("user", None),),
        (("client-id", "c"),),
        (("client-id", None), ("user", "u")),
        (("ip", None),),
        (("ip", "127.0.0.1"),),
        (("ip", "::1"),),
    }


@pytest.mark.parametrize(
    ("entity", "key", "value", "why"),
    [
        ((), RATE, 1.0, "Invalid empty client quota entity"),
        ((("group", "g"),), RATE, 1.0, "Unhandled client quota entity type: group"),
        ((("user", ""),), RATE, 1.0, "Empty user not supported"),
        ((("ip", ""),), RATE, 1.0, "Empty ip not supported"),
        ((("ip", "no.such.host"),), "connection_creation_rate", 1.0,
         "no.such.host is not a valid IP or resolvable host."),
        ((("ip", "1.2.3.4"), ("user", "u")), RATE, 1.0,
         "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"),
        ((("ip", "1.2.3.4"),), RATE, 1.0, f"Invalid configuration key {RATE}"),
        (ALICE, "connection_creation_rate", 1.0, "Invalid configuration key connection_creation_rate"),
        (ALICE, "", 1.0, "Invalid configuration key "),
        (ALICE, RATE, 0.0, f"Quota {RATE} must be greater than 0"),
        (ALICE, RATE, -1.0, f"Quota {RATE} must be greater than 0"),
        (ALICE, RATE, math.nan, f"Quota {RATE} must be a number"),
        (ALICE, RATE, 1.5, f"{RATE} cannot be a fractional value."),
        (ALICE, RATE, math.inf, f"Proposed value for {RATE} is too large for a LONG."),
        (ALICE, RATE, 1e19, f"Proposed value for {RATE} is too large for a LONG."),
        (ALICE, RATE, 2.0**63, None),
        (ALICE, RATE, 1.0000001, None),
        (ALICE, "request_percentage", 0.001, None),
        (ALICE, "controller_mutation_rate", 1e300, None),
        ((("ip", None),), "connection_creation_rate", 2.0**31,
         "Proposed value for connection_creation_rate is too large for an INT."),
        ((("ip", None),), "connection_creation_rate", 2.0**31 - 1, None),
    ],
)  # fmt: skip
def test_what_is_refused(entity: tuple, key: str, value: float, why: str | None):
    machine = Machine()
    code = ErrorCode.none if why is None else ErrorCode.invalid_request
    assert outcome(machine, entity, (key, value)) == (code, why)
    assert (machine.state.image.client_quotas == {}) == (why is not None)


def test_all_limits_of_an_entity_or_none():
    machine = Machine()
    assert outcome(machine, ALICE, (RATE, 5.0), ("consumer_byte_rate", -5.0))[0] == ErrorCode.invalid_request
    assert machine.state.image.client_quotas == {}


def test_what_is_named_twice_is_ignored_the_second_time():
    machine = Machine()
    why = "Ignoring duplicate entity ClientQuotaEntity(entries={user=alice})"
    response = alter(machine, entry(ALICE, (RATE, 5.0)), entry(ALICE, (RATE, 6.0)))
    assert [(row.error_code, row.error_message) for row in response.entries] == [
        (ErrorCode.invalid_request, why)
    ]
    assert machine.state.image.client_quotas == {ALICE: {RATE: 5.0}}
    assert outcome(machine, (("user", "bob"),), (RATE, 1.0), (RATE, 2.0))[0] == ErrorCode.invalid_request
    assert machine.state.image.client_quotas == {ALICE: {RATE: 5.0}}


def test_one_bad_entity_leaves_the_others_alone_and_validation_changes_nothing():
    machine = Machine()
    entries = [entry((("group", "g"),), (RATE, 1.0)), entry(ALICE, (RATE, 1.0))]
    rows = alter(machine, *entries, validate_only=True).entries
    assert [row.error_code for row in rows] == [ErrorCode.invalid_request, ErrorCode.none]
    assert machine.state.image.client_quotas == {}
    alter(machine, *entries)
    assert machine.state.image.client_quotas == {ALICE: {RATE: 1.0}}
    assert alter(machine).entries == []


def test_too_much_at_once():
    machine = Machine()
    entries = [entry((("user", str(number)),), (RATE, 1.0)) for number in range(10_001)]
    request = AlterClientQuotasRequest(entries=entries)
    with pytest.raises(PolicyViolation) as refused:
        alter_client_quotas(machine.state, request)
    rows = refuse(request, refused.value).entries
    assert {row.error_code for row in rows} == {ErrorCode.policy_violation}
    assert len(rows) == 10_001


# -- DescribeClientQuotas ----------------------------------------------------------------------------------

EXACT, DEFAULT, SPECIFIED = 0, 1, 2


def filter_of(*components: tuple[str, int, str | None], strict: bool = False) -> QuotaFilter:
    return QuotaFilter.of(
        DescribeClientQuotasRequest(
            components=[
                ComponentData(entity_type=kind, match_type=match_type, match=match)
                for kind, match_type, match in components
            ],
            strict=strict,
        )
    )


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", EXACT, "x")], ErrorCode.invalid_request),
        ([("group", EXACT, "x")], ErrorCode.unsupported_version),
        ([("user", EXACT, "x"), ("user", SPECIFIED, None)], ErrorCode.invalid_request),
        ([("user", EXACT, None)], ErrorCode.invalid_request),
        ([("user", DEFAULT, "x")], ErrorCode.invalid_request),
        ([("user", SPECIFIED, "x")], ErrorCode.invalid_request),
        ([("user", 3, None)], ErrorCode.invalid_request),
        ([("user", -1, "x")], ErrorCode.invalid_request),
        ([("user", EXACT, "x"), ("ip", EXACT, "1.2.3.4")], ErrorCode.invalid_request),
        ([("ip", SPECIFIED, None), ("client-id", DEFAULT, None)], ErrorCode.invalid_request),
    ],
)
def test_filters_that_are_none(components: list, code: ErrorCode):
    with pytest.raises(KafkaError) as refused:
        filter_of(*components)
    assert refused.value.code == code
    assert refuse(DescribeClientQuotasRequest(), refused.value).entries is None


names = st.sampled_from([None, "a", "b"])
entities = st.dictionaries(
    st.sampled_from(["user", "client-id"]), names, min_size=1, max_size=2
) | st.fixed_dictionaries({"ip": st.sampled_from([None, "1.2.3.4"])})
matches = st.tuples(st.just(EXACT), st.sampled_from(["a", "b", "1.2.3.4"])) | st.sampled_from(
    [(DEFAULT, None), (SPECIFIED, None)]
)
filters = st.dictionaries(
    st.sampled_from(["user", "client-id"]), matches, max_size=2
) | st.fixed_dictionaries({"ip": matches})


@given(st.lists(entities, max_size=8), filters, st.booleans())
def test_filters_against_their_definition(stored: list[dict], components: dict, strict: bool):
    quotas = {tuple(sorted(entity.items())): {"k": 1.0} for entity in stored}

    def is_meant(entity: dict[str, str | None]) -> bool:
        for kind, (match_type, match) in components.items():
            if kind not in entity:
                return False
            if match_type == EXACT and entity[kind] != match:
                return False
            if match_type == DEFAULT and entity[kind] is not None:
                return False
        return not strict or entity.keys() == components.keys()

    asked = filter_of(*((kind, *match) for kind, match in components.items()), strict=strict)
    found = describe(asked, quotas).entries
    assert [{part.entity_type: part.entity_name for part in row.entity} for row in found] == [
        dict(entity) for entity in quotas if is_meant(dict(entity))
    ]


class Model:
    """Entity -> limits, changed as the KIP says it."""

    def __init__(self) -> None:
        self.quotas: dict[frozenset, dict[str, float]] = {}

    def apply(self, entity: dict[str, str | None], ops: dict[str, float | None]) -> None:
        limits = self.quotas.setdefault(frozenset(entity.items()), {})
        for key, value in ops.items():
            if value is None:
                limits.pop(key, None)
            else:
                limits[key] = value
        if not limits:
            del self.quotas[frozenset(entity.items())]


keys = st.sampled_from([RATE, "consumer_byte_rate", "request_percentage"])
people = st.dictionaries(st.sampled_from(["user", "client-id"]), names, min_size=1)
operations = st.dictionaries(keys, st.none() | st.integers(1, 9).map(float), max_size=3)


@given(st.lists(st.tuples(people, operations), max_size=12))
def test_alterations_against_a_model(changes: list):
    machine, model = Machine(), Model()
    for entity, ops in changes:
        assert outcome(machine, tuple(entity.items()), *ops.items()) == (0, None)
        model.apply(entity, ops)
    found = machine.state.image.client_quotas
    assert {frozenset(entity): limits for entity, limits in found.items()} == model.quotas

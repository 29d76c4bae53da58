"""CreateAcls, DeleteAcls, and what filters match.

About KIP-140.
"""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.controller.acls import create_acls, delete_acls, describe_acls
from ottla.metadata.acls import (
    AclFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourceType,
    describe,
)
from ottla.metadata.records import AccessControlEntryRecord
from ottla.protocol.errors import ErrorCode, InvalidRequest, PolicyViolation, SecurityDisabled
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from ottla.protocol.messages.describe_acls import DescribeAclsRequest
from ottla.protocol.refusals import refuse
from ottla.stories.elections.machine import Machine

AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
READ, DESCRIBE = AclOperation.READ, AclOperation.DESCRIBE
DENY, ALLOW = AclPermissionType.DENY, AclPermissionType.ALLOW


def authorizing(**settings: int) -> Machine:
    return Machine(static_configs=AUTHORIZER, **settings)


def acl(name: str = "t", **fields: object) -> AclCreation:
    given_fields = {
        "resource_type": ResourceType.TOPIC,
        "resource_pattern_type": PatternType.LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
        **fields,
    }
    return AclCreation(resource_name=name, **given_fields)


def create(machine: Machine, *acls: AclCreation) -> list[tuple[int, str | None]]:
    response = machine.do(create_acls(machine.state, CreateAclsRequest(creations=list(acls))))
    return [(row.error_code, row.error_message) for row in response.results]


def wanted(name: str | None = None, pattern: int = PatternType.ANY, **fields: object) -> DeleteAclsFilter:
    given_fields = {
        "resource_type_filter": ResourceType.ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": AclOperation.ANY,
        "permission_type": AclPermissionType.ANY,
        **fields,
    }
    return DeleteAclsFilter(resource_name_filter=name, pattern_type_filter=pattern, **given_fields)


def delete(machine: Machine, *filters: DeleteAclsFilter) -> DeleteAclsResponse:
    return machine.do(delete_acls(machine.state, DeleteAclsRequest(filters=list(filters))))


def names(machine: Machine) -> list[str]:
    return sorted(record.resource_name for record in machine.state.image.acls.values())


def test_without_an_authorizer_there_are_none():
    machine = Machine()
    request = CreateAclsRequest(creations=[acl(), acl("u")])
    with pytest.raises(SecurityDisabled) as refused:
        create_acls(machine.state, request)
    rows = refuse(request, refused.value).results
    assert [(row.error_code, row.error_message) for row in rows] == [
        (ErrorCode.security_disabled, "No Authorizer is configured.")
    ] * 2
    deletion = DeleteAclsRequest(filters=[wanted()])
    with pytest.raises(SecurityDisabled) as refused:
        delete_acls(machine.state, deletion)
    assert [row.error_code for row in refuse(deletion, refused.value).filter_results] == [
        ErrorCode.security_disabled
    ]


def test_controllers_describe_them_too():
    every = DescribeAclsRequest(
        resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
        host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip
    machine = authorizing()
    create(machine, acl(), acl("u"))
    response = machine.do(describe_acls(machine.state, every))
    assert [row.resource_name for row in response.resources] == ["t", "u"]
    with pytest.raises(InvalidRequest):
        describe_acls(machine.state, replace(every, operation=0))
    with pytest.raises(SecurityDisabled):
        describe_acls(Machine().state, every)


def test_created_once():
    machine = authorizing()
    assert create(machine, acl(), acl(), acl(operation=DESCRIBE)) == [(0, "")] * 3
    assert len(machine.state.image.acls) == 2
    before = len(machine.log)
    assert create(machine, acl()) == [(0, "")]
    assert len(machine.log) == before
    assert create(machine) == []


def no_colon(principal: str) -> str:
    return (
        f"Could not parse principal from `{principal}` (no colon is present separating the principal type from "
        "the principal name)"
    )


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (acl(""), "Invalid empty resource name"),
        (acl("x", resource_type=ResourceType.CLUSTER), "The only valid name for the CLUSTER resource is kafka-cluster"),
        (acl(resource_type=ResourceType.ANY), "Invalid resourceType ANY"),
        (acl(resource_type=0), "Invalid resourceType UNKNOWN"),
        (acl(resource_type=99), "Invalid resourceType UNKNOWN"),
        (acl(resource_type=-1), "Invalid resourceType UNKNOWN"),
        (acl(resource_pattern_type=PatternType.ANY), "Invalid patternType ANY"),
        (acl(resource_pattern_type=PatternType.MATCH), "Invalid patternType MATCH"),
        (acl(resource_pattern_type=7), "Invalid patternType UNKNOWN"),
        (acl(operation=AclOperation.ANY), "Invalid operation ANY"),
        (acl(operation=77), "Invalid operation UNKNOWN"),
        (acl(permission_type=AclPermissionType.ANY), "Invalid permissionType ANY"),
        (acl(permission_type=0), "Invalid permissionType UNKNOWN"),
        (acl(principal="alice"), no_colon("alice")),
        (acl(principal=""), no_colon("")),
    ],
)  # fmt: skip
def test_rows_that_are_refused(refused: AclCreation, why: str):
    machine = authorizing()
    assert create(machine, refused, acl("good")) == [(ErrorCode.invalid_request, why), (0, "")]
    assert names(machine) == ["good"]


# KIP-373
def test_the_cluster_and_the_largest_codes():
    machine = authorizing()
    rows = [
        acl("kafka-cluster", resource_type=ResourceType.CLUSTER, operation=AclOperation.ALL),
        acl("u", resource_type=ResourceType.USER, operation=AclOperation.CREATE_TOKENS),
        acl("x", resource_type=ResourceType.TRANSACTIONAL_ID, operation=AclOperation.TWO_PHASE_COMMIT),
        acl("t", principal=":", host="::", permission_type=DENY, resource_pattern_type=PatternType.PREFIXED),
    ]
    assert create(machine, *rows) == [(0, "")] * 4


@pytest.mark.parametrize(("host", "level", "code", "why"), [
    ("10.0.0.0/8",      33, 0,  ""),
    ("10.1.2.3/32",     32, 0,  ""),
    ("2001:db8::/32",   32, 0,  ""),
    ("10.0.0.0/8",      31, 35, "CIDR-based ACL host patterns require metadata version 4.4-IV1 or higher."),
    ("10.0.0.0/08",     33, 0,  ""),
    ("010.0.0.0/0",     33, 0,  ""),
    ("2001:db8::/032",  33, 0,  ""),
    ("[2001:db8::]/32", 33, 0,  ""),
    ("fe80::1%1/64",    33, 0,  ""),
    ("::10.0.0.0/104",  33, 0,  ""),
    ("fe80::1%eth0/64", 33, 42, "Invalid CIDR notation 'fe80::1%eth0/64': the zone eth0 depends on the machine"),
    ("::ffff:10.0.0.0/104", 33, 42, "Invalid CIDR notation '::ffff:10.0.0.0/104': write it as a range of IPv4"),
    ("2001:db8::/129",  33, 42, "Invalid CIDR notation '2001:db8::/129': the length of the prefix"),
    ("2001:db8::/",     33, 42, "Invalid CIDR notation '2001:db8::/': the length of the prefix"),
    ("2001::db8::/32",  33, 42, "Invalid CIDR notation '2001::db8::/32': "),
    ("10.0.0.0/008",    33, 42, "Invalid CIDR notation '10.0.0.0/008': a range is written as"),
    ("10.0.0.256/8",    33, 42, "Invalid CIDR notation '10.0.0.256/8': 256 in the address"),
    ("10.0.0.0/8/8",    33, 42, "Invalid CIDR notation '10.0.0.0/8/8': a range is written as"),
    ("10.0.0.0/33",     33, 42, "Invalid CIDR notation '10.0.0.0/33': "),
    ("10.0.0.0/",       33, 42, "Invalid CIDR notation '10.0.0.0/': "),
    ("10/8",            33, 42, "Invalid CIDR notation '10/8': "),
    ("10.0.0.0/0.0.0.255", 33, 42, "Invalid CIDR notation '10.0.0.0/0.0.0.255': "),
    ("",                33, 42, "Host pattern cannot be null or empty"),
    ("a host",          30, 0,  ""),
])  # fmt: skip
def test_a_host_may_be_a_range_of_addresses(host: str, level: int, code: int, why: str):
    machine = authorizing(metadata_version=level)
    ((found, message),) = create(machine, acl(host=host))
    assert (found, (message or "")[: len(why)]) == (code, why)


def test_removing_one_of_several_keeps_the_others():  # CVE-2024-27309
    machine = authorizing()
    create(machine, acl(), acl(principal="User:bob"), acl(operation=DESCRIBE), acl("u"))
    (result,) = delete(machine, wanted("t", PatternType.LITERAL, principal_filter="User:bob")).filter_results
    assert [(row.resource_name, row.principal) for row in result.matching_acls] == [("t", "User:bob")]
    assert sorted((each.resource_name, each.operation) for each in machine.state.image.acls.values()) == [
        ("t", READ),
        ("t", DESCRIBE),
        ("u", READ),
    ]


def test_an_acl_that_two_filters_match_is_returned_twice_and_removed_once():
    machine = authorizing()
    create(machine, acl())
    results = delete(machine, wanted("t"), wanted(), wanted("unknown")).filter_results
    assert [len(row.matching_acls) for row in results] == [1, 1, 0]
    assert machine.state.image.acls == {}
    assert delete(machine).filter_results == []


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (wanted(resource_type_filter=0), "Unknown patternFilter."),
        (wanted(resource_type_filter=50), "Unknown patternFilter."),
        (wanted(pattern=9), "Unknown patternFilter."),
        (wanted(operation=99), "Unknown entryFilter."),
        (wanted(permission_type=-7), "Unknown entryFilter."),
    ],
)
def test_filters_that_are_none(bad: DeleteAclsFilter, why: str):
    machine = authorizing()
    create(machine, acl())
    first, second = delete(machine, bad, wanted("unknown")).filter_results
    assert (first.error_code, first.error_message) == (ErrorCode.invalid_request, why)
    assert (second.error_code, second.error_message) == (0, None)
    assert names(machine) == ["t"]


def test_too_many_at_once():
    machine = authorizing()
    for start in (0, 6000):
        create(machine, *(acl(str(number)) for number in range(start, start + 6000)))
    with pytest.raises(
        InvalidRequest, match="Cannot remove more than 10000 acls in a single delete operation"
    ):
        delete(machine, wanted())
    assert len(machine.state.image.acls) == 12_000
    with pytest.raises(PolicyViolation):
        create(machine, *(acl(f"n{number}") for number in range(10_001)))


def test_an_answer_has_its_bounds_too():
    """Filters are short, and each may match everything: returned rows count, not only removed ones."""
    machine = authorizing()
    create(machine, *(acl(str(number)) for number in range(5_000)))
    with pytest.raises(InvalidRequest, match="Cannot remove more than 10000 acls"):
        delete(machine, wanted(), wanted(), wanted("0"))
    assert len(machine.state.image.acls) == 5_000
    reported = delete(machine, wanted(), wanted())
    assert [len(row.matching_acls) for row in reported.filter_results] == [5_000, 5_000]
    assert machine.state.image.acls == {}


# -- filters -------------------------------------------------------------------------------------------------

STORED = {
    "literal foo": ("foo", PatternType.LITERAL),
    "literal *": ("*", PatternType.LITERAL),
    "prefixed f": ("f", PatternType.PREFIXED),
    "prefixed *": ("*", PatternType.PREFIXED),
    "prefixed foobar": ("foobar", PatternType.PREFIXED),
}


# KIP-290
@pytest.mark.parametrize(
    ("name", "pattern", "found"),
    [
        ("foo", PatternType.LITERAL, ["literal foo"]),
        ("*", PatternType.LITERAL, ["literal *"]),
        ("f", PatternType.PREFIXED, ["prefixed f"]),
        ("foo", PatternType.PREFIXED, []),
        ("foo", PatternType.ANY, ["literal foo"]),
        ("*", PatternType.ANY, ["literal *", "prefixed *"]),
        ("foo", PatternType.MATCH, ["literal foo", "literal *", "prefixed f"]),
        ("foobars", PatternType.MATCH, ["literal *", "prefixed f", "prefixed foobar"]),
        ("x", PatternType.MATCH, ["literal *"]),
        ("*x", PatternType.MATCH, ["literal *", "prefixed *"]),
        (None, PatternType.LITERAL, ["literal foo", "literal *"]),
        (None, PatternType.PREFIXED, ["prefixed f", "prefixed *", "prefixed foobar"]),
        (None, PatternType.ANY, list(STORED)),
        (None, PatternType.MATCH, list(STORED)),
        (None, 9, []),
        ("", PatternType.ANY, []),
    ],
)  # fmt: skip
def test_names_and_patterns(name: str | None, pattern: int, found: list[str]):
    asked = AclFilter.of(wanted(name, pattern))
    assert [
        title
        for title, (stored, kind) in STORED.items()
        if asked.matches(AccessControlEntryRecord(resource_name=stored, pattern_type=kind))
    ] == found


resource_names = st.text("af*", min_size=1, max_size=3)
records = st.builds(
    AccessControlEntryRecord,
    resource_type=st.integers(2, 4),
    resource_name=resource_names,
    pattern_type=st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    principal=st.sampled_from(["User:a", "User:b"]),
    host=st.sampled_from(["*", "h"]),
    operation=st.integers(2, 4),
    permission_type=st.integers(2, 3),
)
requests = st.builds(
    DescribeAclsRequest,
    resource_type_filter=st.integers(1, 5),
    resource_name_filter=st.none() | resource_names,
    pattern_type_filter=st.integers(1, 4),
    principal_filter=st.none() | st.sampled_from(["User:a", "User:c"]),
    host_filter=st.none() | st.just("h"),
    operation=st.integers(1, 5),
    permission_type=st.integers(1, 3),
)


def is_meant(asked: DescribeAclsRequest, stored: AccessControlEntryRecord) -> bool:
    """ResourcePatternFilter and AccessControlEntryFilter, by their documentation."""
    exact = (
        (asked.resource_type_filter, stored.resource_type),
        (asked.operation, stored.operation),
        (asked.permission_type, stored.permission_type),
    )
    if any(code not in (1, value) for code, value in exact):
        return False
    if asked.principal_filter not in (None, stored.principal) or asked.host_filter not in (None, stored.host):
        return False
    name = asked.resource_name_filter
    if asked.pattern_type_filter != PatternType.MATCH:
        return asked.pattern_type_filter in (1, stored.pattern_type) and name in (None, stored.resource_name)
    return name is None or (
        name.startswith(stored.resource_name)
        if stored.pattern_type == PatternType.PREFIXED
        else stored.resource_name in ("*", name)
    )


@given(st.lists(records, max_size=10), requests)
def test_descriptions_against_the_definition(
    stored: list[AccessControlEntryRecord], asked: DescribeAclsRequest
):
    response = describe(asked, stored)
    keys = [(row.resource_type, row.resource_name, row.pattern_type) for row in response.resources]
    assert len(set(keys)) == len(keys)
    found = [
        (*key, each.principal, each.host, each.operation, each.permission_type)
        for key, row in zip(keys, response.resources, strict=True)
        for each in row.acls
    ]
    assert sorted(found) == sorted(
        (
            each.resource_type,
            each.resource_name,
            each.pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        for each in stored
        if is_meant(asked, each)
    )


@given(st.lists(records, max_size=8), requests)
def test_deletions_against_a_model(stored: list[AccessControlEntryRecord], asked: DescribeAclsRequest):
    machine = authorizing()
    machine.replay(*(replace(each, id=UUID(int=number)) for number, each in enumerate(stored, start=1)))
    before = dict(machine.state.image.acls)
    deletion = DeleteAclsFilter(
        resource_type_filter=asked.resource_type_filter,
        resource_name_filter=asked.resource_name_filter,
        pattern_type_filter=asked.pattern_type_filter,
        principal_filter=asked.principal_filter,
        host_filter=asked.host_filter,
        operation=asked.operation,
        permission_type=asked.permission_type,
    )
    (result,) = delete(machine, deletion).filter_results
    left = {acl_id: each for acl_id, each in before.items() if not is_meant(asked, each)}
    assert machine.state.image.acls == left
    assert len(result.matching_acls) == len(before) - len(left)

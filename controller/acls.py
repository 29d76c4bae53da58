"""CreateAcls, DeleteAcls and DescribeAcls: access control entries in the metadata log.

Each entry has an id, by which a record removes it; users do not see the id. Creating an entry that exists succeeds
and writes no record. Each row of a request succeeds or fails alone.

Without an authorizer there are no ACLs: the error is SECURITY_DISABLED, as in Kafka. With Kafka's StandardAuthorizer
configured they are kept; the authorizer reads them from the image.

Source: AclControlManager and AclApis of Kafka 4.3.1; ranges of addresses: of Kafka 4.4.0.
"""

import re
from enum import IntEnum
from ipaddress import IPv6Address
from itertools import islice
from typing import Final, TypeVar
from uuid import UUID

from ottla.controller.result import MAX_RECORDS_PER_USER_OPERATION, Result, check_record_count
from ottla.controller.state import ClusterState
from ottla.controller.steps import Steps, by_steps, in_steps
from ottla.metadata.acls import (
    CLUSTER_NAME,
    AclFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourceType,
    describe,
)
from ottla.metadata.features import CIDR_ACLS_4_4_IV1, METADATA_VERSIONS
from ottla.metadata.records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from ottla.protocol.errors import ErrorCode, InvalidRequest, KafkaError, SecurityDisabled, UnsupportedVersion
from ottla.protocol.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from ottla.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from ottla.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

AUTHORIZER_KEY: Final = "authorizer.class.name"

#: A range of IPv4 addresses, and the length of the prefix in one of IPv6 addresses.
_IPV4_RANGE: Final = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})/([0-9]{1,2})")
_IPV6_LENGTH: Final = re.compile(r"[0-9]{1,9}")

_E = TypeVar("_E", bound=IntEnum)

#: The fields of an ACL without its id: two ACLs with the same content are one.
_Content = tuple[int, str, int, str, str, int, int]


@in_steps
def create_acls(state: ClusterState, request: CreateAclsRequest) -> Steps[CreateAclsResponse]:
    """Add ACLs. Raises SecurityDisabled, and PolicyViolation for too many."""
    _check_enabled(state)
    existing = {_content(acl) for acl in state.image.acls.values()}
    records: list[AccessControlEntryRecord] = []
    results = []
    for is_next_step, creation in by_steps(request.creations):
        if is_next_step:
            yield
        try:
            _check_creation(creation, state.metadata_version)
        except KafkaError as error:
            results.append(AclCreationResult(error_code=error.code, error_message=error.message))
            continue
        results.append(AclCreationResult(error_code=ErrorCode.none))
        record = _record(creation, UUID(int=state.random.getrandbits(128), version=4))
        if _content(record) not in existing:
            existing.add(_content(record))
            records.append(record)
    check_record_count(len(records))
    return Result(response=CreateAclsResponse(results=results), records=records)


@in_steps
def delete_acls(state: ClusterState, request: DeleteAclsRequest) -> Steps[DeleteAclsResponse]:
    """Remove the ACLs that filters match; one that two filters match is reported for both. Raises SecurityDisabled,
    and InvalidRequest if the response would list too many ACLs; that bounds the number of removals, too.

    Kafka counts the removals only, so that many short filters with the same matches make its response unbounded.
    """
    _check_enabled(state)
    room = MAX_RECORDS_PER_USER_OPERATION
    removed: dict[UUID, AccessControlEntryRecord] = {}
    results = []
    for is_next_step, asked in by_steps(request.filters):
        if is_next_step:
            yield
        try:
            _check_filter(asked)
        except KafkaError as error:
            results.append(DeleteAclsFilterResult(error_code=error.code, error_message=error.message))
            continue
        matches = AclFilter.of(asked).matches
        matching = (row for row in state.image.acls.items() if matches(row[1]))
        found = dict(islice(matching, room + 1))
        if len(found) > room:
            raise InvalidRequest(
                f"Cannot remove more than {MAX_RECORDS_PER_USER_OPERATION} acls in a single delete operation."
            )
        room -= len(found)
        removed |= found
        results.append(
            DeleteAclsFilterResult(
                error_code=ErrorCode.none,
                error_message=None,
                matching_acls=[_matching(acl) for acl in found.values()],
            )
        )
    return Result(
        response=DeleteAclsResponse(filter_results=results),
        records=[RemoveAccessControlEntryRecord(id=acl_id) for acl_id in removed],
    )


def describe_acls(state: ClusterState, request: DescribeAclsRequest) -> Result[DescribeAclsResponse]:
    """DescribeAcls on a controller's own listener. Raises SecurityDisabled, InvalidRequest."""
    _check_enabled(state, "No Authorizer is configured on the broker")
    return Result(response=describe(request, state.image.acls.values()))


def _check_enabled(state: ClusterState, otherwise: str = "No Authorizer is configured.") -> None:
    if not state.settings.static_configs.get(AUTHORIZER_KEY, "").strip():
        raise SecurityDisabled(otherwise)


def _check_creation(creation: AclCreation, metadata_version: int) -> None:
    """Raise InvalidRequest or UnsupportedVersion for an ACL that cannot be created, as one for resource type ANY."""
    if creation.resource_type == ResourceType.CLUSTER and creation.resource_name != CLUSTER_NAME:
        raise InvalidRequest(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not creation.resource_name:
        raise InvalidRequest("Invalid empty resource name")
    resource_type = _named(ResourceType, creation.resource_type)
    if resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        raise InvalidRequest(f"Invalid resourceType {resource_type.name}")
    pattern_type = _named(PatternType, creation.resource_pattern_type)
    if pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidRequest(f"Invalid patternType {pattern_type.name}")
    operation = _named(AclOperation, creation.operation)
    if operation in (AclOperation.UNKNOWN, AclOperation.ANY):
        raise InvalidRequest(f"Invalid operation {operation.name}")
    permission_type = _named(AclPermissionType, creation.permission_type)
    if permission_type not in (AclPermissionType.ALLOW, AclPermissionType.DENY):
        raise InvalidRequest(f"Invalid permissionType {permission_type.name}")
    if ":" not in creation.principal:
        raise InvalidRequest(
            f"Could not parse principal from `{creation.principal}` (no colon is present separating the "
            "principal type from the principal name)"
        )
    _check_host(creation.host, metadata_version)


def _check_host(host: str, metadata_version: int) -> None:
    """A host is an address, a range of addresses as "10.0.0.0/8" from a level of metadata.version on, or "*"."""
    if not host:
        raise InvalidRequest("Host pattern cannot be null or empty")
    if "/" not in host:
        return
    if metadata_version < CIDR_ACLS_4_4_IV1:
        name = METADATA_VERSIONS[CIDR_ACLS_4_4_IV1].name
        raise UnsupportedVersion(f"CIDR-based ACL host patterns require metadata version {name} or higher.")
    if (fault := _fault_of_range(host)) is not None:
        raise InvalidRequest(f"Invalid CIDR notation '{host}': {fault}")


def _fault_of_range(host: str) -> str | None:
    """The reason why a host with a "/" is no range of addresses; None if it is one.

    The zone of an IPv6 address may only be a number: Kafka accepts names of the controller's own interfaces, too,
    and the ACL then has no effect on a broker without that interface.

    Source: CidrUtils of Kafka 4.4.0, and SubnetUtils and SubnetUtils6 of Commons Net.
    """
    if ":" not in host:
        if (found := _IPV4_RANGE.fullmatch(host)) is None:
            return "a range is written as 10.0.0.0/8 or 2001:db8::/32"
        *parts, length = map(int, found.groups())
        if max(parts) > 255:
            return f"{max(parts)} in the address is above 255"
        return f"the length of the prefix, {length}, is above 32" if length > 32 else None
    text, _, length_text = host.partition("/")
    if _IPV6_LENGTH.fullmatch(length_text) is None or int(length_text) > 128:
        return "the length of the prefix is not a number from 0 to 128"
    try:
        address = IPv6Address(text[1:-1] if text.startswith("[") and text.endswith("]") else text)
    except ValueError as error:
        return str(error)
    if address.ipv4_mapped is not None:
        return f"write it as a range of IPv4 addresses: {address.ipv4_mapped} with a prefix of up to 32"
    if address.scope_id is not None and not address.scope_id.isdecimal():
        return f"the zone {address.scope_id} depends on the machine: leave it out"
    return None


def _check_filter(asked: DeleteAclsFilter) -> None:
    """Raise InvalidRequest for a filter of ACLs with an unknown type, operation or permission."""
    if (
        _named(ResourceType, asked.resource_type_filter) is ResourceType.UNKNOWN
        or _named(PatternType, asked.pattern_type_filter) is PatternType.UNKNOWN
    ):
        raise InvalidRequest("Unknown patternFilter.")
    if (
        _named(AclOperation, asked.operation) is AclOperation.UNKNOWN
        or _named(AclPermissionType, asked.permission_type) is AclPermissionType.UNKNOWN
    ):
        raise InvalidRequest("Unknown entryFilter.")


def _named(kind: type[_E], code: int) -> _E:
    """The member with this code; UNKNOWN (code 0) for codes that are not defined."""
    return kind(code if code in kind.__members__.values() else 0)


def _record(creation: AclCreation, acl_id: UUID) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=acl_id,
        resource_type=creation.resource_type,
        resource_name=creation.resource_name,
        pattern_type=creation.resource_pattern_type,
        principal=creation.principal,
        host=creation.host,
        operation=creation.operation,
        permission_type=creation.permission_type,
    )


def _content(acl: AccessControlEntryRecord) -> _Content:
    return (
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )


def _matching(acl: AccessControlEntryRecord) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_code=ErrorCode.none,
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission_type,
    )

"""Access control entries (AclBinding): their codes, and filters (AclBindingFilter).

An ACL allows or denies (permission) a principal an operation from a host on resources: one
by its name (LITERAL; the name `*` means all of the type) or all whose names start with the prefix (PREFIXED). A filter
has the same fields; null and ANY match everything, and the pattern type MATCH selects all ACLs that apply to a
resource of this name, by any pattern.

    filter                     literal foo   literal *   prefixed f   prefixed foobar
    name foo, LITERAL              x
    name f,   PREFIXED                                       x
    name foo, ANY                  x
    name foo, MATCH                x             x           x
    name null, any type of these   those of the requested pattern type

Source: KIP-290; AclBindingFilter of Kafka 4.3.1.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from ottla.metadata.records import AccessControlEntryRecord
from ottla.protocol.errors import InvalidRequest
from ottla.protocol.messages.delete_acls import DeleteAclsFilter
from ottla.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)


class ResourceType(IntEnum):
    """The type of an ACL's resource."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """The way in which an ACL's resource name matches resources; ANY and MATCH are for filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """The operation that an ACL allows or denies."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermissionType(IntEnum):
    """Whether an ACL allows or denies the operation."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


#: The name of the one CLUSTER resource.
CLUSTER_NAME: Final = "kafka-cluster"
#: A LITERAL pattern of this name stands for every resource of its type.
WILDCARD: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """A filter of ACLs; codes without a member in the enumerations match nothing."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission_type: int

    @classmethod
    def of(cls, asked: DescribeAclsRequest | DeleteAclsFilter) -> Self:
        """Create the filter that a DescribeAcls or DeleteAcls request contains."""
        return cls(
            resource_type=asked.resource_type_filter,
            resource_name=asked.resource_name_filter,
            pattern_type=asked.pattern_type_filter,
            principal=asked.principal_filter,
            host=asked.host_filter,
            operation=asked.operation,
            permission_type=asked.permission_type,
        )

    def matches(self, acl: AccessControlEntryRecord) -> bool:
        """Whether the ACL matches the filter."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission_type in (AclPermissionType.ANY, acl.permission_type)
            and self._matches_name(acl)
        )

    def _matches_name(self, acl: AccessControlEntryRecord) -> bool:
        if self.pattern_type == PatternType.MATCH:
            if self.resource_name is None:
                return True
            if acl.pattern_type == PatternType.PREFIXED:
                return self.resource_name.startswith(acl.resource_name)
            return acl.resource_name in (self.resource_name, WILDCARD)
        return self.pattern_type in (PatternType.ANY, acl.pattern_type) and self.resource_name in (
            None,
            acl.resource_name,
        )


def describe(request: DescribeAclsRequest, acls: Iterable[AccessControlEntryRecord]) -> DescribeAclsResponse:
    """The ACLs that match, grouped by resource pattern. Raises InvalidRequest if a code is 0.

    Cost: O(n) in the number of ACLs.
    """
    asked = AclFilter.of(request)
    if 0 in (asked.resource_type, asked.pattern_type, asked.operation, asked.permission_type):
        raise InvalidRequest("The filter contains UNKNOWN elements")
    resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
    for acl in acls:
        if not asked.matches(acl):
            continue
        key = acl.resource_type, acl.resource_name, acl.pattern_type
        if key not in resources:
            resources[key] = DescribeAclsResource(
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                pattern_type=acl.pattern_type,
            )
        resources[key].acls.append(
            AclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission_type,
            )
        )
    return DescribeAclsResponse(resources=list(resources.values()))

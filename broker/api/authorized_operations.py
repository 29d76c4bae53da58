"""Authorized operations: the bit fields in a response of the operations that its client may perform (KIP-430).

Without an authorizer all operations of a resource type are allowed, as in Kafka.
"""

from typing import Final

from ottla.metadata.acls import AclOperation

#: The value in a response if the request did not include the operations.
NOT_ASKED: Final = -(2**31)


def bit_field(*operations: AclOperation) -> int:
    """The int32 bit field of a set of operations.

    >>> bit_field(AclOperation.READ, AclOperation.DESCRIBE)
    264
    """
    return sum(1 << operation for operation in operations)


_O = AclOperation
TOPIC: Final = bit_field(
    _O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS
)
GROUP: Final = bit_field(_O.READ, _O.DESCRIBE, _O.DELETE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS)
CLUSTER: Final = bit_field(
    _O.CREATE,
    _O.CLUSTER_ACTION,
    _O.DESCRIBE_CONFIGS,
    _O.ALTER_CONFIGS,
    _O.IDEMPOTENT_WRITE,
    _O.ALTER,
    _O.DESCRIBE,
)

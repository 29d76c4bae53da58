"""DescribeAcls (key 29): the ACLs that a filter matches (KIP-140, KIP-290).

Who asks: admin clients (kafka-acls --list).
Versions: v1-3. v1 pattern types, v2 flexible, v3 the resource type USER (KIP-373).
Differs from Kafka: a code of 0 is refused with INVALID_REQUEST, where Kafka closes the connection.
Touches: broker.metadata (read only); SECURITY_DISABLED without an authorizer. ACLs are stored, not enforced yet.
"""

from ottla.broker.api import Api
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.metadata.acls import describe
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import SecurityDisabled
from ottla.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse


def handle(
    request: DescribeAclsRequest, context: RequestContext, broker: BrokerServices
) -> DescribeAclsResponse:
    """Return a row for each resource pattern, with its ACLs."""
    if not broker.config.get("authorizer.class.name"):
        raise SecurityDisabled("No Authorizer is configured on the broker")
    return describe(request, broker.metadata.image.acls.values())


API = Api(key=ApiKey.DESCRIBE_ACLS, versions=range(1, 4), handle=handle)

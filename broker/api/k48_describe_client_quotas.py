"""DescribeClientQuotas (key 48): the quotas of the users, clients and addresses that a filter matches (KIP-546).

Who asks: admin clients (kafka-configs --describe --entity-type users, clients or ips).
Versions: v0-1. v1 flexible.
Differs from Kafka: nothing known. Quotas are stored, not enforced yet.
Touches: broker.metadata (read only).
"""

from ottla.broker.api import Api
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.metadata.client_quotas import QuotaFilter, describe
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from ottla.protocol.refusals import refuse


def handle(
    request: DescribeClientQuotasRequest, context: RequestContext, broker: BrokerServices
) -> DescribeClientQuotasResponse:
    """Return a row for each entity that matches all components, and with `strict` has no other component."""
    return describe(QuotaFilter.of(request), broker.metadata.image.client_quotas)


API = Api(key=ApiKey.DESCRIBE_CLIENT_QUOTAS, versions=range(2), handle=handle, refuse=refuse)

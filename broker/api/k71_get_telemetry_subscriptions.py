"""GetTelemetrySubscriptions (key 71): which of its metrics a client is to push, and how often (KIP-714).

Who asks: clients that see the API in ApiVersions, first to get an id, then after each change of subscriptions.
Versions: v0.
Differs from Kafka: the list of metrics is sorted. Kafka refuses no client either.
Touches: broker.client_metrics. Never waits.
"""

from ottla.broker.api import Api
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)


def handle(
    request: GetTelemetrySubscriptionsRequest, context: RequestContext, broker: BrokerServices
) -> GetTelemetrySubscriptionsResponse:
    """The subscription of the client's instance; all rules are in `ottla.broker.telemetry.client_metrics`."""
    return broker.client_metrics.ask(request, context, broker.runtime.now_ms())


API = Api(key=ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, versions=range(1), handle=handle)

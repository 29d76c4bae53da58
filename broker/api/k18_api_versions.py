"""ApiVersions (key 18): the APIs that this broker serves, with their versions, and its features.

Who asks: every client, as the first request of a connection.
Versions: v0-5. v3 flexible, the client's software, features; v4 allows a feature's minimum of 0; v5 the
cluster and the node that the client means to reach (KIP-1242). The response header is always v0: the client does
not know the broker's versions yet.
Differs from Kafka: features that are finalized but not served are omitted; the APIs of client metrics are shown where
these are exported or a subscription exists, by Kafka where a plug-in receives them.
Touches: broker.metadata, broker.client_metrics (read only), the connection's client software.
"""

import re
from collections.abc import Mapping
from functools import cache

from ottla.broker.api import Api, modules
from ottla.broker.membership.envelope import FORWARDABLE
from ottla.broker.request_context import MAX_CLIENT_TEXT, RequestContext
from ottla.broker.services import BrokerServices
from ottla.metadata.features import SERVED_FEATURES
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

#: KIP-511: valid names and versions of a client's software.
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")

#: Clients that see these APIs use them at once (KIP-714).
_OF_CLIENT_METRICS = (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY)


def handle(
    request: ApiVersionsRequest, context: RequestContext, broker: BrokerServices
) -> ApiVersionsResponse:
    """Return the served versions; a request from v3 on must be plausible, and from v5 on mean this node."""
    if context.version >= 3 and not is_plausible(request):
        return ApiVersionsResponse(error_code=ErrorCode.invalid_request)
    if context.version >= 3 and context.connection is not None:
        context.connection.software = (
            request.client_software_name[:MAX_CLIENT_TEXT],
            request.client_software_version[:MAX_CLIENT_TEXT],
        )
    if request.cluster_id is not None and (request.cluster_id, request.node_id) != (
        broker.cluster_id,
        broker.node_id,
    ):
        # The address belongs to another node or cluster by now: the client's metadata is of no use.
        return ApiVersionsResponse(error_code=ErrorCode.rebootstrap_required)
    finalized = broker.metadata.finalized_features
    api_keys = served(broker.controller.controller_versions)
    if not broker.client_metrics.is_advertised:
        api_keys = [row for row in api_keys if row.api_key not in _OF_CLIENT_METRICS]
    return ApiVersionsResponse(
        api_keys=api_keys,
        supported_features=supported_features(SERVED_FEATURES, version=context.version),
        finalized_features_epoch=broker.metadata.last_applied_offset,
        finalized_features=finalized_features(
            {name: level for name, level in finalized.items() if name in SERVED_FEATURES}
        ),
    )


def supported_features(features: Mapping[str, range], *, version: int) -> list[SupportedFeatureKey]:
    """Return the rows of the features that a node supports, by their levels, for a response of this version.

    Before v4 some clients treat a minimum of 0 as an error (KIP-1022): such rows are omitted.
    """
    return [
        SupportedFeatureKey(name=name, min_version=levels.start, max_version=levels.stop - 1)
        for name, levels in features.items()
        if levels.start > 0 or version >= 4
    ]


def finalized_features(features: Mapping[str, int]) -> list[FinalizedFeatureKey]:
    """Return the rows of the features that are finalized in the cluster, each at one level."""
    return [
        FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
        for name, level in features.items()
    ]


def is_plausible(request: ApiVersionsRequest) -> bool:
    """Whether name and version of the client's software are valid (KIP-511), and a cluster is named with a node.

    A version that lacks these fields has neither a cluster nor a node.
    """
    return bool(
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
        and (request.cluster_id is None) == (request.node_id == -1)
    )


def unsupported_version() -> ApiVersionsResponse:
    """The response, in v0, to a request in a version that this broker does not support (KIP-511)."""
    own = KAFKA_VERSIONS[ApiKey.API_VERSIONS]
    row = ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=own.start, max_version=own.stop - 1)
    return ApiVersionsResponse(error_code=ErrorCode.unsupported_version, api_keys=[row])


def served(controller: Mapping[int, range] | None = None) -> list[ApiVersion]:
    """Return a row for each module of `ottla.broker.api`.

    Forwarded APIs are limited to the versions that the controller also serves, if these are known: an older
    controller would refuse the request in the envelope.
    """
    own = _own_rows()
    if controller is None:
        return list(own.values())
    rows = []
    for key, row in own.items():
        if key not in FORWARDABLE:
            rows.append(row)
            continue
        theirs = controller.get(key, range(0))
        first, stop = max(row.min_version, theirs.start), min(row.max_version + 1, theirs.stop)
        if first < stop:
            rows.append(ApiVersion(api_key=key, min_version=first, max_version=stop - 1))
    return rows


@cache
def _own_rows() -> Mapping[int, ApiVersion]:
    """Return the rows by API key, in the key's order.

    Kept: each connection asks, and a thousand may be opened at a time.
    """
    rows = {}
    for key in sorted(modules()):
        versions = KAFKA_VERSIONS[ApiKey(key)]
        # librdkafka before 2.11 treats a Produce minimum above 0 as a broker without Produce (KAFKA-18659).
        first = 0 if key == ApiKey.PRODUCE else versions.start
        rows[key] = ApiVersion(api_key=key, min_version=first, max_version=versions.stop - 1)
    return rows


API = Api(key=ApiKey.API_VERSIONS, versions=range(6), handle=handle)

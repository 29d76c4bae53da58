"""ApiVersions (key 18) of a controller: the APIs that it serves, and the features that it supports.

Who asks: every node and client, as the first request of a connection.
Versions: v0-4, as a broker's.
Differs from Kafka: the security APIs and delegation tokens, which are not served, are not listed.
"""

from ottla.broker.api.k18_api_versions import is_plausible_client
from ottla.broker.controller_api.services import QUORUM_REQUESTS, ControllerServices
from ottla.broker.request_context import RequestContext
from ottla.metadata.features import UNDERSTOOD_FEATURES
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey, ApiListener, listeners
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_OWN = frozenset({ApiKey.API_VERSIONS, ApiKey.ENVELOPE, ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_CONFIGS})


def served_keys(services: ControllerServices) -> list[int]:
    """The API keys of this controller, in order."""
    keys = _OWN | QUORUM_REQUESTS | services.controller_apis
    return sorted(key for key in keys if ApiListener.CONTROLLER in listeners(key))


def handle(
    request: ApiVersionsRequest, context: RequestContext, services: ControllerServices
) -> ApiVersionsResponse:
    """Return the table; from v3 on the name and version of the client's software must be valid."""
    if context.version >= 3 and not is_plausible_client(request):
        return ApiVersionsResponse(error_code=ErrorCode.invalid_request)
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(
                api_key=key,
                min_version=KAFKA_VERSIONS[ApiKey(key)].start,
                max_version=KAFKA_VERSIONS[ApiKey(key)].stop - 1,
            )
            for key in served_keys(services)
        ],
        # Before v4 some clients treat a minimum of 0 as an error (KIP-1022): such rows are omitted.
        supported_features=[
            SupportedFeatureKey(name=name, min_version=levels.start, max_version=levels.stop - 1)
            for name, levels in UNDERSTOOD_FEATURES.items()
            if levels.start > 0 or context.version >= 4
        ],
        finalized_features_epoch=services.metadata.last_applied_offset,
        finalized_features=[
            FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, level in services.metadata.finalized_features.items()
        ],
    )

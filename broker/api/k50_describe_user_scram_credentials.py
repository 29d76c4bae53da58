"""DescribeUserScramCredentials (key 50): the SCRAM mechanisms and iterations of users, without keys (KIP-554).

Who asks: admin clients (kafka-configs --describe --entity-type users).
Versions: v0.
Differs from Kafka: nothing known.
Touches: broker.metadata (read only).
"""

from collections import Counter

from broker.api import Api
from broker.request_context import RequestContext
from broker.services import BrokerServices
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode, bounded
from protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


def handle(
    request: DescribeUserScramCredentialsRequest, context: RequestContext, broker: BrokerServices
) -> DescribeUserScramCredentialsResponse:
    """A row for each requested user; an empty or null list means all users."""
    infos: dict[str, list[CredentialInfo]] = {}
    for (user, mechanism), credential in broker.metadata.image.scram_credentials.items():
        info = CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
        infos.setdefault(user, []).append(info)
    times = Counter([each.name for each in request.users or ()] or list(infos))
    return DescribeUserScramCredentialsResponse(
        results=[_result(user, count, infos.get(user, [])) for user, count in times.items()],
    )


def _result(user: str, count: int, infos: list[CredentialInfo]) -> DescribeUserScramCredentialsResult:
    if count > 1:
        return DescribeUserScramCredentialsResult(
            user=user,
            error_code=ErrorCode.duplicate_resource,
            error_message=bounded(
                f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
            ),
        )
    if not infos:
        return DescribeUserScramCredentialsResult(
            user=user,
            error_code=ErrorCode.resource_not_found,
            error_message=bounded(f"Attempt to describe a user credential that does not exist: {user}"),
        )
    return DescribeUserScramCredentialsResult(
        user=user, credential_infos=sorted(infos, key=lambda info: info.mechanism)
    )


API = Api(key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions=range(1), handle=handle)

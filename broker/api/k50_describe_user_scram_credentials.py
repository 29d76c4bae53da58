"""DescribeUserScramCredentials (key 50): the SCRAM mechanisms and iterations of users, without keys (KIP-554).

Who asks: admin clients (kafka-configs --describe --entity-type users).
Versions: v0.
Differs from Kafka: nothing known.
Touches: broker.metadata (read only).
"""

from collections.abc import Awaitable, Generator

from ottla.broker.api import Api
from ottla.broker.api.long_answers import ROWS_OF_STEP, at_once_or_in_turns
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, bounded
from ottla.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from ottla.protocol.steps import counted, listed
from ottla.runtime.turns import FreedInTurns


def handle(
    request: DescribeUserScramCredentialsRequest, context: RequestContext, broker: BrokerServices
) -> DescribeUserScramCredentialsResponse | Awaitable[DescribeUserScramCredentialsResponse]:
    """Return a row for each requested user; an empty or null list means all users."""
    return at_once_or_in_turns(_answer(request, broker), broker.runtime, broker.long_answers)


def _answer(
    request: DescribeUserScramCredentialsRequest, broker: BrokerServices
) -> Generator[None, None, DescribeUserScramCredentialsResponse]:
    infos: dict[str, list[CredentialInfo]] = {}
    for (user, mechanism), credential in broker.metadata.image.scram_credentials.items():
        info = CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
        infos.setdefault(user, []).append(info)
    parts = FreedInTurns(broker.runtime)
    names = (each.name for each in request.users) if request.users else list(infos)
    times = yield from counted(names, parts=parts)
    parts.append(times)
    results = yield from listed(
        (_result(user, count, infos.get(user, [])) for user, count in times.items()), size=ROWS_OF_STEP
    )
    return DescribeUserScramCredentialsResponse(results=results)


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


API = Api(
    key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions=range(1), handle=handle, is_encoded_in_turns=True
)

"""Envelopes: a client's request inside a request from a broker to the active controller (KIP-590).

    EnvelopeRequest   the client's request with its header, the client's principal and address
    EnvelopeResponse  the response with its header; or an error of the envelope itself, or NOT_CONTROLLER

The principal is encoded as its version and Kafka's DefaultPrincipalData, as by DefaultKafkaPrincipalBuilder.
Source: ForwardingManager, EnvelopeUtils, RequestChannel.Request.buildResponseSend of Kafka 4.3.1.
"""

from collections.abc import Generator
from functools import cache
from ipaddress import ip_address
from itertools import islice
from typing import Any, Final, NamedTuple, get_args, get_type_hints

from ottla.broker.request_context import RequestContext
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.codec import (
    decode_request_in_steps,
    decode_response_in_steps,
    decode_struct,
    encode_request_in_steps,
    encode_struct,
)
from ottla.protocol.errors import (
    ErrorCode,
    InvalidRequest,
    MalformedMessage,
    PrincipalDeserializationFailure,
    UnsupportedVersion,
)
from ottla.protocol.framing import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
)
from ottla.protocol.messages.default_principal_data import DefaultPrincipalData
from ottla.protocol.messages.envelope import EnvelopeRequest
from ottla.protocol.schema import Request, Response

#: The APIs that a broker may forward for a client; Kafka's ApiKeys.forwardable.
FORWARDABLE: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.ELECT_LEADERS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.UPDATE_FEATURES,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.UNREGISTER_CONTROLLER,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
    }
)

_PRINCIPAL_VERSION: Final = 0
_VERSION_BYTES: Final = 2
_IP_ADDRESS_BYTES: Final = (4, 16)
_NO_ADDRESS: Final = bytes(4)
#: The number of rows of a list that are checked for the error: a response may have hundreds of thousands.
_CHECKED_ROWS: Final = 10


class Forwarded(NamedTuple):
    """A client's request, out of its envelope."""

    header: RequestHeader
    message: Request
    context: RequestContext


def wrap_request(
    message: Request, context: RequestContext, parts: list[Any]
) -> Generator[None, None, EnvelopeRequest]:
    """Wrap a client's request in an envelope, in the version in which the client sent it; encoded in steps.

    The parts of the message are appended to `parts`, so that they can be freed in steps, too.
    """
    head = encode_request_header(context.api_key, context.version, context.correlation_id, context.client_id)
    body = yield from encode_request_in_steps(context.api_key, context.version, message, parts)
    return EnvelopeRequest(
        request_data=head + body,
        request_principal=_principal_bytes(context.principal),
        client_host_address=_address_bytes(context.client_host),
    )


def unwrap_request(
    envelope: EnvelopeRequest, listener_name: str, parts: list[Any]
) -> Generator[None, None, Forwarded]:
    """Return the request that an envelope holds, decoded in steps.

    The parts of the message are appended to `parts`, so that they can be freed in steps, too.

    Raises PrincipalDeserializationFailure, InvalidRequest for an invalid envelope, and
    UnsupportedVersion for a request in it that cannot be parsed.
    """
    principal = _principal(envelope.request_principal)
    if len(envelope.client_host_address) not in _IP_ADDRESS_BYTES:
        raise InvalidRequest("Failed to parse client address from envelope")
    client_host = str(ip_address(bytes(envelope.client_host_address)))
    frame = memoryview(envelope.request_data)
    try:
        header, body_at = decode_request_header(frame)
        key, version = header.api_key, header.api_version
        if key not in FORWARDABLE:
            raise InvalidRequest(f"API {key} is not enabled or is not eligible for forwarding")
        if version not in KAFKA_VERSIONS[ApiKey(key)]:
            raise UnsupportedVersion(f"API {key} v{version} is not served")
        message = yield from decode_request_in_steps(key, version, frame[body_at:], parts)
    except MalformedMessage as error:
        raise UnsupportedVersion(f"The request in the envelope cannot be read: {error}") from error
    context = RequestContext(
        key, version, header.correlation_id, header.client_id, client_host, listener_name, principal
    )
    return Forwarded(header, message, context)


def wrap_response(header: RequestHeader, encoded: bytes) -> bytes:
    """The data of an EnvelopeResponse: header and body as the client would receive them."""
    return encode_response_header(header.api_key, header.api_version, header.correlation_id) + encoded


def unwrap_response(
    data: bytes | None, context: RequestContext, parts: list[Any]
) -> Generator[None, None, Response]:
    """Return the response to a client's request out of its envelope, decoded in steps. Raises MalformedMessage."""
    frame = memoryview(data or b"")
    correlation_id, body_at = decode_response_header(context.api_key, context.version, frame)
    if correlation_id != context.correlation_id:
        raise MalformedMessage(f"an envelope with response {correlation_id} to {context.correlation_id}")
    return (yield from decode_response_in_steps(context.api_key, context.version, frame[body_at:], parts))


def has_not_controller_error(response: object) -> bool:
    """Whether the response, or a row of it, has the error NOT_CONTROLLER.

    A controller that is not active refuses a request as a whole: the first rows of each list have the error.
    """
    if getattr(response, "error_code", 0) == ErrorCode.not_controller:
        return True
    return any(
        has_not_controller_error(row)
        for name in _rows_with_errors(type(response))  # type: ignore[arg-type]  # classes are hashable
        for row in islice(getattr(response, name) or (), _CHECKED_ROWS)
    )


@cache
def _rows_with_errors(kind: type) -> tuple[str, ...]:
    """The list fields of a message whose rows, or nested rows, have an error code; other fields are skipped."""
    return tuple(
        name
        for name, hint in get_type_hints(kind).items()
        for row in get_args(hint)
        for row_kind in get_args(row) or (row,)
        if hasattr(row_kind, "__dataclass_fields__")
        and (hasattr(row_kind, "error_code") or _rows_with_errors(row_kind))
    )


def _principal_bytes(principal: str) -> bytes:
    kind, _, name = principal.partition(":")
    data = encode_struct(
        DefaultPrincipalData, _PRINCIPAL_VERSION, DefaultPrincipalData(type_=kind, name=name)
    )
    return _PRINCIPAL_VERSION.to_bytes(_VERSION_BYTES) + data


def _principal(data: bytes | None) -> str:
    if data is None or int.from_bytes(data[:_VERSION_BYTES]) != _PRINCIPAL_VERSION:
        raise PrincipalDeserializationFailure("Failed to deserialize client principal from envelope")
    try:
        principal = decode_struct(DefaultPrincipalData, _PRINCIPAL_VERSION, data[_VERSION_BYTES:])
    except MalformedMessage as error:
        raise PrincipalDeserializationFailure(
            f"Failed to deserialize client principal from envelope: {error}"
        ) from error
    return f"{principal.type_}:{principal.name}"


def _address_bytes(host: str) -> bytes:
    """Return the address as four or sixteen bytes; 0.0.0.0 for a simulated host, which has a name only."""
    try:
        return ip_address(host.partition("%")[0]).packed
    except ValueError:
        return _NO_ADDRESS

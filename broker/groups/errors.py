"""Errors of appends to the offsets topic, mapped to the codes that clients of a coordinator expect.

Source: CoordinatorOperationExceptionHelper of Kafka 4.3.
"""

from typing import Final

from ottla.protocol.errors import ErrorCode, KafkaError

_E = ErrorCode

#: An error code that clients do not expect from a coordinator -> one that they handle correctly.
_CLIENT_CODES: Final = {
    _E.unknown_topic_or_partition: _E.coordinator_not_available,
    _E.not_enough_replicas: _E.coordinator_not_available,
    _E.request_timed_out: _E.coordinator_not_available,
    _E.not_leader_or_follower: _E.not_coordinator,
    _E.kafka_storage_error: _E.not_coordinator,
    _E.message_too_large: _E.unknown_server_error,
    _E.record_list_too_large: _E.unknown_server_error,
    _E.invalid_fetch_size: _E.unknown_server_error,
    # Written, but on fewer replicas than required. Kafka's own clients fail on this code; mapped like
    # NOT_ENOUGH_REPLICAS it makes them retry, which is safe: a commit may be repeated.
    _E.not_enough_replicas_after_append: _E.coordinator_not_available,
}


def client_error_code(error: KafkaError) -> ErrorCode:
    """The error code for a client whose request writes to the offsets topic."""
    return _CLIENT_CODES.get(error.code, error.code)

"""Errors of the offsets topic, as the members of a group are told of them."""

from typing import Final

from protocol.errors import ErrorCode, KafkaError

_E = ErrorCode

#: What a client of a coordinator would not understand -> what makes it do the right thing.
_TOLD_AS: Final = {
    _E.unknown_topic_or_partition: _E.coordinator_not_available,
    _E.not_enough_replicas: _E.coordinator_not_available,
    _E.request_timed_out: _E.coordinator_not_available,
    _E.not_leader_or_follower: _E.not_coordinator,
    _E.kafka_storage_error: _E.not_coordinator,
    _E.message_too_large: _E.unknown_server_error,
    _E.record_list_too_large: _E.unknown_server_error,
    _E.invalid_fetch_size: _E.unknown_server_error,
    # Written, but on fewer replicas than asked. Kafka's own clients stop at this code; told like
    # NOT_ENOUGH_REPLICAS they try again, which is safe: a commit may be repeated.
    _E.not_enough_replicas_after_append: _E.coordinator_not_available,
}


def told_to_members(error: KafkaError) -> ErrorCode:
    """The code for a client whose request had to be written to the offsets topic."""
    return _TOLD_AS.get(error.code, error.code)

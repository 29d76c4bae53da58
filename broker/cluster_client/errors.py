"""Errors of requests to a cluster, as sentences for its user: those that may end by themselves, and others."""

from typing import Final

from ottla.protocol.errors import ErrorCode

#: A leader, coordinator or controller moves or loads, or a replica is not in sync yet.
_TRANSIENT: Final = frozenset(
    {
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.offset_not_available,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_controller,
        ErrorCode.request_timed_out,
    }
)
_UNKNOWN: Final = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_server_error})


class ClusterError(Exception):
    """The cluster has refused a request, or has not fulfilled it in time; the message is a sentence."""


class Transient(ClusterError):
    """An error that may end by itself: `ClusterClient.patiently` repeats the request."""


class Unknown(Transient):
    """A topic or group does not exist, or not yet; or the broker does not name the reason of its refusal."""


class BrokerUnreachable(Transient):
    """One broker does not answer; others may."""


class NoBrokerAnswers(Transient):
    """None of the brokers whose addresses are known answers."""


def check(code: int, what: str, message: str | None = None) -> None:
    """Check an error code of a response. Raises Unknown, Transient or ClusterError."""
    if code == ErrorCode.none:
        return
    kind = Unknown if code in _UNKNOWN else Transient if code in _TRANSIENT else ClusterError
    text = f"{what}: {error_name(code)}{': ' + message if message else ''}"
    raise kind(text if text.endswith(".") else f"{text}.")


def error_name(code: int) -> str:
    """Return the name that Kafka gives an error code."""
    return ErrorCode(code).name.upper()

"""RequestManager: which nodes are ready for a request. Each has one in flight at most; a backoff follows a failure.

    ready --sent--> in flight --success--> ready
                       |----- error response, or failure --> backing off --retry_backoff_ms--> ready
                       |----- request_timeout_ms --> timed out (as ready; a late response is ignored)

Every change of role resets it: responses to requests of an earlier role are ignored.
Source: RequestManager of Kafka 4.3.1.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.controller.raft.types import NEVER_MS, Node

if TYPE_CHECKING:
    from random import Random


@dataclass(slots=True)
class _Connection:
    #: Of the request in flight; None while backing off.
    correlation_id: int | None
    #: When the request times out, or the backoff ends.
    until_ms: int


class RequestManager:
    """The request state of all nodes that this one sends requests to."""

    def __init__(
        self, bootstrap: list[Node], *, retry_backoff_ms: int, request_timeout_ms: int, random: "Random"
    ) -> None:
        self._bootstrap = bootstrap
        self._retry_backoff_ms = retry_backoff_ms
        self._request_timeout_ms = request_timeout_ms
        self._random = random
        self._connections: dict[int, _Connection] = {}

    def is_ready(self, node: Node, now_ms: int) -> bool:
        """Whether a request may be sent to the node now."""
        known = self._connections.get(node.id)
        return known is None or now_ms >= known.until_ms

    def is_backing_off(self, node: Node, now_ms: int) -> bool:
        """Whether the last request to the node has failed, less than `retry_backoff_ms` ago."""
        known = self._connections.get(node.id)
        return known is not None and known.correlation_id is None and now_ms < known.until_ms

    def has_request_timed_out(self, node: Node, now_ms: int) -> bool:
        """Whether the last request to the node has timed out."""
        known = self._connections.get(node.id)
        return known is not None and known.correlation_id is not None and now_ms >= known.until_ms

    def ready_at_ms(self, node: Node, now_ms: int) -> int:
        """The time, in ms, from which on the next request may be sent to the node."""
        known = self._connections.get(node.id)
        return now_ms if known is None else max(now_ms, known.until_ms)

    def has_any_inflight_request(self, now_ms: int) -> bool:
        """Whether any request is in flight. Two Fetches at a time would return the same records twice."""
        return any(
            each.correlation_id is not None and now_ms < each.until_ms for each in self._connections.values()
        )

    def find_ready_bootstrap_server(self, now_ms: int) -> Node | None:
        """A random node that may know the leader; None while any request is in flight, or all of them back off."""
        if not self._bootstrap or self.has_any_inflight_request(now_ms):
            return None
        first = self._random.randrange(len(self._bootstrap))
        brokers_from = self._bootstrap[first:] + self._bootstrap[:first]
        return next((node for node in brokers_from if self.is_ready(node, now_ms)), None)

    def bootstrap_ready_at_ms(self, now_ms: int) -> int:
        """The time at which `find_ready_bootstrap_server` may return a node again; NEVER_MS without such nodes."""
        if not self._bootstrap:
            return NEVER_MS
        in_flight = [
            each.until_ms
            for each in self._connections.values()
            if each.correlation_id is not None and now_ms < each.until_ms
        ]
        return (
            max(in_flight) if in_flight else min(self.ready_at_ms(node, now_ms) for node in self._bootstrap)
        )

    def on_request_sent(self, node: Node, *, correlation_id: int, now_ms: int) -> None:
        """Record that a request was sent to the node; its timeout begins."""
        assert self.is_ready(node, now_ms), node
        self._connections[node.id] = _Connection(correlation_id, now_ms + self._request_timeout_ms)

    def is_response_expected(self, node_id: int, *, correlation_id: int) -> bool:
        """Whether this request is the last one sent to the node, and still awaits its response."""
        known = self._connections.get(node_id)
        return known is not None and known.correlation_id == correlation_id

    def on_response_result(self, node_id: int, *, correlation_id: int, now_ms: int, success: bool) -> None:
        """Record the result of a request: success or an error, also a missing response. Ignored unless expected."""
        if not self.is_response_expected(node_id, correlation_id=correlation_id):
            return
        if success:
            del self._connections[node_id]
        else:
            self.back_off(node_id, now_ms=now_ms)

    def back_off(self, node_id: int, *, now_ms: int) -> None:
        """Send the node no request for `retry_backoff_ms`."""
        self._connections[node_id] = _Connection(None, now_ms + self._retry_backoff_ms)

    def reset(self, node: Node) -> None:
        """Forget this node's request or backoff: it is ready, and a late response is ignored."""
        self._connections.pop(node.id, None)

    def reset_all(self) -> None:
        """Forget the requests and backoffs of all nodes."""
        self._connections.clear()

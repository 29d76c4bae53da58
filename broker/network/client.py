"""Network client: requests to other nodes over one connection for each address, opened when it is needed.

    client = NodeClient(runtime, client_id="broker-1-fetcher-0")
    response = await client.request(("10.0.0.2", 9092), ApiKey.FETCH, message, timeout_s=30)
    ...
    await client.close()

    nothing --request--> connecting --ApiVersions response--> open --idle, lost, a request timed out--> nothing
                         connecting --fails--> backing off (exponentially, up to a bound) --> nothing

A connection begins with ApiVersions; each request then uses the highest version that both sides know.
Requests to one address are pipelined, and responses arrive in their order: requests that must not wait
behind others (behind a Fetch that the peer delays) use a client of their own.
Source: org.apache.kafka.clients.NetworkClient; a peer sees the same behaviour: a request that times out
closes its connection, and reconnecting backs off exponentially with 20 % jitter.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ottla import VERSION
from ottla.broker.network.outgoing import SHARED_BYTES, Disconnected, OutgoingConnection
from ottla.broker.network.response_buffer import ResponseBuffer
from ottla.config.broker_config import BrokerConfig
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.codec import (
    decode_response,
    decode_response_in_steps,
    encode_request,
    encode_request_in_steps,
)
from ottla.protocol.errors import ErrorCode, MalformedMessage, UnsupportedVersion
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.schema import Request
from ottla.runtime import Runtime, SocketOptions
from ottla.runtime.turns import FreedInTurns, result_in_turns

__all__ = ["Address", "ClientSettings", "Disconnected", "NodeClient"]

logger = logging.getLogger(__name__)

#: The address of a node: host and port.
Address = tuple[str, int]
T = TypeVar("T")

#: A peer that does not support the requested version of ApiVersions responds in version 0 (KIP-511).
_FALLBACK_VERSION: Final = 0
#: How often connections are checked within the time after which an idle one is closed.
_SWEEPS_PER_IDLE_TIME: Final = 4
_JITTER: Final = 0.2
_MAX_DOUBLINGS: Final = 30


@dataclass(slots=True, frozen=True, kw_only=True)
class ClientSettings:
    """The settings by which connections to other nodes are opened and closed; the defaults are Kafka's."""

    #: The largest response that is accepted, in bytes.
    response_max_bytes: int = 100 * 1024 * 1024
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    #: The timeout of the first attempt to connect, and the maximum of the later ones; each doubles the previous one.
    connect_timeout_ms: int = 10_000
    connect_timeout_max_ms: int = 30_000
    #: The maximum wait of a request for a connection, attempts and backoff included; None: the request's timeout.
    ready_timeout_ms: int | None = None
    #: The size of the socket's receive buffer; None: the system's (self-tuning) size.
    receive_buffer_bytes: int | None = None
    #: Whether a request waits while reconnecting backs off; otherwise it fails at once, for callers that can
    #: send it to another node.
    waits_for_reconnect: bool = True
    #: The time after which an idle connection is closed; None: it is not closed by this side.
    max_idle_ms: int | None = 540_000

    @classmethod
    def from_config(cls, config: BrokerConfig) -> "ClientSettings":
        """The settings of a node's configuration for all its connections to other nodes."""
        max_idle_ms = config.connections_max_idle_ms
        return cls(
            response_max_bytes=config.socket_request_max_bytes,
            connect_timeout_ms=config.get("socket.connection.setup.timeout.ms"),
            connect_timeout_max_ms=config.get("socket.connection.setup.timeout.max.ms"),
            max_idle_ms=max_idle_ms if max_idle_ms >= 0 else None,
        )


class NodeClient:
    """Sends requests to other nodes over one connection for each address, opened when it is needed.

    There is one client for each purpose, since requests on one connection wait for each other.
    """

    def __init__(self, runtime: Runtime, *, client_id: str, settings: ClientSettings | None = None) -> None:
        self._runtime = runtime
        self._client_id = client_id
        self._settings = settings or ClientSettings()
        self._shared = memoryview(bytearray(SHARED_BYTES))
        self._peers: dict[Address, _Peer] = {}
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def request(
        self,
        address: Address,
        api_key: int,
        message: Request,
        *,
        timeout_s: float,
        versions: range | None = None,
    ) -> Any:  # noqa: ANN401 the API's response
        """Send a request and wait for its response. `versions` restricts the versions that may be used.

        Records in the response are slices of the memory that it was received into, which the caller may keep.
        The client's name and version are filled into an ApiVersions request, as by Kafka's client.
        Raises Disconnected, TimeoutError after `timeout_s` (connecting included), and UnsupportedVersion.
        """
        if isinstance(message, ApiVersionsRequest):
            message = _api_versions_request()
        parts = FreedInTurns(self._runtime)
        return await self.request_encoded(
            address,
            api_key,
            lambda version: encode_request_in_steps(api_key, version, message, parts),
            lambda version, body: decode_response_in_steps(api_key, version, body, parts),
            timeout_s=timeout_s,
            versions=versions,
        )

    async def request_encoded(
        self,
        address: Address,
        api_key: int,
        encode: Callable[[int], bytes | Generator[None, None, bytes]],
        decode: Callable[[int, memoryview], T | Generator[None, None, T]],
        *,
        timeout_s: float,
        versions: range | None = None,
        buffer: ResponseBuffer | None = None,
    ) -> T:
        """Send a request and wait for its response, both in the caller's codec.

        `encode(version)` returns the body, `decode(version, body)` reads one; both may be work in steps.
        `versions` restricts the versions that may be used. Raises Disconnected, TimeoutError after
        `timeout_s` (connecting included), and UnsupportedVersion.

        `decode` may keep slices of the body, as `request` does; of `buffer`, until the caller calls
        `release`, if it passes one. Where it raises MalformedMessage, the connection is closed.
        """
        peer = self._peer(address)
        deadline = self._runtime.monotonic() + timeout_s
        try:
            connection = peer.connection
            if connection is None:
                connection = await peer.connected_by(deadline)
            chosen = _choose(connection.served, api_key, versions)
            encoded = encode(chosen)
            if isinstance(encoded, Generator):
                encoded = await result_in_turns(encoded, self._runtime, is_begun_at_once=True)
            body = await connection.request(
                api_key, encoded, version=chosen, deadline=deadline, buffer=buffer
            )
        except TimeoutError:
            raise TimeoutError(
                f"{_label(address)}: {ApiKey(api_key).name} got no response within {timeout_s:g} s"
            ) from None
        try:
            decoded = decode(chosen, body)
            if not isinstance(decoded, Generator):
                return decoded
            result: T = await result_in_turns(decoded, self._runtime, is_begun_at_once=True)
        except MalformedMessage as error:
            peer.disconnect(f"a malformed response: {error}")
            raise Disconnected(f"{_label(address)}: {error}") from error
        return result

    async def served(self, address: Address, *, timeout_s: float) -> Mapping[int, range]:
        """Return the versions that a peer serves, by API key. Raises Disconnected, TimeoutError."""
        peer = self._peer(address)
        if peer.connection is not None:
            return peer.connection.served
        try:
            return (await peer.connected_by(self._runtime.monotonic() + timeout_s)).served
        except TimeoutError:
            raise TimeoutError(f"{_label(address)}: no connection within {timeout_s:g} s") from None

    async def close(self) -> None:
        """Close all connections; waiting requests raise Disconnected."""
        self._is_closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        peers = list(self._peers.values())
        for peer in peers:
            peer.disconnect("this node closes its connections")
        for peer in peers:
            await peer.wait_closed()

    def _peer(self, address: Address) -> "_Peer":
        if self._is_closed:
            raise Disconnected(f"{_label(address)}: this node closes its connections")
        key = _plain(address)
        peer = self._peers.get(key)
        if peer is None:
            peer = self._peers[key] = _Peer(self._runtime, key, self._client_id, self._settings, self._shared)
            if self._sweep_timer is None:
                self._schedule_sweep()
        return peer

    def _schedule_sweep(self) -> None:
        if self._settings.max_idle_ms is not None and not self._is_closed:
            self._sweep_timer = self._runtime.call_later(
                self._settings.max_idle_ms / 1000 / _SWEEPS_PER_IDLE_TIME, self._sweep
            )

    def _sweep(self) -> None:
        """Close idle connections; remove peers without state."""
        self._sweep_timer = None
        if self._peers:
            self._schedule_sweep()  # first: a sweep that fails must not be the last one
        assert self._settings.max_idle_ms is not None
        idle_since = self._runtime.monotonic() - self._settings.max_idle_ms / 1000
        for address, peer in list(self._peers.items()):
            peer.close_if_idle(idle_since)
            if peer.is_forgettable:
                del self._peers[address]


class _Peer:
    """The connection to one address, if any, and the outcome of the last attempts to connect."""

    def __init__(
        self, runtime: Runtime, address: Address, client_id: str, settings: ClientSettings, shared: memoryview
    ) -> None:
        self._runtime = runtime
        self._address = address
        self._client_id = client_id
        self._settings = settings
        self._shared = shared
        self._options: SocketOptions | None = None
        if settings.receive_buffer_bytes is not None:
            self._options = SocketOptions(receive_buffer_bytes=settings.receive_buffer_bytes)
        self._connection: OutgoingConnection | None = None
        self._connecting: asyncio.Task[OutgoingConnection] | None = None
        #: Connection whose transport is not closed yet -> a future that is done when it is.
        self._alive: dict[OutgoingConnection, asyncio.Future[None]] = {}
        self._failures = 0
        self._last_failure = ""
        self._next_attempt_at = 0.0

    @property
    def is_forgettable(self) -> bool:
        """Whether this object has no state that must be kept."""
        return self._connection is None and self._connecting is None and not self._alive

    @property
    def connection(self) -> OutgoingConnection | None:
        """The open connection to the peer, or None."""
        known = self._connection
        return None if known is None or known.is_closed else known

    async def connected_by(self, deadline: float) -> OutgoingConnection:
        """Return the open connection, or a new one by the deadline.

        Raises TimeoutError at the deadline, or Disconnected if connecting fails or `ready_timeout_ms` ends
        before.
        """
        ready_timeout_ms = self._settings.ready_timeout_ms
        ready_by = deadline
        if ready_timeout_ms is not None:
            ready_by = min(deadline, self._runtime.monotonic() + ready_timeout_ms / 1000)
        try:
            async with asyncio.timeout_at(ready_by):
                return await self.connected()
        except TimeoutError:
            if ready_by == deadline:
                raise
            raise Disconnected(
                f"{_label(self._address)}: no connection within {ready_timeout_ms} ms"
            ) from None

    async def connected(self) -> OutgoingConnection:
        """Return the open connection, or a new one. Raises Disconnected; waits while reconnecting backs off."""
        if (known := self.connection) is not None:
            return known
        if self._connecting is None:
            pause_s = self._next_attempt_at - self._runtime.monotonic()
            if pause_s > 0 and self._failures and not self._settings.waits_for_reconnect:
                raise Disconnected(f"{self._last_failure}; not retried for {pause_s:.3f} s")
            self._connecting = self._runtime.loop.create_task(
                self._connect(), name=f"connect-{_label(self._address)}"
            )
            self._connecting.add_done_callback(self._on_connected)
        # Shared by all waiting requests: the cancellation of one does not affect the others.
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            # The attempt was dropped; otherwise, or as well, the caller was cancelled.
            if connecting.cancelled() and not (task is not None and task.cancelling()):
                raise Disconnected(f"{_label(self._address)}: the attempt to connect was cancelled") from None
            raise

    def disconnect(self, reason: str) -> None:
        """Close the connection, or cancel the attempt to open one."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.abort(reason)

    async def wait_closed(self) -> None:
        """Wait until all connections are closed."""
        if self._connecting is not None:
            await asyncio.wait([self._connecting])
        if self._alive:
            await asyncio.wait(list(self._alive.values()))

    def close_if_idle(self, idle_since: float) -> None:
        """Close the connection if it was not active since `idle_since` and no request waits."""
        connection = self._connection
        if connection is not None and connection.is_idle and connection.active_at < idle_since:
            connection.abort("idle")

    def _on_connected(self, connecting: "asyncio.Task[OutgoingConnection]") -> None:
        self._connecting = None
        if not connecting.cancelled():
            connecting.exception()  # marks it as retrieved: there may be no request that still waits

    async def _connect(self) -> OutgoingConnection:
        """Make one attempt to connect, after the rest of the backoff."""
        pause_s = self._next_attempt_at - self._runtime.monotonic()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        connection: OutgoingConnection | None = None
        try:
            timeout_s = self._connect_timeout_s()
            deadline = self._runtime.monotonic() + timeout_s
            async with asyncio.timeout_at(deadline):
                host, port = self._address
                _, connection = await self._runtime.connect(host, port, self._make, self._options)
                # Not in `_make`: uvloop also creates a protocol if the port is closed, and never calls it.
                if not connection.is_lost:
                    self._alive[connection] = self._runtime.loop.create_future()
                connection.served = await _negotiate(connection, deadline)
        except BaseException as error:
            self._failures += 1
            self._next_attempt_at = self._runtime.monotonic() + self._backoff_s()
            if connection is not None:
                connection.abort(f"not used: {error!r}")
            if isinstance(error, Disconnected):  # it names the peer already
                self._last_failure = str(error)
                raise
            if isinstance(error, OSError | MalformedMessage):
                why = str(error) or f"no connection within {timeout_s:.1f} s"  # of TimeoutError
                self._last_failure = f"{_label(self._address)}: {why}"
                raise Disconnected(self._last_failure) from error
            raise
        self._failures = 0
        # Otherwise a peer that accepts and closes at once would be retried without a pause.
        self._next_attempt_at = self._runtime.monotonic() + self._backoff_s()
        self._connection = connection
        return connection

    def _backoff_s(self) -> float:
        settings = self._settings
        doublings = min(max(self._failures - 1, 0), _MAX_DOUBLINGS)
        backoff_ms = min(settings.reconnect_backoff_ms << doublings, settings.reconnect_backoff_max_ms)
        return backoff_ms / 1000 * self._runtime.random.uniform(1 - _JITTER, 1 + _JITTER)

    def _connect_timeout_s(self) -> float:
        """Return the timeout of the next attempt: exponential with jitter, except the first (Kafka jitters it, too).

        With the jitter, many nodes that wait for a restarted one do not time out and retry at the same moment.
        """
        first_ms, max_ms = self._settings.connect_timeout_ms, self._settings.connect_timeout_max_ms
        if not self._failures or max_ms <= first_ms:
            return first_ms / 1000
        timeout_ms = first_ms << min(self._failures, _MAX_DOUBLINGS)
        return min(timeout_ms * self._runtime.random.uniform(1 - _JITTER, 1 + _JITTER), max_ms) / 1000

    def _make(self) -> OutgoingConnection:
        return OutgoingConnection(
            label=_label(self._address),
            client_id=self._client_id,
            shared=self._shared,
            max_bytes=self._settings.response_max_bytes,
            loop=self._runtime.loop,
            on_lost=self._on_lost,
        )

    def _on_lost(self, connection: OutgoingConnection) -> None:
        if self._connection is connection:
            self._connection = None
        if (closed := self._alive.pop(connection, None)) is not None:
            closed.set_result(None)


async def _negotiate(connection: OutgoingConnection, deadline: float) -> dict[int, range]:
    """Return the versions that the peer serves.

    Sends ApiVersions in this client's highest version, then in one that the peer offers (KIP-511).
    """
    request = _api_versions_request()
    highest = KAFKA_VERSIONS[ApiKey.API_VERSIONS].stop - 1
    response = await _api_versions(connection, request, version=highest, deadline=deadline)
    if response.error_code == ErrorCode.unsupported_version:
        offered = {row.api_key: range(row.min_version, row.max_version + 1) for row in response.api_keys}
        chosen = _choose(offered, ApiKey.API_VERSIONS, None) if offered else _FALLBACK_VERSION
        response = await _api_versions(connection, request, version=chosen, deadline=deadline)
    if response.error_code != ErrorCode.none:
        raise MalformedMessage(f"the response to ApiVersions has error {response.error_code}")
    return {row.api_key: range(row.min_version, row.max_version + 1) for row in response.api_keys}


async def _api_versions(
    connection: OutgoingConnection, request: ApiVersionsRequest, *, version: int, deadline: float
) -> ApiVersionsResponse:
    body = await connection.request(
        ApiKey.API_VERSIONS,
        encode_request(ApiKey.API_VERSIONS, version, request),
        version=version,
        deadline=deadline,
    )
    is_refused = len(body) >= 2 and int.from_bytes(body[:2]) == ErrorCode.unsupported_version
    response: Any = decode_response(ApiKey.API_VERSIONS, _FALLBACK_VERSION if is_refused else version, body)
    return response  # type: ignore[no-any-return]


def _choose(served: Mapping[int, range], api_key: int, versions: range | None) -> int:
    """Choose the highest version that both sides know. Raises UnsupportedVersion."""
    own, theirs = versions or KAFKA_VERSIONS[ApiKey(api_key)], served.get(api_key, range(0))
    chosen = min(own.stop, theirs.stop) - 1
    if chosen < max(own.start, theirs.start) or not theirs:
        raise UnsupportedVersion(
            f"The peer serves {ApiKey(api_key).name} {_range_text(theirs)}, this node knows {_range_text(own)}."
        )
    return chosen


def _range_text(versions: range) -> str:
    return f"{versions.start} to {versions.stop - 1}" if versions else "not at all"


def _api_versions_request() -> ApiVersionsRequest:
    return ApiVersionsRequest(client_software_name="ottla", client_software_version=VERSION)


def _plain(address: Address) -> Address:
    return address[0], address[1]


def _label(address: Address) -> str:
    host, port = address
    return f"{host}:{port}"

"""Node-to-controller channel: requests to the active controller, in this process or at the quorum's leader.

A broker's own requests are sent as they are, clients' requests in an envelope
(`ottla.broker.membership.envelope`). A request is retried, after a pause or as soon as the leader changes,
while no leader is known, the leader is unreachable, or the node that received it is no longer the leader;
until its timeout. A retried request may therefore be carried out twice, or once although the response reports
a failure; Kafka's brokers do the same.
Source: NodeToControllerRequestThread, ForwardingManager, RaftControllerNodeProvider of Kafka 4.3.1.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from ottla.broker.log_lines import OutageLog
from ottla.broker.membership.envelope import has_not_controller_error, unwrap_response, wrap_request
from ottla.broker.network.client import Address, Disconnected, NodeClient
from ottla.broker.request_context import RequestContext
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import (
    ErrorCode,
    MalformedMessage,
    NotController,
    RequestTimedOut,
    UnknownServerError,
    UnsupportedVersion,
)
from ottla.runtime import Runtime
from ottla.runtime.turns import FreedInTurns, result_in_turns

logger = logging.getLogger(__name__)

#: The pause before a request is retried; a new leader ends it.
RETRY_BACKOFF_S: Final = 0.1
#: The pause while the controller of this process is elected but not yet active, which takes a moment.
LOCAL_BACKOFF_S: Final = 0.01
#: The controller's name in log lines, local or remote.
_CONTROLLER: Final = "the active controller"


class RequestHandler(Protocol):
    """A controller that handles requests, in this process or on another node."""

    async def request(self, api_key: int, message: Any, context: RequestContext | None = None) -> Any:  # noqa: ANN401
        """Send a request and wait for its response; `context` is that of the forwarded client's request, if any."""


class ControllerChannel(RequestHandler, Protocol):
    """A channel to the active controller, as its callers see it."""

    async def request(self, api_key: int, message: Any, context: RequestContext | None = None) -> Any:  # noqa: ANN401
        """Send a message and wait for its response.

        `context` is that of the client's request that is forwarded (KIP-590), None for the broker's own
        requests. If the controller is in this process, records that the request committed are in this
        broker's image when the response arrives; otherwise they arrive later. Raises RequestTimedOut.
        """

    @property
    def controller_versions(self) -> Mapping[int, range] | None:
        """The versions that the last contacted controller serves, by API key; None if local or unknown."""


class LocalController(Protocol):
    """The controller of this process; raises NotController while it is not the active one."""

    async def request(self, api_key: int, message: Any, context: RequestContext | None = None) -> Any:  # noqa: ANN401
        """Decide the request, commit its records, and return the response."""


class QuorumView(Protocol):
    """The quorum's leader as a node's replica of the metadata log knows it."""

    @property
    def node_id(self) -> int:
        """The id of this node."""

    @property
    def leader(self) -> tuple[int | None, int]:
        """The leader's id (None while no leader is known) and the leader epoch."""

    def leader_address(self) -> Address | None:
        """The leader's address on the controllers' listeners."""


class LeaderWatch:
    """The quorum's current leader, and an event that is set when it changes; a listener of the quorum."""

    def __init__(self, quorum: QuorumView) -> None:
        self._quorum = quorum
        self._changed = asyncio.Event()

    @property
    def leader_id(self) -> int | None:
        """The leader that this node knows, or None."""
        return self._quorum.leader[0]

    @property
    def is_here(self) -> bool:
        """Whether this node leads the metadata quorum."""
        return self.leader_id == self._quorum.node_id

    @property
    def node_id(self) -> int:
        """The id of this node."""
        return self._quorum.node_id

    @property
    def address(self) -> Address | None:
        """The leader's address if the leader is known and is another node."""
        return None if self.is_here or self.leader_id is None else self._quorum.leader_address()

    def changed(self, *, timeout_s: float) -> Coroutine[Any, Any, None]:
        """Wait for a change of leader after the moment of the call, for `timeout_s` at most."""
        return _wait_for(self._changed, timeout_s)  # the event of this moment, although it is awaited later

    def on_leader(self, leader: object) -> None:
        """Set the event of a change: the quorum has a new leader epoch, or its leader has become known."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def on_commit(self, records: object, base_offset: int, end_offset: int) -> None:
        """Ignore committed records: they do not contain the leader."""

    def on_snapshot(self, batches: object, snapshot: object) -> None:
        """Ignore a snapshot: it does not contain the leader."""


async def _wait_for(event: asyncio.Event, timeout_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


class QuorumChannel:
    """Sends requests to the active controller, in this process or at the quorum's leader, and retries until a
    timeout.

    There is one channel for each purpose: requests of one channel queue behind each other at the controller.
    """

    def __init__(
        self,
        *,
        runtime: Runtime,
        leader: LeaderWatch,
        local: LocalController | None,
        client: NodeClient,
        outages: OutageLog,
        unreachable: Callable[[], Collection[str]] = tuple,
        timeout_ms: int,
        request_timeout_ms: int,
    ) -> None:
        """`timeout_ms` bounds a request with its retries, `request_timeout_ms` one attempt.

        `outages` logs failed attempts; the channels of a node share it. `unreachable` returns the addresses of
        controllers that do not respond, with the reasons; they explain why no leader is known.
        """
        self._unreachable = unreachable
        self._runtime = runtime
        self._leader = leader
        self._local = local
        self._client = client
        self._outages = outages
        self._timeout_s = timeout_ms / 1000
        self._request_timeout_s = min(request_timeout_ms, timeout_ms) / 1000
        self._controller_versions: Mapping[int, range] | None = None

    @property
    def controller_versions(self) -> Mapping[int, range] | None:
        """The versions that the last contacted controller serves, by API key; None if local or unknown."""
        return None if self._leader.is_here else self._controller_versions

    async def request(self, api_key: int, message: Any, context: RequestContext | None = None) -> Any:  # noqa: ANN401
        """Send a request to the active controller and wait for its response; a change of controller causes a retry.

        `context` is that of a forwarded client's request. Raises RequestTimedOut.
        """
        deadline = self._runtime.monotonic() + self._timeout_s
        while True:
            is_here, address = self._leader.is_here, self._leader.address
            remaining_s = max(deadline - self._runtime.monotonic(), 0.0)
            reason = "no leader of the metadata quorum is known"
            if address is None and (unreachable := self._unreachable()):
                reason += f" ({'; '.join(unreachable)})"
            try:
                if is_here and self._local is not None:
                    reason = self._why_not_active()
                    response = await self._request_local(
                        self._local.request(api_key, message, context), remaining_s
                    )
                    self._outages.answered(_CONTROLLER)
                    return response
                if is_here:
                    reason = self._why_not_active()
                elif address is not None:
                    reason = f"{address[0]}:{address[1]} does not lead the metadata quorum"
                    requesting = self._request_remote(address, api_key, message, context, remaining_s)
                    response = await self._until_deposed(address, requesting)
                    self._outages.answered(_CONTROLLER)
                    return response
            except NotController:
                pass  # the leader has changed a moment ago
            except (Disconnected, TimeoutError) as error:
                reason = str(error)
                logger.debug("%s to the controller: %s", ApiKey(api_key).name, error)
            self._outages.failed(_CONTROLLER, reason)
            remaining_s = deadline - self._runtime.monotonic()
            if remaining_s > 0 and (is_here, address) == (self._leader.is_here, self._leader.address):
                backoff_s = LOCAL_BACKOFF_S if is_here else RETRY_BACKOFF_S
                await self._leader.changed(timeout_s=min(backoff_s, remaining_s))
            if deadline - self._runtime.monotonic() < LOCAL_BACKOFF_S:
                raise RequestTimedOut(f"No controller has responded within {self._timeout_s:g} s: {reason}.")

    def _why_not_active(self) -> str:
        """The reason why this node does not respond as the controller although it is the last known leader."""
        return (
            f"the leader of the metadata quorum has this node's id, {self._leader.node_id}, and this node is not the "
            "active controller; if that lasts, another node has the same node.id"
        )

    async def _request_local(self, requesting: Coroutine[Any, Any, Any], remaining_s: float) -> Any:  # noqa: ANN401
        """The response of this process's controller. Raises TimeoutError.

        One attempt for the whole timeout: its decision stays in the log, and a retry would decide twice.
        """
        try:
            async with asyncio.timeout(remaining_s):
                return await requesting
        except TimeoutError:
            raise TimeoutError(
                "the active controller is this node, and has not committed the request's records"
            ) from None

    async def _until_deposed(self, address: Address, requesting: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401
        """Wait for the response; raises Disconnected if the leader changes: the node may have crashed silently."""
        task = asyncio.ensure_future(requesting)
        try:
            while not task.done():
                changed = asyncio.ensure_future(self._leader.changed(timeout_s=self._timeout_s))
                either: list[asyncio.Future[Any]] = [task, changed]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if not task.done() and (self._leader.is_here or self._leader.address not in (address, None)):
                    raise Disconnected(f"{address[0]}:{address[1]} does not lead any more")
            return task.result()
        finally:
            task.cancel()

    async def _request_remote(
        self,
        address: Address,
        api_key: int,
        message: Any,  # noqa: ANN401
        context: RequestContext | None,
        remaining_s: float,
    ) -> Any:  # noqa: ANN401
        timeout_s = min(self._request_timeout_s, remaining_s)
        self._controller_versions = await self._client.served(address, timeout_s=timeout_s)
        if context is None:
            response = await self._client.request(address, api_key, message, timeout_s=timeout_s)
            if has_not_controller_error(response):
                raise NotController
            return response
        parts = FreedInTurns(self._runtime)
        wrapped = await result_in_turns(
            wrap_request(message, context, parts), self._runtime, is_begun_at_once=True
        )
        envelope = await self._client.request(address, ApiKey.ENVELOPE, wrapped, timeout_s=timeout_s)
        if envelope.error_code == ErrorCode.not_controller:
            raise NotController
        if envelope.error_code == ErrorCode.unsupported_version:
            raise UnsupportedVersion(f"The controller does not serve API {api_key} v{context.version}.")
        if envelope.error_code != ErrorCode.none:
            # The two nodes are incompatible; the client cannot change that.
            logger.error(
                "the controller at %s:%d refuses an envelope: %s",
                *address,
                ErrorCode(envelope.error_code).name,
            )
            raise UnknownServerError
        try:
            unwrapping = unwrap_response(envelope.response_data, context, parts)
            return await result_in_turns(unwrapping, self._runtime, is_begun_at_once=True)
        except MalformedMessage as error:
            logger.error(
                "the controller at %s:%d returned a malformed response in an envelope: %s", *address, error
            )
            raise UnknownServerError from error

"""The way to the active controller, wherever it is: in this process, or at the leader that the quorum knows.

A broker's own requests go as they are, clients' requests in an envelope (`broker.envelope`). A request is
sent again, after a pause or as soon as there is another leader, while there is no leader, the leader has
gone, or whoever was asked does not lead any more; until its time is over. What was asked may then have been
carried out twice, or once though the answer says it failed; Kafka's brokers do the same.
Source: NodeToControllerRequestThread, ForwardingManager, RaftControllerNodeProvider of Kafka 4.3.1.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from broker.api import RequestContext
from broker.envelope import says_not_controller, unwrap_response, wrap_request
from broker.log_lines import OutageLog
from broker.network.client import Address, Disconnected, NodeClient
from broker.runtime import Runtime
from protocol.api_keys import ApiKey
from protocol.errors import (
    ErrorCode,
    MalformedMessage,
    NotController,
    RequestTimedOut,
    UnknownServerError,
    UnsupportedVersion,
)

logger = logging.getLogger(__name__)

#: The pause before a request is tried again; a new leader ends it.
RETRY_BACKOFF_S: Final = 0.1
#: The pause while the controller of this process is elected but not yet active: it will be in a moment.
LOCAL_BACKOFF_S: Final = 0.01
#: What log lines call it, wherever it is.
_CONTROLLER: Final = "the active controller"


class TakesRequests(Protocol):
    """A controller, near or far."""

    async def request(self, api_key: int, message: Any, context: RequestContext | None = None) -> Any:  # noqa: ANN401
        """Ask, and wait for the answer; `context` is the client's for whom it is asked, if any."""


class ControllerChannel(TakesRequests, Protocol):
    """One way to the active controller, as those who ask see it."""

    async def request(self, api_key: int, message: Any, context: RequestContext | None = None) -> Any:  # noqa: ANN401
        """Send a message and wait for the answer to it.

        `context` is the client's whose request is forwarded (KIP-590), None when the broker asks for
        itself. Where the controller is in this process, records that the request committed are in this
        broker's image when the answer is there; else they will be soon. Raises RequestTimedOut.
        """

    @property
    def controller_versions(self) -> Mapping[int, range] | None:
        """What the controller that was asked last serves, by API key; None if that is this process, or not known."""


class LocalController(Protocol):
    """The controller of this process; refuses with NotController what it gets while it is not the active one."""

    async def request(self, api_key: int, message: Any, context: RequestContext | None = None) -> Any:  # noqa: ANN401
        """Decide, commit, answer."""


class QuorumView(Protocol):
    """What a node's replica of the metadata log says of who leads."""

    @property
    def node_id(self) -> int:
        """This node."""

    @property
    def leader(self) -> tuple[int | None, int]:
        """The leader's id, None while nobody is known to lead, and its epoch."""

    def leader_address(self) -> Address | None:
        """Where the leader is reached by controllers' listeners."""


class LeaderWatch:
    """Who leads the quorum, and a bell that rings when that changes; a listener of the quorum."""

    def __init__(self, quorum: QuorumView) -> None:
        self._quorum = quorum
        self._changed = asyncio.Event()

    @property
    def leader_id(self) -> int | None:
        """Who leads, as far as this node knows."""
        return self._quorum.leader[0]

    @property
    def is_here(self) -> bool:
        """Whether this node leads."""
        return self.leader_id == self._quorum.node_id

    @property
    def node_id(self) -> int:
        """This node."""
        return self._quorum.node_id

    @property
    def address(self) -> Address | None:
        """Where the leader is reached, if it is known and elsewhere."""
        return None if self.is_here or self.leader_id is None else self._quorum.leader_address()

    def changed(self, *, timeout_s: float) -> Coroutine[Any, Any, None]:
        """Wait for another leader than the one at the moment of the call, for so long at most."""
        return _rung(self._changed, timeout_s)  # this bell, though it is waited for later

    def on_leader(self, leader: object) -> None:
        """There is a new epoch, or a leader of it."""
        bell, self._changed = self._changed, asyncio.Event()
        bell.set()

    def on_commit(self, records: object, base_offset: int, end_offset: int) -> None:
        """Records do not say who leads."""

    def on_snapshot(self, chunks: object, snapshot: object) -> None:
        """Nor do snapshots."""


async def _rung(bell: asyncio.Event, timeout_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await bell.wait()


class QuorumChannel:
    """See the module. One for each purpose: requests of one channel wait for one another at the controller."""

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
        """`timeout_ms` is for the whole of a request, `request_timeout_ms` for one attempt.

        `outages` is where attempts that fail are logged; the channels of a node share it. `unreachable` gives the
        addresses of controllers that do not answer, with the reasons: why no leader is known.
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
        """See `ControllerChannel`."""
        return None if self._leader.is_here else self._controller_versions

    async def request(self, api_key: int, message: Any, context: RequestContext | None = None) -> Any:  # noqa: ANN401
        """See `ControllerChannel`."""
        deadline = self._runtime.monotonic() + self._timeout_s
        while True:
            is_here, address = self._leader.is_here, self._leader.address
            left_s = max(deadline - self._runtime.monotonic(), 0.0)
            reason = "no leader of the metadata quorum is known"
            if address is None and (unreachable := self._unreachable()):
                reason += f" ({'; '.join(unreachable)})"
            try:
                if is_here and self._local is not None:
                    reason = self._why_not_here()
                    response = await self._ask_here(self._local.request(api_key, message, context), left_s)
                    self._outages.answered(_CONTROLLER)
                    return response
                if is_here:
                    reason = self._why_not_here()
                elif address is not None:
                    reason = f"{address[0]}:{address[1]} does not lead the metadata quorum"
                    asking = self._ask(address, api_key, message, context, left_s)
                    response = await self._unless_deposed(address, asking)
                    self._outages.answered(_CONTROLLER)
                    return response
            except NotController:
                pass  # it was, a moment ago
            except (Disconnected, TimeoutError) as error:
                reason = str(error)
                logger.debug("%s to the controller: %s", ApiKey(api_key).name, error)
            self._outages.failed(_CONTROLLER, reason)
            left_s = deadline - self._runtime.monotonic()
            if left_s > 0 and (is_here, address) == (self._leader.is_here, self._leader.address):
                backoff_s = LOCAL_BACKOFF_S if is_here else RETRY_BACKOFF_S
                await self._leader.changed(timeout_s=min(backoff_s, left_s))
            if deadline - self._runtime.monotonic() < LOCAL_BACKOFF_S:
                raise RequestTimedOut(f"No controller has answered within {self._timeout_s:g} s: {reason}.")

    def _why_not_here(self) -> str:
        """Why this node does not answer as the controller although it is the last known leader."""
        return (
            f"the leader of the metadata quorum has this node's id, {self._leader.node_id}, and this node is not the "
            "active controller; if that lasts, another node has the same node.id"
        )

    async def _ask_here(self, asking: Coroutine[Any, Any, Any], left_s: float) -> Any:  # noqa: ANN401
        """The answer of this process's controller. Raises TimeoutError.

        One attempt for the whole time: what it has decided stays in the log, and is decided once.
        """
        try:
            async with asyncio.timeout(left_s):
                return await asking
        except TimeoutError:
            raise TimeoutError("the active controller is this node, and has not committed it") from None

    async def _unless_deposed(self, address: Address, asking: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401
        """Wait for the answer, but not of one who is known not to lead any more: it may have died in silence."""
        task = asyncio.ensure_future(asking)
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

    async def _ask(
        self,
        address: Address,
        api_key: int,
        message: Any,  # noqa: ANN401
        context: RequestContext | None,
        left_s: float,
    ) -> Any:  # noqa: ANN401
        timeout_s = min(self._request_timeout_s, left_s)
        self._controller_versions = await self._client.served(address, timeout_s=timeout_s)
        if context is None:
            response = await self._client.request(address, api_key, message, timeout_s=timeout_s)
            if says_not_controller(response):
                raise NotController
            return response
        envelope = await self._client.request(
            address, ApiKey.ENVELOPE, wrap_request(message, context), timeout_s=timeout_s
        )
        if envelope.error_code == ErrorCode.not_controller:
            raise NotController
        if envelope.error_code == ErrorCode.unsupported_version:
            raise UnsupportedVersion(f"The controller does not serve API {api_key} v{context.version}.")
        if envelope.error_code != ErrorCode.none:
            # The two nodes do not fit together; the client cannot do anything about it.
            logger.error("the controller refuses an envelope: %s", ErrorCode(envelope.error_code).name)
            raise UnknownServerError
        try:
            return unwrap_response(envelope.response_data, context)
        except MalformedMessage as error:
            logger.error("the controller answers an envelope with what is no response: %s", error)
            raise UnknownServerError from error

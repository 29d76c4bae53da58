"""A follower's connection to its leader on a stage: a request waits until the story delivers it."""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol

from ottla.broker.network.client import Disconnected
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.codec import decode_request, encode_response
from ottla.protocol.errors import UnsupportedVersion
from ottla.stories.partition.message_lines import request_line, response_line
from ottla.stories.partition.replicas import ReplicaBroker, turns

#: The versions that brokers speak with each other.
VERSIONS: Mapping[int, int] = {ApiKey.FETCH: 18, ApiKey.LIST_OFFSETS: 11, ApiKey.OFFSET_FOR_LEADER_EPOCH: 4}
#: More than replica.fetch.backoff.ms: until a follower asks again.
BACKOFF_S = 1.1


class LineStage(Protocol):
    """The stage as a line needs it."""

    @property
    def lines(self) -> "dict[str, Line]":
        """The lines of all followers, by name."""

    @property
    def served(self) -> Mapping[int, int]:
        """The highest version of an API that leaders serve, where it is not the newest."""

    def name_of(self, node_id: int) -> str:
        """Return the name of a broker in the story."""

    def host(self, host: str) -> ReplicaBroker:
        """Return the broker of this host name."""

    def show(self, line: str) -> None:
        """Add a line to the output."""

    def note_message(
        self,
        key: int,
        body: Any,
        *,
        kind: Literal["request", "response"],
        sender: str,
        receiver: str,
        line: str,
        lost: bool = False,
        delayed: bool = False,
        request: Any = None,
    ) -> None:
        """Note a message for the trace; `request` of a response: what it responds to."""


class Line:
    """A follower's connection, in place of NodeClient: a request waits until the story delivers it."""

    def __init__(self, stage: LineStage, node_id: int) -> None:
        self._stage = stage
        self.name = stage.name_of(node_id)
        #: (leader's host, api key, message, the follower's future).
        self.question: tuple[str, int, Any, Future[Any]] | None = None
        self.delayed: asyncio.Task[Any] | None = None
        self._is_late = False
        stage.lines[self.name] = self

    async def request(
        self, address: tuple[str, int], key: int, message: Any, *, timeout_s: float, versions: Any = None
    ) -> Any:
        """Wait until the story delivers the request, and its response."""
        if versions is not None and versions.start > self._stage.served.get(key, VERSIONS[key]):
            raise UnsupportedVersion(f"{address[0]} serves no version of {ApiKey(key).name} in {versions}")
        answer: Future[Any] = asyncio.get_running_loop().create_future()
        self.question = (address[0], key, message, answer)
        try:
            return await answer
        finally:
            self.question = None
            if self.delayed is not None:
                self.delayed.cancel()
                self.delayed = None

    async def request_encoded(
        self,
        address: tuple[str, int],
        key: int,
        encode: Callable[[int], bytes],
        decode: Callable[[int, memoryview], Any],
        *,
        timeout_s: float,
        versions: Any = None,
        buffer: object = None,  # small responses need none
    ) -> Any:
        """Send a request that the caller encodes; as `request`."""
        version = VERSIONS[ApiKey(key)]
        message = decode_request(key, version, encode(version))
        response = await self.request(address, key, message, timeout_s=timeout_s, versions=versions)
        return decode(version, memoryview(encode_response(key, version, response)))

    async def close(self) -> None:
        """Do nothing, since nothing is open."""

    async def let_pass(self, *, is_lost: bool = False) -> None:
        """Deliver the request to the leader's handler, and the response if it is available at once."""
        assert self.question is not None, f"{self.name} has nothing to ask"
        assert self.delayed is None, f"{self.name} waits for an answer already"
        host, key, message, answer = self.question
        leader = self._stage.host(host)
        to = self._stage.name_of(leader.node_id)
        line = f"{self.name} -> {request_line(key, message)}"
        self._stage.show(line)
        if not leader.is_up:
            self._note_request(key, message, to, line, lost=True)
            self._stage.show(f"{self.name} <- no answer")
            answer.set_exception(Disconnected("no answer"))
            return
        self.delayed = asyncio.ensure_future(_awaited(leader.answer(key, message, VERSIONS[key])))
        await turns()
        self._is_late = not self.delayed.done()
        self._note_request(key, message, to, line, delayed=self._is_late)
        if is_lost:
            if not self._is_late:
                self._note_response(key, message, self.delayed.result(), to, lost=True)
            answer.set_exception(Disconnected("the answer is lost"))
        elif not self.deliver():
            self._stage.show(f"{self.name} waits for a response")

    def deliver(self) -> bool:
        """Deliver the response, if it is available."""
        if self.delayed is None or not self.delayed.done() or self.question is None:
            return False
        host, key, message, answer = self.question
        response = self.delayed.result()
        self._stage.show(f"{self.name} <- {response_line(key, response)}")
        sender = self._stage.name_of(self._stage.host(host).node_id)
        self._note_response(key, message, response, sender, delayed=self._is_late)
        answer.set_result(response)
        return True

    async def break_off(self, host: str) -> None:
        """The connection is lost if it leads to this host."""
        if self.question is not None and self.question[0] == host and self.delayed is not None:
            self.question[3].set_exception(Disconnected("the leader has died"))
            await asyncio.sleep(BACKOFF_S)

    def _note_request(
        self, key: int, message: Any, to: str, line: str, *, lost: bool = False, delayed: bool = False
    ) -> None:
        self._stage.note_message(
            key, message, kind="request", sender=self.name, receiver=to, line=line, lost=lost, delayed=delayed
        )

    def _note_response(
        self, key: int, message: Any, response: Any, sender: str, *, lost: bool = False, delayed: bool = False
    ) -> None:
        self._stage.note_message(
            key,
            response,
            kind="response",
            sender=sender,
            receiver=self.name,
            line=f"{self.name} <- {response_line(key, response)}",
            lost=lost,
            delayed=delayed,
            request=message,
        )


async def _awaited(response: Any) -> Any:
    return await response if isinstance(response, Awaitable) else response

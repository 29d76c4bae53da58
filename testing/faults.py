"""Faults between a client and a broker: errors instead of responses, delays, lost connections, silence.

    frame --no armed fault concerns it--> the broker's own dispatch
          --inject_error--> the error in every row; the broker does not process the request
          --delay_on------> the broker's response, some seconds later on the broker's clock
          --disconnect_on-> the broker processes the request, and the connection breaks instead of the response
          --blackhole-----> neither processed nor answered, until the fault is disarmed

A fault is created, then armed by saying how often it strikes:

    with broker.inject_error("PRODUCE", "NOT_LEADER_OR_FOLLOWER").times(2): ...

At the end of the `with` it is disarmed, and `FaultNeverStruck` is raised if no request has met it: such a test tests
nothing. Without `with` the same is checked when the broker is reset or stopped.

The words are those of the fault proxy in Apache Kafka's test fixtures (apache/kafka#23438).
"""

import asyncio
import difflib
import random
import re
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Self

from ottla.broker.network import Buffers, Connection, Dispatch, Reply, ReplyOfReads
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.codec import decode_request, decode_response, encode_response
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.framing import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_response_header,
)
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.testing.error_responses import error_response

#: The client id of the requests by which a `Broker` object looks at its broker: faults do not concern them.
OWN_CLIENT_ID: Final = "ottla-testing"
#: The client ids of requests between brokers, which faults do not concern either.
_OF_BROKERS: Final = re.compile(r"broker-\d+-fetcher-\d+$|__remote_log_metadata")

#: Handles a request: (the broker's dispatch, frame, header, where the body begins, connection) -> reply.
Action = Callable[["Dispatch", memoryview, RequestHeader, int, Connection], Reply]


class FaultNeverStruck(AssertionError):
    """A fault was armed, and no request has met it: the test has not tested what it says."""


class Fault:
    """A fault of the requests of one API, or of one client. Armed by `once`, `times`, `on_call` and their like."""

    def __init__(
        self, faults: "Faults", what: str, action: Action, *, api: ApiKey | None, client: str, strict: bool
    ) -> None:
        """`what` is the call that has created it, for messages; `client` is a part of the client ids concerned."""
        self._faults = faults
        #: The call that has created it, for messages.
        self.what = what
        self._action = action
        self._api = api
        self._client = client
        self._is_due: Callable[[int], bool] | None = None
        self._last_call: int | None = None
        self.is_strict = strict
        #: Whether it answers with an error in every row.
        self.is_error = False
        self._calls = 0
        self._struck = 0

    @property
    def calls(self) -> int:
        """The requests that it concerned since it was armed."""
        return self._calls

    @property
    def struck(self) -> int:
        """The requests that have met it since it was armed."""
        return self._struck

    def once(self) -> Self:
        """Strike the first request only."""
        return self.times(1)

    def times(self, count: int) -> Self:
        """Strike the first `count` requests."""
        if count < 1:
            raise ValueError(f"{self.what}.times({count}): the count must be 1 or more.")
        return self._arm(lambda call: call <= count, last_call=count)

    def on_call(self, number: int) -> Self:
        """Strike the request of this number, counted from 1, only."""
        if number < 1:
            raise ValueError(f"{self.what}.on_call({number}): calls are counted from 1.")
        return self._arm(lambda call: call == number, last_call=number)

    def every_time(self) -> Self:
        """Strike every request from now on."""
        return self._arm(lambda _: True)

    def with_probability(self, probability: float, *, seed: int = 0) -> Self:
        """Strike each request with this probability; the same ones in each run with the same seed."""
        if not 0 < probability <= 1:
            raise ValueError(
                f"{self.what}.with_probability({probability}): a probability is above 0, and at most 1."
            )
        draws = random.Random(seed)
        return self._arm(lambda _: draws.random() < probability)

    @property
    def is_armed(self) -> bool:
        """Whether a further request may meet it."""
        return self in self._faults.armed

    def disarm(self) -> None:
        """Strike no further request; requests that it has kept waiting lose their connections."""
        self._faults.disarm(self)

    def end(self) -> None:
        """Disarm it; a reset does not check it any more."""
        self.disarm()
        self._faults.forget(self)

    def verify(self) -> None:
        """Raise FaultNeverStruck if it was never armed, or if no request has met it."""
        if not self.is_strict:
            return
        if self._is_due is None:
            raise FaultNeverStruck(
                f"{self.what} was never armed: call once(), times(n), on_call(n), every_time() or "
                "with_probability(p) of it."
            )
        if not self.struck:
            raise FaultNeverStruck(
                f"{self.what} was armed, and none of the {self.calls} requests that it concerns has met it. "
                "Pass strict=False if that may be."
            )

    def __enter__(self) -> Self:
        return self.every_time() if self._is_due is None else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if error is None:
            self.verify()

    def __repr__(self) -> str:
        return f"<Fault {self.what}, struck {self.struck} of {self.calls} requests>"

    def _arm(self, is_due: Callable[[int], bool], *, last_call: int | None = None) -> Self:
        self._is_due, self._last_call = is_due, last_call
        self._faults.arm(self)
        return self

    def reset_counts(self) -> None:
        """Forget the requests so far: it is armed now. Called with the lock held."""
        self._calls = self._struck = 0

    def continue_from(self, *, calls: int, struck: int) -> None:
        """Continue a fault of a process that has ended, which had counted these requests since it was armed."""
        self._faults.continue_from(self, calls=calls, struck=struck)

    def count(self, *, calls: int, struck: int) -> None:
        """Count these requests, as if they had arrived. Called with the lock held."""
        assert self._is_due is not None
        for number in range(1, calls + 1):
            self._is_due(number)  # a probability draws
        self._calls, self._struck = calls, struck

    @property
    def is_exhausted(self) -> bool:
        """Whether no further request can meet it."""
        return self._last_call is not None and self._calls >= self._last_call

    def concerns(self, header: RequestHeader) -> bool:
        """Whether the request is one of the API, or of the client."""
        return self._api in (None, header.api_key) and self._client in (header.client_id or "")

    def strikes(self, header: RequestHeader) -> Action | None:
        """Count a request that it concerns; the action if the request meets the fault. Called with the lock held."""
        if not self.concerns(header):
            return None
        assert self._is_due is not None
        self._calls += 1
        if self.is_exhausted:
            self._faults.armed.pop(self, None)
        if not self._is_due(self._calls):
            return None
        self._struck += 1
        return self._action


class Faults:
    """The faults of one broker. Created and armed in any thread, met by requests on the broker's loop."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        #: In the order of arming: the first one that strikes decides.
        self.armed: dict[Fault, None] = {}
        #: All that were created since the last `reset`, and were not ended by a `with`.
        self._created: dict[Fault, None] = {}
        self._silenced: dict[Connection, Fault] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- created by tests [any thread] ------------------------------------------------------------------

    def inject_error(
        self, api: str | ApiKey, error: str | ErrorCode, *, client: str = "", strict: bool = True
    ) -> Fault:
        """Answer requests of the API with the error in every row; the broker does not process them.

        METADATA is processed, so that the response has the brokers, without which clients ignore it. `client` is a part
        of the client ids that are concerned. Raises ValueError for an unknown name.
        """
        key, code = api_named(api), error_named(error)
        if code == ErrorCode.none:
            raise ValueError("The error NONE is no error.")

        def answer(
            dispatch: Dispatch,
            frame: memoryview,
            header: RequestHeader,
            body_at: int,
            connection: Connection,
        ) -> Reply:
            if key == ApiKey.METADATA:
                return _metadata_with_error(dispatch(frame, connection), header, code)
            version = header.api_version
            request = decode_request(key, version, bytes(frame[body_at:]))
            if key == ApiKey.PRODUCE and getattr(request, "acks", None) == 0:
                connection.close()  # as a broker does: there is no response that could have an error
                return None
            encoded = encode_response(key, version, error_response(request, code))
            return [encode_response_header(key, version, header.correlation_id), encoded]

        fault = self._create(f"inject_error({key.name}, {code.name.upper()})", answer, key, client, strict)
        fault.is_error = True
        return fault

    def delay_on(self, api: str | ApiKey, seconds: float, *, client: str = "", strict: bool = True) -> Fault:
        """Send the responses of the API `seconds` later; the broker processes the requests at once."""
        key = api_named(api)
        if seconds < 0:
            raise ValueError(f"delay_on({key.name}, {seconds}): the delay must be 0 or more seconds.")

        def delay(
            dispatch: Dispatch, frame: memoryview, _: RequestHeader, __: int, connection: Connection
        ) -> Reply:
            reply = dispatch(frame, connection)

            async def later() -> Reply:
                buffers = await _completed(reply)
                await asyncio.sleep(seconds)
                return buffers

            return later()

        return self._create(f"delay_on({key.name}, {seconds:g})", delay, key, client, strict)

    def disconnect_on(self, api: str | ApiKey, *, client: str = "", strict: bool = True) -> Fault:
        """Break the connection when the response would be sent; the broker has processed the request."""
        key = api_named(api)

        def disconnect(
            dispatch: Dispatch, frame: memoryview, _: RequestHeader, __: int, connection: Connection
        ) -> Reply:
            reply = dispatch(frame, connection)

            async def broken() -> Reply:
                await _completed(reply)
                connection.abort()
                return None

            return broken()

        return self._create(f"disconnect_on({key.name})", disconnect, key, client, strict)

    def blackhole_client(self, substring: str, *, strict: bool = True) -> Fault:
        """Process and answer no request of clients whose client id contains `substring`."""
        if not substring:
            raise ValueError('blackhole_client(""): the part of the client id must not be empty.')

        def silence(
            _: Dispatch, __: memoryview, ___: RequestHeader, ____: int, connection: Connection
        ) -> Reply:
            self._silenced[connection] = fault
            return ReplyOfReads(self._until_lost(connection))

        fault = self._create(f"blackhole_client({substring!r})", silence, None, substring, strict)
        return fault

    @property
    def created(self) -> list[Fault]:
        """The faults that were created since the last `reset`, and were not ended by a `with`."""
        with self._lock:
            return list(self._created)

    def reset(self, *, verify: bool = True) -> None:
        """Disarm and forget all faults. With `verify`, raises FaultNeverStruck for one that no request has met."""
        with self._lock:
            created, self._created = self._created, {}
            self.armed.clear()
        for fault in created:
            self.disarm(fault)
        for fault in created if verify else ():
            fault.verify()

    # -- called by Fault [any thread] -------------------------------------------------------------------

    def arm(self, fault: Fault) -> None:
        """Let further requests meet the fault."""
        with self._lock:
            fault.reset_counts()
            self.armed[fault] = None

    def continue_from(self, fault: Fault, *, calls: int, struck: int) -> None:
        """Count requests that another process has received, for a fault that is armed."""
        with self._lock:
            fault.count(calls=calls, struck=struck)
            if fault.is_exhausted:
                self.armed.pop(fault, None)

    def disarm(self, fault: Fault) -> None:
        """Let no further request meet the fault, and break the connections that it has silenced."""
        with self._lock:
            self.armed.pop(fault, None)
        if self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(self._break_silence, fault)

    def remember(self, fault: Fault) -> None:
        """Check the fault at the next `reset`."""
        with self._lock:
            self._created[fault] = None

    def forget(self, fault: Fault) -> None:
        """Do not check the fault at the next `reset`."""
        with self._lock:
            self._created.pop(fault, None)

    def _create(self, what: str, action: Action, api: ApiKey | None, client: str, strict: bool) -> Fault:
        fault = Fault(self, what, action, api=api, client=client, strict=strict)
        self.remember(fault)
        return fault

    # -- met by requests [the broker's loop] ------------------------------------------------------------

    def around(self, dispatch: Dispatch) -> Dispatch:
        """Return the dispatch of a broker whose requests meet these faults."""
        self._loop = asyncio.get_running_loop()

        def meet(frame: memoryview, connection: Connection) -> Reply:
            if not self.armed:
                return dispatch(frame, connection)
            header, body_at = decode_request_header(frame)
            if not _is_of_client(header):
                return dispatch(frame, connection)
            if self._needs_rows(header) and (ended := _end_of_session(frame, header, body_at)) is not None:
                return ended
            action = self._action_for(header)
            if action is None:
                return dispatch(frame, connection)
            return action(dispatch, frame, header, body_at, connection)

        return meet

    def _needs_rows(self, header: RequestHeader) -> bool:
        """Whether an error is to be in the rows of a Fetch, which it has not in a session without changes."""
        return header.api_key == ApiKey.FETCH and any(
            fault.is_error and fault.concerns(header) for fault in list(self.armed)
        )

    def _action_for(self, header: RequestHeader) -> Action | None:
        with self._lock:
            found = (fault.strikes(header) for fault in list(self.armed))
            # The first one that strikes: those behind it wait for a request of their own.
            return next((action for action in found if action is not None), None)

    def _break_silence(self, fault: Fault) -> None:
        for connection in [each for each, cause in self._silenced.items() if cause is fault]:
            connection.abort()

    async def _until_lost(self, connection: Connection) -> Reply:
        """Wait until the connection is lost, which cancels this."""
        never: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        try:
            return await never
        finally:
            self._silenced.pop(connection, None)


def api_named(name: str | ApiKey) -> ApiKey:
    """Return the API of a name such as PRODUCE or FindCoordinator. Raises ValueError with near names."""
    if isinstance(name, ApiKey):
        return name
    by_text = {each.name.replace("_", "").lower(): each for each in ApiKey}
    found = by_text.get(name.replace("_", "").lower())
    if found is None:
        raise ValueError(f"There is no API {name!r}{_suggestion(name, (each.name for each in ApiKey))}")
    return found


def error_named(name: str | int) -> ErrorCode:
    """Return the error of a name such as NOT_LEADER_OR_FOLLOWER, or of a code. Raises ValueError with near names."""
    if isinstance(name, int):
        return ErrorCode(name)
    found = ErrorCode.__members__.get(name.lower())
    if found is None:
        raise ValueError(
            f"There is no error {name!r}{_suggestion(name, (each.name.upper() for each in ErrorCode))}"
        )
    return found


def _suggestion(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name.upper(), list(known), n=3)
    return f": did you mean {' or '.join(near)}?" if near else "."


def _is_of_client(header: RequestHeader) -> bool:
    """Whether the request is neither of another broker, nor of a test that looks at the cluster."""
    client_id = header.client_id or ""
    return client_id != OWN_CLIENT_ID and not _OF_BROKERS.match(client_id)


def _end_of_session(frame: memoryview, header: RequestHeader, body_at: int) -> Buffers | None:
    """The response that ends the session of a Fetch without rows, so that the next one has all; None: it has rows."""
    key, version = header.api_key, header.api_version
    request = decode_request(key, version, bytes(frame[body_at:]))
    assert isinstance(request, FetchRequest)
    if request.topics or not request.session_id:
        return None
    response = FetchResponse(error_code=ErrorCode.fetch_session_id_not_found)
    return [
        encode_response_header(key, version, header.correlation_id),
        encode_response(key, version, response),
    ]


async def _metadata_with_error(reply: Reply, header: RequestHeader, code: ErrorCode) -> Reply:
    """The response of the broker with the error in each topic, or in the response if it has none."""
    buffers = await _completed(reply)
    if buffers is None:
        return None
    key, version = header.api_key, header.api_version
    answered = b"".join(buffers)
    _, body_at = decode_response_header(key, version, memoryview(answered))
    response = decode_response(key, version, answered[body_at:])
    assert isinstance(response, MetadataResponse)
    for topic in response.topics:
        topic.error_code, topic.partitions = code, []
    if not response.topics:
        response.error_code = code
    return [
        encode_response_header(key, version, header.correlation_id),
        encode_response(key, version, response),
    ]


async def _completed(reply: Reply) -> Buffers | None:
    """Wait until a reply is complete; copied, because its memory may be that of a log that changes."""
    while reply is not None and not isinstance(reply, list):
        reply = await reply
    return None if reply is None else [bytes(each) for each in reply]

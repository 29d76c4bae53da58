"""The APIs that this broker serves: one module for each API key, named `kNN_name.py`.

Each module holds `API`, an `Api` with its key, its versions and its handler; ApiVersions is computed
from the listing of this folder. A module is imported when its first request arrives, which keeps the
start of a broker fast; the APIs that most clients use are imported and compiled in turns of the loop as
soon as the broker is ready (`preparations`). A request that arrives earlier imports its API; if that is
long, it waits for an import in turns (`import_steps`).
Source: the handlers of kafka.server.KafkaApis of Kafka 4.3.1.
"""

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

from ottla.broker.network import Buffers, Reply
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.codec import decoder, encoder, stepwise_encoder
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages import request_class, response_class
from ottla.protocol.schema import Response

__all__ = [
    "Api",
    "Buffers",
    "Repeated",
    "Reply",
    "api",
    "import_steps",
    "is_import_long",
    "modules",
    "preparations",
]

#: The APIs of producers, consumers and members of groups. Preparing all APIs would take the loop twice as long.
_PREPARED: Final = (
    ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.INIT_PRODUCER_ID,
    ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.OFFSET_FETCH,
    ApiKey.OFFSET_COMMIT, ApiKey.LEAVE_GROUP,
)  # fmt: skip

#: APIs whose import would take more than 5 ms at once, in steps of 1 to 1.5 ms: 10 ms for Fetch. The import
#: of any other API takes 3 ms at most.
_IMPORTED_IN_STEPS: Final[Mapping[int, tuple[str, ...]]] = {
    ApiKey.FETCH: (
        "ottla.remote.reading.settings",
        "ottla.remote.reading.index_cache",
        "ottla.remote.reading.copy_reader",
        "ottla.remote.reading.remote_log_reader",
        "ottla.remote.reading.chunk_reads",
        "ottla.broker.replicas.reading.fetch_params",
        "ottla.broker.replicas.reading.read_from_log",
        "ottla.broker.api.current_leader",
        "ottla.broker.api.k01_fetch",
    ),
}


class Repeated(NamedTuple):
    """The way to handle the next requests of a connection whose bodies begin with the same bytes as the one before."""

    #: The number of bytes at the beginning of the body that have to be the same.
    size_bytes: int
    #: Handles a request with such a body, like `Api.handle_raw`, without parsing these bytes.
    handle: Callable[[memoryview, RequestContext, BrokerServices], Reply]
    #: Called once when no such request follows: a request of another kind does, or the connection is closed.
    close: Callable[[], None] = lambda: None


@dataclass(slots=True, frozen=True, kw_only=True)
class Api:
    """One API of the broker.

    `handle(request, context, broker)` receives the decoded, version-free message and returns the response
    message, an awaitable of it, or None if no response is due. A hot API (Produce, Fetch) has
    `handle_raw(body, context, broker)` instead: it decodes the body itself, and returns the whole
    response, header included, as buffers.
    """

    key: ApiKey
    versions: range
    handle: Callable[[Any, RequestContext, BrokerServices], Any] | None = None
    handle_raw: Callable[[memoryview, RequestContext, BrokerServices], Reply] | None = None
    #: Returns, for version and body, how a hot API handles the next requests that begin with the same bytes;
    #: None for other bodies.
    repeated: Callable[[int, memoryview], Repeated | None] | None = None
    #: The response to a request that failed as a whole, for APIs whose response has no error code of its own.
    refuse: Callable[[Any, KafkaError], Response] | None = None
    #: Returns the state, beside the request and its listener, that determines the response; None if the
    #: response depends on more, or the handler has effects. Responses that did not wait are cached while the
    #: state is equal (`ottla.broker.api.dispatch.ResponseCache`).
    depends_on: Callable[[BrokerServices], object] | None = None
    #: Whether a response that is awaited may be long, so that it is encoded in turns of the loop: its handler returns
    #: only short ones at once (`ottla.broker.api.long_answers`).
    is_encoded_in_turns: bool = False
    #: Whether a response that is awaited takes work that changes nothing: the work is cancelled when the
    #: connection is closed.
    only_reads: bool = False

    def __post_init__(self) -> None:
        assert (self.handle is None) != (self.handle_raw is None), self.key


@cache
def modules() -> dict[int, str]:
    """Return API key -> module name, from the file names of this folder."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return {int(name[1:3]): f"{__name__}.{name}" for name in names if name[0] == "k" and name[1:3].isdigit()}


@cache
def api(key: int) -> Api:
    """The API of `key`, imported on first use; KeyError if it is not served."""
    found: Api = importlib.import_module(modules()[key]).API
    assert found.key == key, found
    return found


def is_import_long(key: int) -> bool:
    """Whether `api` would import so much at once that others should not wait for it: `import_steps` comes first."""
    return any(name not in sys.modules for name in _IMPORTED_IN_STEPS.get(key, ()))


def import_steps(key: int) -> Iterator[None]:
    """Import an API whose import is long, step by step."""
    for name in _IMPORTED_IN_STEPS.get(key, ()):
        importlib.import_module(name)
        yield


def preparations() -> Iterator[None]:
    """Import the APIs that clients use most, and compile the codecs of their newest versions, step by step.

    Otherwise the first request of each API waits for that, and all other requests with it. Cost: 50 ms and 2 MB of
    memory in total, at most some 2 ms for a step, each of which should be a turn of its own.
    """
    yield from import_steps(ApiKey.FETCH)
    for key in _PREPARED:
        is_raw = api(key).handle is None
        yield
        if not is_raw:
            version = KAFKA_VERSIONS[key][-1]
            decoder(request_class(key), version)
            yield
            encoder(response_class(key), version)
            yield
            if api(key).is_encoded_in_turns:
                stepwise_encoder(response_class(key), version)
                yield

"""Request statistics: how many requests of each API and version were received, and how long their responses took.

    received --> counted
    answered at once --> timed; of Produce and Fetch one in 64, which counts as 64
    waits            --> timed when its response is sent, from the moment at which it began to wait

The time is that of the node: from the dispatch of the request until its response is passed to the socket.

Source: RequestChannel.Metrics and RequestMetrics of Kafka 4.3.1.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from ottla.protocol.api_keys import ApiKey
from ottla.runtime.histogram import Histogram

#: One of so many requests that are answered at once is timed, where a request takes tens of microseconds: the
#: code of the timing is not in the processor's cache by then, and takes 3 us. Of other APIs all are timed.
_SAMPLED: Final = 64


class RequestCounter:
    """The requests of one kind: their number, and the times of their responses."""

    __slots__ = ("_rounds_count", "_weight", "handler", "left", "times", "waits")

    def __init__(
        self, times: Histogram | None, waits: Histogram | None = None, *, is_sampled: bool = False
    ) -> None:
        #: The times of the responses that were given at once; None: they are measured elsewhere.
        self.times = times
        #: Those of the responses that had to wait, from the beginning of the wait.
        self.waits = Histogram() if waits is None else waits
        #: The handler that the dispatcher has looked up for this API.
        self.handler: Any = None
        self._weight = _SAMPLED if is_sampled or times is None else 1
        self._rounds_count = 0
        #: The requests up to the next one that is timed: at 0, `begin_round` is called. Counting down is
        #: cheaper than the comparison of a part of a number: 30 ns of a Produce's 13 us.
        self.left = self._weight

    def begin_round(self) -> None:
        """Begin the next round: all requests of the last one were received, and its last one is timed."""
        assert not self.left, self.left
        self.left = self._weight
        self._rounds_count += 1

    def observe(self, time_s: float) -> None:
        """Observe the time of a round's last request, which was answered at once, for all requests of the round."""
        if self.times is not None:
            self.times.observe(time_s * 1000, self._weight)

    @property
    def count(self) -> int:
        """The number of requests received."""
        return (self._rounds_count + 1) * self._weight - self.left


class RequestStats:
    """The requests of one dispatcher: of a broker's listeners, or of a controller's."""

    __slots__ = ("counters", "times", "waits")

    def __init__(self) -> None:
        #: The counters by API key and version.
        self.counters: dict[tuple[int, int], RequestCounter] = {}
        #: The times by API key, of all versions together: of responses at once, and of those that had to wait.
        self.times: dict[ApiKey, Histogram] = {}
        self.waits: dict[ApiKey, Histogram] = {}

    def serve(self, versions: Mapping[int, range], *, is_broker: bool) -> None:
        """Create the counters of these APIs.

        A broker's Fetch is timed where its sender is known (`ottla.broker.replicas.reading.fetch`).
        """
        for number, served in versions.items():
            key = ApiKey(number)
            times = waits = None
            if not is_broker or key is not ApiKey.FETCH:
                times = self.times.setdefault(key, Histogram())
                waits = self.waits.setdefault(key, Histogram())
            for version in served:
                is_sampled = key is ApiKey.PRODUCE
                self.counters[number, version] = RequestCounter(times, waits, is_sampled=is_sampled)

    def by_version(self) -> Counter[tuple[str, int]]:
        """The number of requests by Kafka's name of the API and by version, without those that were never received."""
        return Counter(
            {
                (kafka_name(ApiKey(key)), version): counter.count
                for (key, version), counter in self.counters.items()
                if counter.count
            }
        )


def kafka_name(key: ApiKey) -> str:
    """Kafka's name of an API.

    >>> kafka_name(ApiKey.LIST_OFFSETS)
    'ListOffsets'
    """
    return "".join(word.capitalize() for word in key.name.split("_"))

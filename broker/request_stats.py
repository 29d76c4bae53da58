"""Request statistics: how many requests of each API and version were received, and how long their responses took.

    received --> counted
    answered at once --> timed; of Produce one in eight, which counts as eight
    waits            --> timed when its response is sent, from the moment at which it began to wait

The time is that of the node: from the dispatch of the request until its response is passed to the socket.

Source: RequestChannel.Metrics and RequestMetrics of Kafka 4.3.1.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from protocol.api_keys import ApiKey
from runtime.histogram import Histogram

#: One of so many requests that are answered at once is timed. Of other APIs all are.
_SAMPLED: Final = {ApiKey.PRODUCE: 8}


class RequestCounter:
    """The requests of one API and version."""

    __slots__ = ("_rounds_count", "_weight", "handler", "left", "times")

    def __init__(self, key: ApiKey, times: Histogram) -> None:
        #: The times of all versions of this API.
        self.times = times
        #: What the dispatcher keeps for this API.
        self.handler: Any = None
        self._weight = _SAMPLED.get(key, 1)
        self._rounds_count = 0
        #: The dispatcher subtracts 1 for each request; at 0 it is timed, and `begin_round` is called. Cheaper than a count
        #: of which a part is compared: 30 ns of a Produce's 13 us.
        self.left = self._weight

    def begin_round(self) -> None:
        """`left` requests were received, the last of which is timed."""
        assert not self.left, self.left
        self.left = self._weight
        self._rounds_count += 1

    def observe(self, time_s: float) -> None:
        """The time of a request that was answered at once, for all of its round."""
        self.times.observe(time_s * 1000, self._weight)

    @property
    def count(self) -> int:
        """The number of requests received."""
        return (self._rounds_count + 1) * self._weight - self.left


class RequestStats:
    """The requests of one dispatcher: of a broker's listeners, or of a controller's."""

    __slots__ = ("counters", "times")

    def __init__(self) -> None:
        #: By key and version.
        self.counters: dict[tuple[int, int], RequestCounter] = {}
        #: By key.
        self.times: dict[ApiKey, Histogram] = {}

    def serve(self, versions: Mapping[int, range]) -> None:
        """Create the counters of these APIs."""
        for number, served in versions.items():
            key = ApiKey(number)
            times = self.times.setdefault(key, Histogram())
            for version in served:
                self.counters[number, version] = RequestCounter(key, times)

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

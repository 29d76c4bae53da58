"""Faults of the object store, as the nemesis draws them; each ends after a while."""

from collections.abc import Callable

from cluster_bucket import Weather
from cluster_world import World

#: How long the store fails: shorter and longer than the deadline of a call.
_DURATIONS_S = (0.3, 1.0, 3.0)


class StoreFaults:
    """Each public method is a kind of fault."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random

    def outage(self) -> None:
        """Make every call fail."""
        self._for_a_while("outage", lambda weather, on: setattr(weather, "is_out", on))

    def refused(self) -> None:
        """Calls fail, and may be repeated."""
        self._rate("refused")

    def forbidden(self) -> None:
        """Make calls fail for good."""
        self._rate("forbidden")

    def unacknowledged(self) -> None:
        """Calls take effect, and fail."""
        self._rate("unacknowledged")

    def truncated(self) -> None:
        """Make the bodies of responses end early."""
        self._rate("truncated")

    def hanging(self) -> None:
        """Calls end after their deadline only."""
        self._rate("hanging")

    def crashing(self) -> None:
        """Calls raise what is no error: cancellations, exits."""
        self._rate("crashing")

    def silent(self) -> None:
        """Some calls end long after every deadline."""
        self._rate("silent")

    def late(self) -> None:
        """Calls take effect later, also if their process dies meanwhile."""
        self._rate("late")

    def slow(self) -> None:
        """Make calls take a long time."""
        longest_s = self._random.choice((0.05, 0.3, 1.0))

        def change(weather: Weather, on: bool) -> None:
            weather.delay_s = longest_s if on else 0.0

        self._for_a_while(f"slow {longest_s}", change)

    def _rate(self, kind: str) -> None:
        probability = self._random.choice((0.1, 0.4, 1.0))

        def change(weather: Weather, on: bool) -> None:
            setattr(weather, kind, probability if on else 0.0)

        self._for_a_while(f"{kind} {probability}", change)

    def _for_a_while(self, what: str, change: Callable[[Weather, bool], None]) -> None:
        weather = self._world.bucket.weather
        self._world.note(f"store: {what}")
        change(weather, True)
        duration_s = self._random.choice(_DURATIONS_S) * self._random.uniform(0.5, 1.5)
        self._world.simulation.loop.call_later(duration_s, change, weather, False)

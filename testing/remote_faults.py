"""Faults of a broker in another process: created and armed there by calls, and asked for their counts."""

from collections.abc import Callable, Mapping
from typing import Any, Self, TypeAlias

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.error_code import ErrorCode
from ottla.testing.disk import Disk
from ottla.testing.faults import Fault, Faults
from ottla.testing.lasting_faults import LastingFault, LastingFaults
from ottla.testing.tier import Tier

#: The result of a call, whose structure the caller knows.
Result: TypeAlias = Any
#: Carries out a call of `ottla.testing.control_calls` in the other process: (name, **arguments) -> result.
Call: TypeAlias = Callable[..., Result]


class RemoteFault(Fault):
    """A fault of requests whose broker is another process."""

    def __init__(
        self, faults: "RemoteFaults", what: str, name: str, arguments: Mapping[str, object], *, strict: bool
    ) -> None:
        """`name` and `arguments` are the call that creates it there, without saying how often it strikes."""
        super().__init__(faults, what, _never, api=None, client="", strict=strict)
        self._remote = faults
        self._call = name, arguments
        self._number: int | None = None
        #: Its state when it was disarmed.
        self._final: Mapping[str, Result] | None = None

    def times(self, count: int) -> Self:
        """Strike the first `count` requests."""
        return self._arm_there(times=count)

    def on_call(self, number: int) -> Self:
        """Strike the request of this number, counted from 1, only."""
        return self._arm_there(on_call=number)

    def every_time(self) -> Self:
        """Strike every request that it concerns."""
        return self._arm_there(every_time=True)

    def with_probability(self, probability: float, *, seed: int = 0) -> Self:
        """Strike each request with this probability; the same ones in each run with the same seed."""
        return self._arm_there(with_probability=probability, seed=seed)

    @property
    def calls(self) -> int:
        """The requests that it concerned since it was armed."""
        return int(self._state().get("calls", 0))

    @property
    def struck(self) -> int:
        """The requests that have met it since it was armed."""
        return int(self._state().get("struck", 0))

    @property
    def is_armed(self) -> bool:
        """Whether a further request may meet it."""
        return bool(self._state().get("is_armed", False))

    def end_there(self) -> None:
        """Disarm it in the broker's process, and keep its counts."""
        if self._number is not None and self._final is None:
            self._final = _last_state(self._remote.call, self._number)

    def _arm_there(self, **how: object) -> Self:
        name, arguments = self._call
        answer = self._remote.call(name, strict=self.is_strict, **arguments, **how)
        self._number, self._final = answer["fault"], None
        self._is_due = lambda _: True
        return self

    def _state(self) -> Mapping[str, Result]:
        if self._final is not None or self._number is None:
            return self._final or {}
        found: Mapping[str, Result] = self._remote.call("fault", fault=self._number)
        return found


class RemoteFaults(Faults):
    """The faults between clients and a broker in another process."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def inject_error(
        self, api: str | ApiKey, error: str | ErrorCode, *, client: str = "", strict: bool = True
    ) -> Fault:
        """Answer requests of the API with the error in every row; see `Faults.inject_error`."""
        local = super().inject_error(api, error, client=client, strict=strict)
        return self._instead_of(local, "inject_error", api=_name(api), error=_name(error), client=client)

    def delay_on(self, api: str | ApiKey, seconds: float, *, client: str = "", strict: bool = True) -> Fault:
        """Send the responses of the API `seconds` later; see `Faults.delay_on`."""
        local = super().delay_on(api, seconds, client=client, strict=strict)
        return self._instead_of(local, "delay_on", api=_name(api), seconds=seconds, client=client)

    def disconnect_on(self, api: str | ApiKey, *, client: str = "", strict: bool = True) -> Fault:
        """Break the connection when the response would be sent; see `Faults.disconnect_on`."""
        local = super().disconnect_on(api, client=client, strict=strict)
        return self._instead_of(local, "disconnect_on", api=_name(api), client=client)

    def blackhole_client(self, substring: str, *, strict: bool = True) -> Fault:
        """Process and answer no request of clients whose client id contains `substring`."""
        local = super().blackhole_client(substring, strict=strict)
        return self._instead_of(local, "blackhole_client", substring=substring)

    def disarm(self, fault: Fault) -> None:
        """Let no further request meet the fault."""
        if isinstance(fault, RemoteFault):
            fault.end_there()

    def end_all(self) -> None:
        """Disarm all faults, whose counts are kept: the process is about to end."""
        for fault in list(self._created):
            self.disarm(fault)

    def _instead_of(self, local: Fault, name: str, **arguments: object) -> Fault:
        """Return the fault in the other process for one of this process, which has checked the arguments."""
        self.forget(local)
        fault = RemoteFault(self, local.what, name, arguments, strict=local.is_strict)
        self.remember(fault)
        return fault


class RemoteLastingFault(LastingFault):
    """A fault of a disk or an object store whose broker is another process."""

    def __init__(self, faults: "_RemoteLasting", what: str, number: int, *, strict: bool) -> None:
        super().__init__(faults, what, strict=strict)
        self._remote = faults
        self._number = number
        self._final: int | None = None

    @property
    def struck(self) -> int:
        """The operations that have met it."""
        if self._final is not None:
            return self._final
        return int(self._remote.call("fault", fault=self._number)["struck"])

    def heal(self) -> None:
        """End the fault; operations that it delays go on at once."""
        if self._final is None:
            self._final = int(_last_state(self._remote.call, self._number).get("struck", 0))
        super().heal()


class _RemoteLasting(LastingFaults):
    """The faults of a disk or an object store whose broker is another process."""

    call: Call
    #: The first part of its calls: "disk" or "tier".
    path: str

    def begin(self, name: str, *arguments: float, strict: bool) -> LastingFault:
        """Begin the fault of the method `name`, which was called with these arguments."""
        named = dict(zip(("seconds",), arguments, strict=False))
        answer = self.call(f"{self.path}/{name}", strict=strict, **named)
        fault = RemoteLastingFault(self, self.text_of(name, *arguments), answer["fault"], strict=strict)
        self.remember(fault)
        return fault


class RemoteDisk(_RemoteLasting, Disk):
    """The disk of a broker in another process."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call, self.path = call, "disk"


class RemoteTier(_RemoteLasting, Tier):
    """The object store of a broker in another process."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call, self.path = call, "tier"


def _last_state(call: Call, number: int) -> Mapping[str, Result]:
    """Disarm a fault, and return its state; empty if the process has ended, and its counts with it."""
    try:
        found: Mapping[str, Result] = call("disarm", fault=number)
    except RuntimeError:
        return {}
    return found


def _never(*_: object) -> None:
    raise AssertionError("requests meet the fault in the broker's process")


def _name(named: str | int | ApiKey | ErrorCode) -> str | int:
    return named.name if isinstance(named, ApiKey | ErrorCode) else named

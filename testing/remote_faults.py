"""Faults of a broker in another process: created and armed there by calls, and asked for their counts.

They outlive the process: before it is killed or paused their counts are kept, and the next process continues them.
"""

from collections.abc import Mapping
from typing import Any, Protocol, Self, TypeAlias

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.error_code import ErrorCode
from ottla.testing.disk import Disk
from ottla.testing.faults import Fault, Faults
from ottla.testing.lasting_faults import LastingFault, LastingFaults
from ottla.testing.tier import Tier

#: The result of a call, whose structure the caller knows.
Result: TypeAlias = Any


class Control(Protocol):
    """The calls of `ottla.testing.control_calls` in the other process."""

    @property
    def can_answer(self) -> bool:
        """Whether the process can be called: it runs, and is not paused."""

    def call(self, name: str, /, **arguments: object) -> Result:
        """Carry out a call, and return its result."""

    def call_or_later(self, name: str, /, **arguments: object) -> None:
        """Carry out a call, at once or when a paused process is resumed; a process that has ended does not."""


class RemoteFault(Fault):
    """A fault of requests whose broker is another process."""

    def __init__(
        self, faults: "RemoteFaults", what: str, name: str, arguments: Mapping[str, object], *, strict: bool
    ) -> None:
        """`name` and `arguments` are the call that creates it there, without saying how often it strikes."""
        super().__init__(faults, what, _never, api=None, client="", strict=strict)
        self._control = faults.control
        self._call = name, arguments
        self._how: Mapping[str, object] = {}
        self._number: int | None = None
        #: Its state when the process was asked last.
        self._seen: Mapping[str, Result] = {}
        self._is_disarmed = False

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
        if self._number is not None and not self._is_disarmed:
            self.keep_counts()
            self._control.call_or_later("disarm", fault=self._number)
            self._is_disarmed, self._seen = True, {**self._seen, "is_armed": False}

    def keep_counts(self) -> None:
        """Ask the process for its state, if it can answer."""
        if self._number is not None and not self._is_disarmed and self._control.can_answer:
            self._seen = self._control.call("fault", fault=self._number)

    def begin_again(self) -> None:
        """Continue it in a new process."""
        if self._number is not None and not self._is_disarmed:
            counts = {name: self._seen.get(name, 0) for name in ("calls", "struck")}
            self._number = self._begin(**self._how, **counts)

    def _arm_there(self, **how: object) -> Self:
        self._number, self._how = self._begin(**how), how
        self._is_disarmed, self._seen = False, {}
        self._is_due = lambda _: True
        return self

    def _begin(self, **how: object) -> int:
        name, arguments = self._call
        return int(self._control.call(name, strict=self.is_strict, **arguments, **how)["fault"])

    def _state(self) -> Mapping[str, Result]:
        self.keep_counts()
        return self._seen


class RemoteFaults(Faults):
    """The faults between clients and a broker in another process."""

    def __init__(self, control: Control) -> None:
        super().__init__()
        self.control = control

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

    def keep_counts(self) -> None:
        """Ask for the counts of all faults: the process will not answer from now on."""
        for fault in self._remote_faults():
            fault.keep_counts()

    def begin_again(self) -> None:
        """Continue all faults that are armed in a new process."""
        for fault in self._remote_faults():
            fault.begin_again()

    def _remote_faults(self) -> list[RemoteFault]:
        return [each for each in self._created if isinstance(each, RemoteFault)]

    def _instead_of(self, local: Fault, name: str, **arguments: object) -> Fault:
        """Return the fault in the other process for one of this process, which has checked the arguments."""
        self.forget(local)
        fault = RemoteFault(self, local.what, name, arguments, strict=local.is_strict)
        self.remember(fault)
        return fault


class RemoteLastingFault(LastingFault):
    """A fault of a disk or an object store whose broker is another process."""

    def __init__(self, faults: "_RemoteLasting", name: str, *arguments: float, strict: bool) -> None:
        """`name` and `arguments` are the method that begins it, and what it was called with."""
        super().__init__(faults, faults.text_of(name, *arguments), strict=strict)
        self._control = faults.control
        self._path = f"{faults.path}/{name}"
        self._named = dict(zip(("seconds",), arguments, strict=False))
        self._number = self._begin()

    @property
    def struck(self) -> int:
        """The operations that have met it."""
        self.keep_counts()
        return self._struck

    def heal(self) -> None:
        """End the fault; operations that it delays go on at once."""
        if self.is_active:
            self.keep_counts()
            self._control.call_or_later("disarm", fault=self._number)
        super().heal()

    def keep_counts(self) -> None:
        """Ask the process how many operations have met it, if it can answer."""
        if self.is_active and self._control.can_answer:
            self._struck = int(self._control.call("fault", fault=self._number)["struck"])

    def begin_again(self) -> None:
        """Continue it in a new process."""
        if self.is_active:
            self._number = self._begin(struck=self._struck)

    def _begin(self, **counts: int) -> int:
        return int(self._control.call(self._path, strict=self.is_strict, **self._named, **counts)["fault"])


class _RemoteLasting(LastingFaults):
    """The faults of a disk or an object store whose broker is another process."""

    control: Control
    #: The first part of its calls: "disk" or "tier".
    path: str

    def begin(self, name: str, *arguments: float, strict: bool) -> LastingFault:
        """Begin the fault of the method `name`, which was called with these arguments."""
        fault = RemoteLastingFault(self, name, *arguments, strict=strict)
        self.remember(fault)
        return fault

    def keep_counts(self) -> None:
        """Ask how many operations have met each fault: the process will not answer from now on."""
        for fault in self._remote_faults():
            fault.keep_counts()

    def begin_again(self) -> None:
        """Continue all faults that are not healed in a new process."""
        for fault in self._remote_faults():
            fault.begin_again()

    def _remote_faults(self) -> list[RemoteLastingFault]:
        return [each for each in self._begun if isinstance(each, RemoteLastingFault)]


class RemoteDisk(_RemoteLasting, Disk):
    """The disk of a broker in another process."""

    def __init__(self, control: Control) -> None:
        super().__init__()
        self.control, self.path = control, "disk"


class RemoteTier(_RemoteLasting, Tier):
    """The object store of a broker in another process.

    A store that was emptied is empty again when another process continues, with the copies that were made meanwhile.
    """

    def __init__(self, control: Control) -> None:
        super().__init__()
        self.control, self.path = control, "tier"


def _never(*_: object) -> None:
    raise AssertionError("requests meet the fault in the broker's process")


def _name(named: str | int | ApiKey | ErrorCode) -> str | int:
    return named.name if isinstance(named, ApiKey | ErrorCode) else named

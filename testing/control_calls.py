"""The methods of a broker as calls with JSON arguments and results, for tests in other processes and languages.

    {"topic": "orders", "values": ["one"]}  --produce-->  {"offset": 0}

Bytes that are UTF-8 are text, others {"base64": "..."}, in both directions. A fault is armed where it is created, and
is a number from then on: `fault` returns its counts, `disarm` ends it.
"""

import base64
import inspect
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Final, TypeAlias

from ottla.protocol.types import TopicPartition
from ottla.testing.broker import Broker
from ottla.testing.faults import Fault
from ottla.testing.lasting_faults import LastingFault
from ottla.testing.records import Record

#: A value of JSON, whose structure the call knows.
Json: TypeAlias = Any

#: Methods of `Broker` whose arguments and results are JSON as they are.
_PLAIN: Final = frozenset(
    {
        "advance", "create_topic", "delete_topic", "end_offsets", "expire_member", "groups", "heal", "isolate", "kill",
        "leader", "members", "pause", "reset", "restart", "resume", "start_offsets", "topics",
        "wait_for_commit", "wait_for_failure", "wait_until_stable",
    }
)  # fmt: skip
_FAULTS: Final = ("inject_error", "delay_on", "disconnect_on", "blackhole_client")
#: How a fault may be armed, by the name of the argument.
_ARMING: Final = ("once", "times", "on_call", "every_time", "with_probability")
_LASTING: Final = (
    "disk/fill", "disk/slow", "disk/fail", "tier/slow", "tier/fail", "tier/empty",
)  # fmt: skip


class InvalidCall(ValueError):
    """There is no such call, or its arguments are wrong; the message is a sentence."""


class ControlCalls:
    """The calls of one broker. Called in any thread."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._faults: dict[int, Fault | LastingFault] = {}
        self._numbers = count(1)
        self._by_name: dict[str, Callable[..., Json]] = {
            **{name: getattr(broker, name) for name in _PLAIN},
            **{name: self._new_fault_call(getattr(broker, name)) for name in _FAULTS},
            **{name: self._new_lasting_call(name) for name in _LASTING},
            "disk/heal": broker.disk.heal,
            "tier/heal": broker.tier.heal,
            "start": self._start,
            "status": self.status,
            "produce": self._produce,
            "records": lambda topic, partition=None: _rows(broker.records(topic, partition)),
            "values": lambda topic, partition=None: [
                _shown(each) for each in broker.values(topic, partition)
            ],
            "wait_for_records": lambda topic, count, timeout_s=10.0: _rows(
                broker.wait_for_records(topic, count, timeout_s=timeout_s)
            ),
            "committed": lambda group, topic=None: _offsets(broker.committed(group, topic)),
            "lag": lambda group, topic=None: _offsets(broker.lag(group, topic)),
            "segments": lambda topic, partition=0: [
                each._asdict() for each in broker.segments(topic, partition)
            ],
            "fault": self._fault,
            "disarm": self._disarm,
        }

    @property
    def names(self) -> list[str]:
        """The names of all calls."""
        return sorted(self._by_name)

    def call(self, name: str, arguments: Mapping[str, Json]) -> Json:
        """Carry out a call, and return its result. Raises InvalidCall, and what the method raises."""
        method = self._by_name.get(name)
        if method is None:
            raise InvalidCall(f"There is no call {name!r}: known are {', '.join(self.names)}.")
        _check(method, arguments, name)
        return method(**arguments)

    def status(self) -> Json:
        """Return where the broker is, and whether it runs."""
        broker = self._broker
        return {
            "bootstrap_servers": broker.bootstrap_servers,
            "is_running": broker.is_running,
            "is_reachable": broker.is_reachable,
            "failure": broker.failure,
            "data_dir": str(broker.data_dir),
        }

    def _start(self) -> Json:
        self._broker.start()
        return self.status()

    def _produce(
        self,
        topic: str,
        values: list[Json],
        key: Json = None,
        headers: Mapping[str, Json] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Json:
        if not isinstance(values, list):
            raise InvalidCall(f"values is {values!r}: it must be a list.")
        offset = self._broker.produce(
            topic,
            *(_stored(each) for each in values),
            key=_stored(key),
            headers={name: _stored(value) for name, value in (headers or {}).items()},
            partition=partition,
            timestamp_ms=timestamp_ms,
        )
        return {"offset": offset}

    # -- faults -----------------------------------------------------------------------------------------

    def _new_fault_call(self, create: Callable[..., Fault]) -> Callable[..., Json]:
        def call(seed: int = 0, calls: int = 0, struck: int = 0, **arguments: Json) -> Json:
            arming = {name: arguments.pop(name) for name in _ARMING if name in arguments}
            if len(arming) != 1:
                raise InvalidCall(f"Say how often the fault strikes, by one of {', '.join(_ARMING)}.")
            _check(create, arguments, create.__name__)
            fault = create(**arguments)
            [(how, argument)] = arming.items()
            try:
                match how:
                    case "once" | "every_time":
                        getattr(fault, how)()
                    case "with_probability":
                        fault.with_probability(argument, seed=seed)
                    case _:
                        getattr(fault, how)(argument)
                fault.continue_from(calls=calls, struck=struck)
            except (TypeError, ValueError):
                self._broker.faults.forget(fault)  # it was never armed, which a reset would complain of
                raise
            return self._numbered(fault)

        return call

    def _new_lasting_call(self, name: str) -> Callable[..., Json]:
        owner, _, method = name.partition("/")
        begin: Callable[..., LastingFault] = getattr(getattr(self._broker, owner), method)

        def call(*arguments: float, strict: bool, struck: int) -> Json:
            fault = begin(*arguments, strict=strict)
            fault.continue_from(struck=struck)
            return self._numbered(fault)

        if method == "slow":
            return lambda seconds, strict=True, struck=0: call(seconds, strict=strict, struck=struck)
        return lambda strict=True, struck=0: call(strict=strict, struck=struck)

    def _numbered(self, fault: Fault | LastingFault) -> Json:
        number = next(self._numbers)
        self._faults[number] = fault
        return {"fault": number}

    def _fault(self, fault: int) -> Json:
        found = self._faults.get(fault)
        if found is None:
            raise InvalidCall(f"There is no fault {fault}.")
        if isinstance(found, Fault):
            return {"struck": found.struck, "calls": found.calls, "is_armed": found.is_armed}
        return {"struck": found.struck, "calls": found.struck, "is_armed": found.is_active}

    def _disarm(self, fault: int, verify: bool = False) -> Json:
        state, found = self._fault(fault), self._faults[fault]
        found.end()
        if verify:
            found.verify()
        return {**state, "is_armed": False}


def _check(method: Callable[..., object], arguments: Mapping[str, Json], name: str) -> None:
    """Raise InvalidCall if these are no arguments of the method."""
    try:
        inspect.signature(method).bind(**arguments)
    except TypeError as error:
        known = ", ".join(str(each) for each in inspect.signature(method).parameters)
        raise InvalidCall(f"{name}: {error}; its arguments are {known or 'none'}.") from None


def _stored(value: Json) -> str | bytes | None:
    """Return what a value of JSON stands for."""
    match value:
        case {"base64": str(text)}:
            return base64.b64decode(text)
        case str() | None:
            return value
        case _:
            raise InvalidCall(f'{value!r} is no value of a record: it is text, {{"base64": "..."}} or null.')


def _shown(data: bytes | None) -> Json:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _rows(records: list[Record]) -> Json:
    return [
        {
            **each._asdict(),
            "key": _shown(each.key),
            "value": _shown(each.value),
            "headers": [[name, _shown(value)] for name, value in each.headers],
        }
        for each in records
    ]


def _offsets(found: Mapping[TopicPartition, int]) -> Json:
    return [
        {"topic": each.topic, "partition": each.partition, "offset": offset} for each, offset in found.items()
    ]

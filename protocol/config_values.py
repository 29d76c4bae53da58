"""What a configuration may be set to: small objects that judge a value and say in words what they allow.

Every validator's `str()` completes the sentence "it must be ...", which is how a refused value is
explained to an operator, at start-up and in an answer to AlterConfigs.
Source: org.apache.kafka.common.config.ConfigDef's validators of Kafka 4.3.1.
"""

import re
from dataclasses import dataclass
from typing import Protocol

__all__ = [
    "AnyCaseOneOf", "Between", "Check", "ConfigValue", "Distinct", "DurationOrOffset", "GzipLevel", "HostsAndPorts",
    "NonEmpty", "NotNull", "OneOf", "Password", "ThrottledReplicas", "Voters",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Password:
    """A secret: compares by its value, prints as `[hidden]`."""

    value: str

    def __str__(self) -> str:
        return "[hidden]"

    def __repr__(self) -> str:
        return "[hidden]"


#: A parsed value. Lists are tuples, so that values can be shared and compared.
ConfigValue = bool | int | float | str | tuple[str, ...] | Password | None


class Check(Protocol):
    """Judges parsed values; `str()` tells what passes."""

    def allows(self, value: ConfigValue) -> bool:
        """Whether the value may be used."""
        ...


@dataclass(frozen=True, slots=True)
class Between:
    """A number in a closed range; None leaves an end open."""

    low: float | None
    high: float | None = None

    def allows(self, value: ConfigValue) -> bool:
        """True for numbers of the range; NaN is in no range."""
        if not isinstance(value, int | float):
            return False
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        if self.high is None:
            return f"at least {self.low}"
        return f"at most {self.high}" if self.low is None else f"between {self.low} and {self.high}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words, spelled exactly."""

    words: tuple[str, ...]

    def allows(self, value: ConfigValue) -> bool:
        """Exact match."""
        return value in self.words

    def __str__(self) -> str:
        return "one of " + ", ".join(self.words)


@dataclass(frozen=True, slots=True)
class AnyCaseOneOf:
    """One of a few words, in capitals or not."""

    words: tuple[str, ...]

    def allows(self, value: ConfigValue) -> bool:
        """Match after upper-casing both."""
        return isinstance(value, str) and value.upper() in {word.upper() for word in self.words}

    def __str__(self) -> str:
        return f"one of {', '.join(self.words)} (in any case)"


@dataclass(frozen=True, slots=True)
class Distinct:
    """A list without empty entries, drawn from `words` if there are any.

    An entry that is repeated does no harm: `ConfigKey.parse` keeps the first, as Kafka does.
    """

    words: tuple[str, ...] = ()
    may_be_empty: bool = True
    may_be_null: bool = False

    def allows(self, value: ConfigValue) -> bool:
        """Checks the size and each entry."""
        if value is None:
            return self.may_be_null
        if not isinstance(value, tuple):
            return False
        if not value:
            return self.may_be_empty
        return all(entry and (not self.words or entry in self.words) for entry in value)

    def __str__(self) -> str:
        entries = f"with entries out of {', '.join(self.words)}" if self.words else "without empty entries"
        return f"a{'' if self.may_be_empty else ' non-empty'} list {entries}"


@dataclass(frozen=True, slots=True)
class NonEmpty:
    """Any text but the empty one; nothing at all is allowed too."""

    def allows(self, value: ConfigValue) -> bool:
        """Only the empty string is refused."""
        return value != ""

    def __str__(self) -> str:
        return "a non-empty string"


@dataclass(frozen=True, slots=True)
class NotNull:
    """Any text, the empty one included."""

    def allows(self, value: ConfigValue) -> bool:
        """Only the missing value is refused."""
        return value is not None

    def __str__(self) -> str:
        return "a string"


@dataclass(frozen=True, slots=True)
class GzipLevel:
    """zlib's levels, with -1 for zlib's own choice."""

    def allows(self, value: ConfigValue) -> bool:
        """-1 and 1 to 9; 0 (stored) is not offered by Kafka."""
        return isinstance(value, int) and (value == -1 or 1 <= value <= 9)

    def __str__(self) -> str:
        return "between 1 and 9, or -1"


_REPLICA = re.compile(r"([0-9]+:[0-9]+)?")


@dataclass(frozen=True, slots=True)
class ThrottledReplicas:
    """Replicas whose replication is throttled: all of them, or partition:broker pairs (KIP-73)."""

    def allows(self, value: ConfigValue) -> bool:
        """`*`, or any number of pairs (empty entries are overlooked, as Kafka does)."""
        if not isinstance(value, tuple):
            return False
        return all(_REPLICA.fullmatch(entry) for entry in value) or "".join(value) == "*"

    def __str__(self) -> str:
        return "* or a list of [partitionId]:[brokerId] pairs"


_HOST_AND_PORT = re.compile(r"(?:\[[0-9a-fA-F:.%]+\]|[^\s:@\[\]]+):[0-9]{1,5}")
_VOTER = re.compile(rf"[0-9]+@{_HOST_AND_PORT.pattern}")


@dataclass(frozen=True, slots=True)
class Voters:
    """The static voters of the controller quorum."""

    def allows(self, value: ConfigValue) -> bool:
        """Checks the form of each entry; whether hosts exist is learnt by connecting."""
        return isinstance(value, tuple) and all(_VOTER.fullmatch(entry) for entry in value)

    def __str__(self) -> str:
        return "a list of {id}@{host}:{port} entries"


@dataclass(frozen=True, slots=True)
class HostsAndPorts:
    """Addresses to contact first."""

    def allows(self, value: ConfigValue) -> bool:
        """Checks the form of each entry."""
        return isinstance(value, tuple) and all(_HOST_AND_PORT.fullmatch(entry) for entry in value)

    def __str__(self) -> str:
        return "a list of {host}:{port} entries"


_DURATION = re.compile(
    r"[+-]?P(?=[0-9T])(?:[0-9]+D)?(?:T(?=[0-9])(?:[0-9]+H)?(?:[0-9]+M)?(?:[0-9]+(?:\.[0-9]{1,9})?S)?)?"
)


@dataclass(frozen=True, slots=True)
class DurationOrOffset:
    """Where a share group starts to read: an end of the log, or so long ago (ISO 8601)."""

    def allows(self, value: ConfigValue) -> bool:
        """`by_duration:` is followed by days, hours, minutes and seconds; a negative one is refused."""
        if not isinstance(value, str):
            return False
        kind, _, duration = value.partition(":")
        if kind == "by_duration":
            return _DURATION.fullmatch(duration) is not None and not duration.startswith("-")
        return value in ("earliest", "latest")

    def __str__(self) -> str:
        return "earliest, latest or by_duration:PnDTnHnMn.nS"

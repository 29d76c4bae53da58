"""ConfigDef.Validator: checks of configuration values, each with a description of the values that it allows.

Every check's `str()` completes the sentence "it must be ...", which explains a refused value to the
operator, at start and in the response to AlterConfigs. They are plain classes, not dataclasses:
creating a dozen dataclasses takes 8 ms of every start.
Source: org.apache.kafka.common.config.ConfigDef's validators of Kafka 4.3.1.
"""

import re

__all__ = [
    "AnyCaseOneOf", "Between", "Check", "ConfigValue", "Distinct", "DurationOrOffset", "GzipLevel", "HostsAndPorts",
    "HttpAddresses", "NonEmpty", "NotNull", "OneOf", "Password", "ThrottledReplicas", "Voters",
]  # fmt: skip

_MAX_PORT = 65_535


class Password:
    """A secret: compared by its value, printed as `[hidden]`."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Password) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        return "[hidden]"

    __repr__ = __str__


#: A parsed value. Lists are tuples, so that values can be shared and compared.
ConfigValue = bool | int | float | str | tuple[str, ...] | Password | None


class Check:
    """Checks parsed values; `str()` describes the allowed ones."""

    __slots__ = ()

    def allows(self, value: ConfigValue) -> bool:
        """Whether the value may be used."""
        raise NotImplementedError


class Between(Check):
    """A number in a closed range; None leaves an end open."""

    __slots__ = ("high", "low")

    def __init__(self, low: float | None, high: float | None = None) -> None:
        self.low = low
        self.high = high

    def allows(self, value: ConfigValue) -> bool:
        """True for numbers of the range; NaN is in no range."""
        if not isinstance(value, int | float):
            return False
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        if self.high is None:
            return f"at least {self.low}"
        return f"at most {self.high}" if self.low is None else f"between {self.low} and {self.high}"


class OneOf(Check):
    """One of a few words, spelled exactly."""

    __slots__ = ("words",)

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = words

    def allows(self, value: ConfigValue) -> bool:
        """Whether the value is one of the words, spelled exactly."""
        return value in self.words

    def __str__(self) -> str:
        return "one of " + ", ".join(self.words)


class AnyCaseOneOf(OneOf):
    """One of a few words, case-insensitive; the words are given in upper case."""

    __slots__ = ()

    def allows(self, value: ConfigValue) -> bool:
        """Whether the value is one of the words, in any case."""
        return isinstance(value, str) and value.upper() in self.words

    def __str__(self) -> str:
        return f"{super().__str__()} (in any case)"


class Distinct(Check):
    """A list without empty entries; if there are `words`, all entries are among them.

    Repeated entries are allowed: `ConfigKey.parse` keeps the first, as Kafka does.
    """

    __slots__ = ("may_be_empty", "may_be_null", "words")

    def __init__(
        self, words: tuple[str, ...] = (), *, may_be_empty: bool = True, may_be_null: bool = False
    ) -> None:
        self.words = words
        self.may_be_empty = may_be_empty
        self.may_be_null = may_be_null

    def allows(self, value: ConfigValue) -> bool:
        """Whether the list has an allowed size and only allowed entries."""
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


class NonEmpty(Check):
    """Any text but the empty string; null is allowed, too."""

    __slots__ = ()

    def allows(self, value: ConfigValue) -> bool:
        """Whether the value is anything but the empty string."""
        return value != ""

    def __str__(self) -> str:
        return "a non-empty string"


class NotNull(Check):
    """Any value but null; the empty string is allowed."""

    __slots__ = ()

    def allows(self, value: ConfigValue) -> bool:
        """Whether the value is not null."""
        return value is not None

    def __str__(self) -> str:
        return "a string"


class GzipLevel(Check):
    """A compression level of zlib; -1 is zlib's default."""

    __slots__ = ()

    def allows(self, value: ConfigValue) -> bool:
        """Whether the level is -1 or 1 to 9; 0 (stored) is not offered by Kafka."""
        return isinstance(value, int) and (value == -1 or 1 <= value <= 9)

    def __str__(self) -> str:
        return "between 1 and 9, or -1"


class _EveryEntry(Check):
    """A list whose entries all match a pattern."""

    __slots__ = ()
    pattern = ""  # compiled on first use, not at every start

    def allows(self, value: ConfigValue) -> bool:
        """Whether each entry of the list matches the pattern."""
        return isinstance(value, tuple) and all(re.fullmatch(self.pattern, entry) for entry in value)


class ThrottledReplicas(_EveryEntry):
    """Replicas whose replication is throttled: all of them, or partition:broker pairs (KIP-73)."""

    __slots__ = ()
    pattern = r"([0-9]+:[0-9]+)?"  # empty entries are ignored, as by Kafka

    def allows(self, value: ConfigValue) -> bool:
        """Whether the list is `*` alone, or any number of partition:broker pairs."""
        return value == ("*",) or super().allows(value)

    def __str__(self) -> str:
        return "* or a list of [partitionId]:[brokerId] pairs"


class HostsAndPorts(_EveryEntry):
    """Bootstrap addresses; only their form is checked, not whether they exist."""

    __slots__ = ()
    pattern = r"(?:\[[0-9a-fA-F:.%]+\]|[^\s:@\[\]]+):[0-9]{1,5}"

    def __str__(self) -> str:
        return "a list of {host}:{port} entries"


class HttpAddresses(_EveryEntry):
    """Addresses of an HTTP server; an empty host is this machine's loopback address."""

    __slots__ = ()
    pattern = r"http://(?:\[[0-9a-fA-F:.%]+\]|[^\s:@/\[\]]*):[0-9]{1,5}/?"

    def allows(self, value: ConfigValue) -> bool:
        """Whether each entry is an HTTP address with a valid port."""
        if not super().allows(value):
            return False
        assert isinstance(value, tuple)
        return all(int(entry.rstrip("/").rpartition(":")[2]) <= _MAX_PORT for entry in value)

    def __str__(self) -> str:
        return f"a list of http://{{host}}:{{port}} entries with ports up to {_MAX_PORT}"


class Voters(_EveryEntry):
    """The static voters of the controller quorum."""

    __slots__ = ()
    pattern = rf"[0-9]+@{HostsAndPorts.pattern}"

    def __str__(self) -> str:
        return "a list of {id}@{host}:{port} entries"


class DurationOrOffset(Check):
    """The start position of a share group: the start or end of the log, or a duration before now (ISO 8601)."""

    __slots__ = ()
    pattern = (
        r"\+?P(?=[0-9T])(?:[0-9]+D)?(?:T(?=[0-9])(?:[0-9]+H)?(?:[0-9]+M)?(?:[0-9]+(?:\.[0-9]{1,9})?S)?)?"
    )

    def allows(self, value: ConfigValue) -> bool:
        """Whether the value is a known position; a duration has days, hours, minutes and seconds, and no sign."""
        if not isinstance(value, str):
            return False
        kind, colon, duration = value.partition(":")
        if kind == "by_duration":
            return re.fullmatch(self.pattern, duration) is not None
        return not colon and kind in ("earliest", "latest")

    def __str__(self) -> str:
        return "earliest, latest or by_duration:PnDTnHnMn.nS"

"""ConfigDef: configuration keys as data, with type, default, bounds and documentation, and their parsing.

The same definitions serve the broker's own properties, topics, groups and client metrics. Input is
text (from a properties file or a Kafka request), output typed values; `text_of` is the inverse, as
Java prints values, because DescribeConfigs is compared with Kafka's responses.
Source: org.apache.kafka.common.config.ConfigDef of Kafka 4.3.1; types' codes from KIP-569.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, IntEnum
from typing import NamedTuple

from ottla.config.config_values import Check, ConfigValue, Distinct, Password
from ottla.protocol.errors import InvalidConfig

__all__ = [
    "AlterOperation", "ConfigDef", "ConfigKey", "ConfigOperation", "ConfigSource", "ConfigType", "ConfigValue",
    "Importance", "InvalidConfigValue", "NoMeaning", "NotServed", "Password", "UpdateMode", "merge_operations",
    "parse_value", "text_of", "unread",
]  # fmt: skip


class ConfigType(IntEnum):
    """Types of values; the numbers are those of config_type in DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """The source of a configuration's value; the numbers are those of config_source in DescribeConfigs."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class Importance(Enum):
    """The importance of a configuration key: the likelihood that an operator changes it."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class UpdateMode(Enum):
    """Whether a broker's key can be altered while it runs, and at which scope (KIP-226)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class InvalidConfigValue(InvalidConfig):
    """A value that a key does not allow; the message names the key, the value and what is allowed."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        shown = f"'{value}'" if isinstance(value, str) else value
        super().__init__(f"Invalid value {shown} for configuration {name}: it must be {allowed}.")
        self.name = name
        self.value = value
        self.allowed = allowed


class NoMeaning(NamedTuple):
    """The key is accepted and never read: this broker does not need the setting, for this `reason`."""

    reason: str


class NotServed(NamedTuple):
    """The key belongs to a feature that is not served yet: it is accepted and never read, with a warning.

    The value `harmless` gives no warning: this broker behaves as that value says. With `is_refused`, any value
    but that one and the default is refused at start: ignoring it would change authorization, or lose data.
    """

    feature: str
    harmless: "ConfigValue" = None
    is_refused: bool = False


class ConfigKey(NamedTuple):
    """One configuration. `default` is a parsed value; a required key has None and `is_required`.

    `unread` says why no code reads the key; None if some code does. tests/unit/config/test_readers.py checks it
    against the code.
    """

    name: str
    type: ConfigType
    default: ConfigValue
    documentation: str = ""
    importance: Importance = Importance.MEDIUM
    check: Check | None = None
    is_internal: bool = False  # accepted, but described only where it is set
    is_required: bool = False
    update_mode: UpdateMode = UpdateMode.READ_ONLY  # of broker keys only
    unread: NoMeaning | NotServed | None = None

    @property
    def is_sensitive(self) -> bool:
        """Whether the configuration's value is secret and never shown."""
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str) -> ConfigValue:
        """The value that `text` spells. Raises InvalidConfigValue."""
        value = parse_value(self.name, self.type, text)
        if isinstance(value, tuple) and isinstance(self.check, Distinct):
            value = tuple(dict.fromkeys(value))
        self.validate(value)
        return value

    def validate(self, value: ConfigValue) -> None:
        """Raises InvalidConfigValue if this key's check refuses a parsed value."""
        if self.check is not None and not self.check.allows(value):
            raise InvalidConfigValue(self.name, text_of(self.type, value), str(self.check))


def unread(why: NoMeaning | NotServed, keys: Iterable[ConfigKey]) -> tuple[ConfigKey, ...]:
    """The definitions, marked as unread by any code; `why` applies to those without a reason of their own."""
    return tuple(key if key.unread else key._replace(unread=why) for key in keys)


class ConfigDef(Mapping[str, ConfigKey]):
    """The keys of one kind of resource, by name, in the order of their definition."""

    def __init__(self, keys: Iterable[ConfigKey]) -> None:
        self._keys: dict[str, ConfigKey] = {}
        for key in keys:
            assert key.name not in self._keys, f"{key.name} is defined twice"
            self._keys[key.name] = key

    def __getitem__(self, name: str) -> ConfigKey:
        return self._keys[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def parse(self, name: str, text: str) -> ConfigValue:
        """The value that `text` spells. Raises InvalidConfigValue, and InvalidConfig for an unknown name."""
        key = self._keys.get(name)
        if key is None:
            raise InvalidConfig(f"Unknown configuration {name}.")
        return key.parse(text)


# Patterns are strings: `re` compiles them on first use, and a start uses none of them.
_DOUBLE = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?"
_COMMA = r"\s*,\s*"
_MAX_DIGITS = 20  # of a 64-bit integer with its sign; longer text is not converted
_INTEGER_BITS = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}


def _parse_boolean(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


def _parse_integer(text: str, bits: int) -> int | None:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()):
        return None
    digits = digits.lstrip("0")  # before the conversion: Python refuses to convert thousands of digits
    if len(digits) >= _MAX_DIGITS:
        return None
    number = int(digits or "0") * (-1 if text[:1] == "-" else 1)
    return number if -(1 << bits - 1) <= number < 1 << bits - 1 else None


def parse_value(name: str, type: ConfigType, text: str) -> ConfigValue:
    """The value of text of this type, without the key's own check. Raises InvalidConfigValue.

    Surrounding blanks are ignored. A class is kept as its name: no configuration makes the broker load a class.

    >>> parse_value("log.dirs", ConfigType.LIST, "/a, /b")
    ('/a', '/b')
    """
    text = text.strip()
    match type:
        case ConfigType.BOOLEAN:
            if (truth := _parse_boolean(text)) is None:
                raise InvalidConfigValue(name, text, "true or false")
            return truth
        case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
            bits = _INTEGER_BITS[type]
            if (number := _parse_integer(text, bits)) is None:
                raise InvalidConfigValue(name, text, f"a {bits}-bit integer")
            return number
        case ConfigType.DOUBLE:
            if not re.fullmatch(_DOUBLE, text):
                raise InvalidConfigValue(name, text, "a number")
            return float(text)
        case ConfigType.LIST:
            return tuple(re.split(_COMMA, text)) if text else ()
        case ConfigType.PASSWORD:
            return Password(text)
        case _:
            return text


def _java_double(number: float) -> str:
    """Return the text of Java's Double.toString: plain between 10^-3 and 10^7, else with an exponent."""
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    digits, exponent = f"{number:.16e}".split("e")
    for precision in range(17):
        if float(f"{number:.{precision}e}") == number:
            digits, exponent = f"{number:.{max(precision, 1)}e}".split("e")
            break
    return f"{digits}E{int(exponent)}"


def text_of(type: ConfigType, value: ConfigValue) -> str | None:
    """A parsed value as Kafka formats it; None stays None. A password is `[hidden]`."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(value)
        case float() | int() if type is ConfigType.DOUBLE:
            return _java_double(float(value))
        case _:
            return str(value)


class AlterOperation(IntEnum):
    """An operation of IncrementalAlterConfigs on one key (KIP-339); the numbers are the wire's."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigOperation(NamedTuple):
    """One operation of an IncrementalAlterConfigs request; the value of a DELETE is ignored."""

    name: str
    operation: AlterOperation
    value: str | None


def merge_operations(
    current: Mapping[str, str],
    operations: Iterable[ConfigOperation],
    definition: Mapping[str, ConfigKey],
) -> dict[str, str | None]:
    """The result for each named key: its new text, or None if it is removed.

    APPEND and SUBTRACT start from the current text or else from the definition's default (as in Kafka,
    not from the value in the broker's own properties), and need a key of type LIST.
    Raises InvalidConfig. Values are not validated here: the resource's validator checks them all together.
    Source: ConfigurationControlManager.incrementalAlterConfigResource.
    """
    changed: dict[str, str | None] = {}
    for name, operation, value in operations:
        if operation is AlterOperation.DELETE:
            changed[name] = None
            continue
        if value is None:
            raise InvalidConfig(f"A null value cannot be given to configuration {name}.")
        if operation is AlterOperation.SET:
            changed[name] = value
            continue
        key = definition.get(name)
        if key is None or key.type is not ConfigType.LIST:
            raise InvalidConfig(f"Can't {operation.name} to key {name} because its type is not LIST.")
        text = current.get(name, text_of(key.type, key.default)) or ""
        entries = [part for part in text.split(",") if part]
        for part in value.split(","):
            if operation is AlterOperation.APPEND and part not in entries:
                entries.append(part)
            elif operation is AlterOperation.SUBTRACT and part in entries:
                entries.remove(part)
        changed[name] = ",".join(entries)
    return changed

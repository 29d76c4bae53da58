"""The options of the source: Spark's Kafka connector's where it has them, and a broker's settings for the store.

Spark writes the names of options in small letters.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from ottla.config.tier_text import tier_properties
from ottla.protocol.errors import InvalidConfig
from ottla.protocol.kafka_uuid import from_text
from ottla.remote.plugins import STORAGE_CLASS, STORAGE_PATH, STORAGE_PREFIX
from ottla.remote.stores.local_directory import DIR

_BOOTSTRAP: Final = "kafka.bootstrap.servers"
_ISOLATION: Final = "kafka.isolation.level"
_STORE: Final = "rsm.config."
_CLIENT: Final = "kafka."
_KNOWN: Final = (
    "subscribe", "path", _BOOTSTRAP, _ISOLATION, "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "includeHeaders", "includeLeaderEpoch", "maxPartitionBytes", "pushFilters", "failOnDataLoss",
    "topicId", STORAGE_CLASS, STORAGE_PATH, STORAGE_PREFIX,
)  # fmt: skip
_MAX_PARTITION_BYTES: Final = 32 * 1024 * 1024
#: The values of offsets in JSON that mean an end of the history.
_EARLIEST: Final = -2
_LATEST: Final = -1


class InvalidOption(InvalidConfig):
    """An option is invalid; the message is one sentence with the option, its value and the remedy."""


class Time(NamedTuple):
    """A bound by time: the first offset whose record is not older."""

    timestamp_ms: int


#: The start or end of a read: an offset or a time; None: the start or end of the history.
Bound = int | Time | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """One end of the range to read, of all partitions or of each."""

    of_all: Bound = None
    of_each: Mapping[tuple[str, int], Bound] | None = None

    def of(self, topic: str, partition: int) -> Bound:
        """Return the bound of this partition."""
        return self.of_all if self.of_each is None else self.of_each.get((topic, partition))


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOptions:
    """The parsed options of a read: topics, bounds, columns and the store."""

    topics: tuple[str, ...]
    #: A broker's properties, as `ottla.remote.plugins.storage_manager_of` takes them.
    store: Mapping[str, str]
    #: Settings of librdkafka; None: the metadata is made from the store.
    client: Mapping[str, str] | None
    starting: Bounds
    ending: Bounds
    is_read_committed: bool
    has_headers: bool
    has_leader_epoch: bool
    max_partition_bytes: int
    #: Whether the filters of the query leave out parts of copies.
    pushes_filters: bool
    fails_on_data_loss: bool
    topic_id: UUID | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "TierOptions":
        """Parse the options of a Spark read. Raises InvalidOption."""
        given = {name.lower(): text.strip() for name, text in options.items()}
        _check_names(given)
        topics = tuple(each.strip() for each in given.get("subscribe", "").split(",") if each.strip())
        if not topics:
            raise InvalidOption(
                "The option subscribe is missing: name the topics, as .option('subscribe', 'orders,payments')."
            )
        topic_id = given.get("topicid")
        if topic_id is not None and len(topics) > 1:
            raise InvalidOption(
                f"The option topicId is one topic's, but subscribe names {len(topics)} topics."
            )
        return cls(
            topics=topics,
            store=_store(given),
            client=_client(given),
            starting=_bounds(given, "starting", default="earliest"),
            ending=_bounds(given, "ending", default="latest"),
            is_read_committed=_one_of(given, _ISOLATION, ("read_committed", "read_uncommitted"))
            == "read_committed",
            has_headers=_flag(given, "includeHeaders", default="false"),
            has_leader_epoch=_flag(given, "includeLeaderEpoch", default="false"),
            max_partition_bytes=_positive(given, "maxPartitionBytes", _MAX_PARTITION_BYTES),
            pushes_filters=_flag(given, "pushFilters", default="false"),
            fails_on_data_loss=_flag(given, "failOnDataLoss", default="true"),
            topic_id=None if topic_id is None else _id(topic_id),
        )


def _check_names(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in _KNOWN}
    prefix = given.get(STORAGE_PREFIX, _STORE)
    for name in given:
        if name not in known and not name.startswith((prefix, _CLIENT)):
            near = [known[each] for each in get_close_matches(name, known, n=2)]
            hint = (
                f"did you mean {' or '.join(near)}?"
                if near
                else f"known are {', '.join(_KNOWN)}, {_STORE}* and kafka.*."
            )
            raise InvalidOption(f"The option {name} is unknown: {hint}")


def _store(given: Mapping[str, str]) -> dict[str, str]:
    prefix = given.get(STORAGE_PREFIX, _STORE)
    by_properties = {
        name: text
        for name, text in given.items()
        if name in (STORAGE_CLASS, STORAGE_PATH, STORAGE_PREFIX) or name.startswith(prefix)
    }
    path = given.get("path")
    if path is not None:
        by_properties = tier_properties(path) | by_properties
    if STORAGE_CLASS not in by_properties:
        raise InvalidOption(
            "No store is named: .load('s3://BUCKET/PREFIX?endpoint=...'), .load('/a/directory'), "
            f"or {STORAGE_CLASS} and {_STORE}*."
        )
    directory = by_properties.get(f"{prefix}{DIR}")
    if directory is not None and not Path(directory).is_dir():
        # Its storage manager would create it.
        raise InvalidOption(
            f"The store {directory} is no directory on this machine: brokers, driver and executors share it."
        )
    return by_properties


def _client(given: Mapping[str, str]) -> dict[str, str] | None:
    settings = {
        name.removeprefix(_CLIENT): text
        for name, text in given.items()
        if name.startswith(_CLIENT) and name != _ISOLATION
    }
    if settings and _BOOTSTRAP not in given:
        raise InvalidOption(
            f"{_BOOTSTRAP} is missing, but {_CLIENT}{min(settings)} is set: set both, or neither of them."
        )
    return settings or None


def _bounds(given: Mapping[str, str], side: str, *, default: str) -> Bounds:
    """Parse the start or the end of a read, by offsets or by a time. Raises InvalidOption."""
    offsets, time = given.get(f"{side}offsets"), given.get(f"{side}timestamp")
    if offsets is not None and time is not None:
        raise InvalidOption(f"Both {side}Offsets and {side}Timestamp are set: set one of them.")
    if time is not None:
        return Bounds(of_all=Time(_integer(f"{side}Timestamp", time)))
    if offsets is None or offsets.lower() == default:
        return Bounds()
    return Bounds(of_each=_by_partition(f"{side}Offsets", offsets, default=default))


def _by_partition(name: str, text: str, *, default: str) -> dict[tuple[str, int], Bound]:
    expected = f'it must be {default}, or offsets as {{"orders": {{"0": 23, "1": 42}}}}'
    try:
        found = {
            (topic, int(partition)): offset
            for topic, offsets in json.loads(text).items()
            for partition, offset in offsets.items()
        }
    except (ValueError, AttributeError):
        raise InvalidOption(f"{name} is {text!r}: {expected}.") from None
    unbound = _EARLIEST if default == "earliest" else _LATEST
    for (topic, partition), offset in found.items():
        if type(offset) is not int or (offset < 0 and offset != unbound):
            raise InvalidOption(
                f"{name} has {offset!r} of {topic}-{partition}: it must be an offset, or {unbound} ({default})."
            )
    return {each: None if offset == unbound else offset for each, offset in found.items()}


def _id(text: str) -> UUID:
    try:
        return from_text(text)
    except ValueError:
        raise InvalidOption(
            f"topicId is {text!r}: it must be an id of 22 characters, as kafka-topics.sh shows it."
        ) from None


def _flag(given: Mapping[str, str], name: str, *, default: str) -> bool:
    text = given.get(name.lower(), default).lower()
    if text not in ("true", "false"):
        raise InvalidOption(f"{name} is {text!r}: it must be true or false.")
    return text == "true"


def _one_of(given: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    """Return the value of an option with a fixed set of values, the first of which is the default."""
    text = given.get(name, values[0]).lower()
    if text not in values:
        raise InvalidOption(f"{name} is {text!r}: it must be {' or '.join(values)}.")
    return text


def _positive(given: Mapping[str, str], name: str, default: int) -> int:
    value = _integer(name, given.get(name.lower(), str(default)))
    if value < 1:
        raise InvalidOption(f"{name} is {value}: it must be at least 1.")
    return value


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidOption(f"{name} is {text!r}: it must be an integer.") from None

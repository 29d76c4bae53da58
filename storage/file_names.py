"""Names of the files and folders of a log directory.

A segment's files share a name of 20 digits, its base offset, so that sorting by name sorts by offset.
A suffix after the extension gives the state of a file:

- `.deleted`: no longer part of the log, removed after `file.delete.delay.ms`
- `.cleaned`: being written by compaction; removed after a crash
- `.swap`: completely written by compaction, about to replace its sources; after a crash it replaces them

Source: LogFileUtils of Kafka; directories: UnifiedLog and LocalLog.
"""

import re
from functools import lru_cache

from ottla.protocol.errors import InvalidTopic, KafkaStorageError
from ottla.protocol.topic_names import check_topic_name
from ottla.protocol.types import MAX_OFFSET, MAX_PARTITION, TopicPartition

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TRANSACTION_INDEX = ".txnindex"
PRODUCER_SNAPSHOT = ".snapshot"
SEGMENT_EXTENSIONS = (LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)
INDEX_EXTENSIONS = (OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)

#: The directory of the controller's log, which LogManager does not open.
METADATA_LOG = "__cluster_metadata-0"

DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"

DELETE_DIRECTORY = "-delete"
STRAY_DIRECTORY = "-stray"
FUTURE_DIRECTORY = "-future"

_OFFSET_DIGITS = 20
#: Exactly: `5.log` or `00000000000000000005.x.log` would count as a segment whose file is missing.
_OF_OFFSET = re.compile(
    rf"([0-9]{{{_OFFSET_DIGITS}}})\.(?:log|index|timeindex|txnindex|snapshot)(?:\.(?:deleted|cleaned|swap|tmp))?"
)
#: The longest name that common file systems allow.
MAX_NAME_LENGTH = 255


def of_offset(offset: int, extension: str, suffix: str = "") -> str:
    """The name of one file of the segment (or snapshot) at `offset`.

    >>> of_offset(368769, LOG)
    '00000000000000368769.log'
    """
    assert offset >= 0, (offset, extension, suffix)
    return f"{offset:0{_OFFSET_DIGITS}d}{extension}{suffix}"


@lru_cache(4096)  # files of first segments have the same names in every log
def offset_of(name: str) -> int | None:
    """The offset in the name of a segment's or snapshot's file, in any of its states; None for other names.

    >>> offset_of("00000000000000368769.log.cleaned"), offset_of("leader-epoch-checkpoint")
    (368769, None)
    """
    found = _OF_OFFSET.fullmatch(name)
    return offset if found and (offset := int(found[1])) < MAX_OFFSET else None


def topic_partition_of(name: str) -> TopicPartition | None:
    """The partition whose log is in a directory of this name; None for other names.

    A name whose topic cannot exist is such another name.

    >>> topic_partition_of("a-b-3")
    TopicPartition(topic='a-b', partition=3)
    """
    topic, dash, partition = name.rpartition("-")
    if not (dash and partition.isascii() and partition.isdigit() and int(partition) <= MAX_PARTITION):
        return None
    try:
        check_topic_name(topic)
    except InvalidTopic:
        return None
    return TopicPartition(topic, int(partition))


def renamed_directory(topic_partition: TopicPartition, *, unique: str, suffix: str) -> str:
    """A name for the directory of a deleted or stray log: topic-partition.unique-suffix.

    The topic is truncated where the name would be too long; the partition is kept. Raises KafkaStorageError if even
    that is too long.
    """
    tail = f"-{topic_partition.partition}.{unique}{suffix}"
    name = topic_partition.topic[: MAX_NAME_LENGTH - len(tail)] + tail
    if len(name) > MAX_NAME_LENGTH:
        raise KafkaStorageError(f"The topic's name is too long to rename the directory of {topic_partition}")
    return name


def future_directory(topic_partition: TopicPartition, *, unique: str) -> str:
    """A name for the directory of a future log, which replaces the partition's log once it has caught up (KIP-113).

    Not truncated, as it must have the whole topic name. Raises KafkaStorageError where it would be too long.
    """
    name = f"{topic_partition}.{unique}{FUTURE_DIRECTORY}"
    if len(name) > MAX_NAME_LENGTH:
        raise KafkaStorageError(
            f"The topic's name is too long for the directory of a future log of {topic_partition}"
        )
    return name


def future_partition_of(name: str) -> TopicPartition | None:
    """The partition of a future log's directory, None for other names.

    >>> future_partition_of("a.b-3.00ff-future")
    TopicPartition(topic='a.b', partition=3)
    """
    rest = name.removesuffix(FUTURE_DIRECTORY)
    return topic_partition_of(rest.rpartition(".")[0]) if rest != name else None


def partition_being_removed(name: str) -> TopicPartition | None:
    """The partition of a directory that `renamed_directory` named, None for other names.

    >>> partition_being_removed("orders-3.00ff-delete")
    TopicPartition(topic='orders', partition=3)
    """
    rest, dash, word = name.rpartition("-")
    if f"-{word}" not in (DELETE_DIRECTORY, STRAY_DIRECTORY) or not dash:
        return None
    return topic_partition_of(rest.rpartition(".")[0])

"""librdkafka, driven in batches from Python: a load generator that spends its time in C.

confluent-kafka's wheel carries the library; its Python API costs a call for each record, which limits
the load before the broker does. Here records are enqueued and taken a batch at a time through the
library's own C API, so that what is measured is the usual client and not our loop around it.
Python runs once for some thousand records.
"""

import ctypes
import importlib.util
import json
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

PRODUCER, CONSUMER = 0, 1
PARTITION_UNASSIGNED = -1
OFFSET_BEGINNING = -2
_STATISTICS_INTERVAL_MS = 200
_FLUSH_TIMEOUT_MS = 120_000
_STALL_S = 30
#: The number of the library's own messages that a count of messages may include.
_OWN_MESSAGES = 10
_ERROR_STRING_BYTES = 512


class _Message(ctypes.Structure):
    """The struct rd_kafka_message_t of librdkafka."""

    _fields_ = (
        ("err", ctypes.c_int),
        ("topic", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_length", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("private", ctypes.c_void_p),
    )


class _TopicPartition(ctypes.Structure):
    """The struct rd_kafka_topic_partition_t of librdkafka."""

    _fields_ = (
        ("topic", ctypes.c_char_p),
        ("partition", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("metadata", ctypes.c_void_p),
        ("metadata_size", ctypes.c_size_t),
        ("opaque", ctypes.c_void_p),
        ("err", ctypes.c_int),
        ("private", ctypes.c_void_p),
    )


class _TopicPartitionList(ctypes.Structure):
    """The struct rd_kafka_topic_partition_list_t of librdkafka."""

    _fields_ = (
        ("count", ctypes.c_int),
        ("size", ctypes.c_int),
        ("elements", ctypes.POINTER(_TopicPartition)),
    )


_StatisticsCallback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
)


class LibrdkafkaError(Exception):
    """The library refused a call; the message is the library's own."""


#: The functions that return addresses or texts, or take addresses as numbers.
_ADDRESSES = (
    *("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_topic_new"),
    *("rd_kafka_queue_new", "rd_kafka_queue_get_main", "rd_kafka_queue_poll"),
)
_TEXTS = ("rd_kafka_err2str", "rd_kafka_event_stats", "rd_kafka_event_error_string")
_OF_AN_EVENT = (
    *("rd_kafka_event_type", "rd_kafka_event_stats", "rd_kafka_event_error_string"),
    *("rd_kafka_event_message_count", "rd_kafka_event_destroy", "rd_kafka_message_destroy"),
)


def _path() -> Path:
    package = importlib.util.find_spec("confluent_kafka")
    if package is None or package.origin is None:
        raise LibrdkafkaError("confluent-kafka is not installed")
    folder = Path(package.origin).parent.parent / "confluent_kafka.libs"
    # The library's own dependencies lie beside it and are found once the extension module is loaded.
    importlib.import_module("confluent_kafka")
    return next(folder.glob("librdkafka*.so*"))


_L = TypeVar("_L", bound=ctypes.CDLL)


def _declared(library: _L) -> _L:
    for name in _ADDRESSES:
        getattr(library, name).restype = ctypes.c_void_p
    for name in _TEXTS:
        getattr(library, name).restype = ctypes.c_char_p
    for name in _OF_AN_EVENT:
        getattr(library, name).argtypes = (ctypes.c_void_p,)
    for name in ("rd_kafka_event_message_count", "rd_kafka_event_message_array"):
        getattr(library, name).restype = ctypes.c_size_t
    library.rd_kafka_event_message_array.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    library.rd_kafka_topic_partition_list_new.restype = ctypes.POINTER(_TopicPartitionList)
    library.rd_kafka_consume_batch_queue.restype = ctypes.c_ssize_t
    return library


@cache
def library() -> ctypes.CDLL:
    """Return the library for calls that may wait, or take long: other threads run meanwhile."""
    return _declared(ctypes.CDLL(str(_path())))


@cache
def quick_library() -> ctypes.PyDLL:
    """Return the library for calls that never wait, one for each record or event: Python's lock is kept.

    That costs less than to release it.
    """
    return _declared(ctypes.PyDLL(str(_path())))


class Client:
    """A producer or consumer handle; a context manager that destroys it."""

    def __init__(self, kind: int, settings: Mapping[str, str]) -> None:
        self._library = library()
        #: The library's own view of its requests' round trips: (p50, p99, count) of each interval.
        self._round_trips: list[tuple[float, float, int]] = []
        #: Broker id -> bytes received from it, at the last interval's end.
        self._received_bytes: dict[int, int] = {}
        error = ctypes.create_string_buffer(_ERROR_STRING_BYTES)
        conf = ctypes.c_void_p(self._library.rd_kafka_conf_new())
        settings = {**settings, "statistics.interval.ms": str(_STATISTICS_INTERVAL_MS)}
        for name, value in settings.items():
            if self._library.rd_kafka_conf_set(conf, name.encode(), value.encode(), error, len(error)):
                raise LibrdkafkaError(error.value.decode())
        # Kept: the library knows its address only.
        self._on_statistics = _StatisticsCallback(self._note_statistics)
        self._library.rd_kafka_conf_set_stats_cb(conf, self._on_statistics)
        self._handle = ctypes.c_void_p(self._library.rd_kafka_new(kind, conf, error, len(error)))
        if not self._handle:
            raise LibrdkafkaError(error.value.decode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._library.rd_kafka_destroy(self._handle)

    def round_trips_s(self) -> tuple[float, float] | None:
        """Return (p50, p99) of the requests' round trips, averaged over all intervals; None if none ended."""
        count = sum(count for _, _, count in self._round_trips)
        if not count:
            return None
        p50, p99 = (sum(row[at] * row[2] for row in self._round_trips) / count for at in (0, 1))
        return p50, p99

    def share_received_from(self, broker_id: int) -> float:
        """Return the part of all bytes that came from this broker, without the initial connections to unnamed ones."""
        # The statistics of the interval that is under way.
        self._library.rd_kafka_poll(self._handle, 2 * _STATISTICS_INTERVAL_MS)
        return self._received_bytes.get(broker_id, 0) / max(1, sum(self._received_bytes.values()))

    def _note_statistics(self, handle: int, text: int, size: int, opaque: int) -> int:
        for broker in json.loads(ctypes.string_at(text, size))["brokers"].values():
            if broker["nodeid"] >= 0:
                self._received_bytes[broker["nodeid"]] = broker["rxbytes"]
            rtt = broker["rtt"]
            if rtt["cnt"]:
                self._round_trips.append((rtt["p50"] / 1e6, rtt["p99"] / 1e6, rtt["cnt"]))
        return 0

    def _topic(self, name: str) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._library.rd_kafka_topic_new(self._handle, name.encode(), None))


class Producer(Client):
    """Enqueues equal records in batches."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(PRODUCER, settings)

    def produce(self, topic: str, *, payload: bytes, count: int, batch_count: int = 2000) -> None:
        """Send `count` records of `payload` to all partitions in turn; returns when all are answered.

        A record that the broker refuses is dropped in silence: compare the log's end offsets with `count`.
        Raises LibrdkafkaError if some are still undelivered after two minutes.
        """
        rkt = self._topic(topic)
        source = ctypes.create_string_buffer(payload, len(payload))
        messages = (_Message * batch_count)()
        for message in messages:
            message.payload, message.length = ctypes.addressof(source), len(payload)
        sent = 0
        while sent < count:
            wanted = min(batch_count, count - sent)
            # Flag 0: the payload stays ours, and is not copied. The array stays as it is but for its errors:
            # records that did not fit into the queue are in it still, all alike.
            accepted = self._library.rd_kafka_produce_batch(rkt, PARTITION_UNASSIGNED, 0, messages, wanted)
            sent += accepted
            self._library.rd_kafka_poll(self._handle, 0 if accepted == wanted else 1)
        if self._library.rd_kafka_flush(self._handle, _FLUSH_TIMEOUT_MS):
            raise LibrdkafkaError(
                f"{self._library.rd_kafka_outq_len(self._handle)} records were not delivered"
            )
        self._library.rd_kafka_topic_destroy(rkt)


class Consumer(Client):
    """Takes the records of whole partitions, without reading them."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(CONSUMER, settings)
        #: The time of the first records (`perf_counter`).
        self.first_at = 0.0

    def consume(self, topic: str, *, partitions: range, count: int) -> int:
        """Read these partitions from the beginning, at least `count` records, and return their number.

        Raises LibrdkafkaError if nothing comes for half a minute.
        """
        rkt = self._topic(topic)
        queue = ctypes.c_void_p(self._library.rd_kafka_queue_new(self._handle))
        for partition in partitions:
            if self._library.rd_kafka_consume_start_queue(
                rkt, partition, ctypes.c_int64(OFFSET_BEGINNING), queue
            ):
                raise LibrdkafkaError(f"cannot consume {topic}-{partition}")
        # The callback has to be a C function: one of Python would cost a microsecond for each record. Any
        # that looks at no argument does. The library counts, and destroys each record after the call.
        ignore = self._library.rd_kafka_version
        taken = position = 0
        stalled_at = time.monotonic() + _STALL_S
        while position < count:
            got = self._library.rd_kafka_consume_callback_queue(queue, 200, ignore, None)
            taken += got
            if got:
                if taken > _OWN_MESSAGES:
                    self.first_at = self.first_at or time.perf_counter()
                stalled_at = time.monotonic() + _STALL_S
            elif time.monotonic() > stalled_at:
                raise LibrdkafkaError(f"{position} of {count} records, and none for {_STALL_S} s")
            # The library's count may include a message of its own; the positions are right, but cost more.
            if taken >= count:
                position = self._position(topic, partitions)
            self._library.rd_kafka_poll(self._handle, 0)
        for partition in partitions:
            self._library.rd_kafka_consume_stop(rkt, partition)
        self._library.rd_kafka_queue_destroy(queue)
        self._library.rd_kafka_topic_destroy(rkt)
        return position

    def _position(self, topic: str, partitions: range) -> int:
        """Return the sum of the next offsets."""
        asked = self._library.rd_kafka_topic_partition_list_new(len(partitions))
        for partition in partitions:
            self._library.rd_kafka_topic_partition_list_add(asked, topic.encode(), partition)
        self._library.rd_kafka_position(self._handle, asked)
        total: int = sum(max(0, asked.contents.elements[at].offset) for at in range(len(partitions)))
        self._library.rd_kafka_topic_partition_list_destroy(asked)
        return total

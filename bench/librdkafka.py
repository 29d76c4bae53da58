"""librdkafka, driven in batches from Python: a load generator that spends its time in C.

confluent-kafka's wheel carries the library; its Python API costs a call for each record, which limits
the load before the broker does. Here records are enqueued and taken a batch at a time through the
library's own C API, so that what is measured is the client everybody uses and not our loop around it.
"""

import ctypes
import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

PRODUCER, CONSUMER = 0, 1
PARTITION_UNASSIGNED = -1
OFFSET_BEGINNING = -2
_ERROR_PARTITION_END = -191
_ERROR_STRING_BYTES = 512


class _Message(ctypes.Structure):
    """rd_kafka_message_t."""

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


class LibrdkafkaError(Exception):
    """The library refused a call; its own words."""


@cache
def _library() -> ctypes.CDLL:
    package = importlib.util.find_spec("confluent_kafka")
    assert package is not None and package.origin is not None, "confluent-kafka is not installed"
    folder = Path(package.origin).parent.parent / "confluent_kafka.libs"
    # The library's own dependencies lie beside it and are found once the extension module is loaded.
    importlib.import_module("confluent_kafka")
    library = ctypes.CDLL(str(next(folder.glob("librdkafka*.so*"))))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_topic_new", "rd_kafka_queue_new"):
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_err2str.restype = ctypes.c_char_p
    library.rd_kafka_consume_batch_queue.restype = ctypes.c_ssize_t
    return library


class Client:
    """A producer or consumer handle; a context manager that destroys it."""

    def __init__(self, kind: int, settings: Mapping[str, str]) -> None:
        self._library = _library()
        error = ctypes.create_string_buffer(_ERROR_STRING_BYTES)
        conf = ctypes.c_void_p(self._library.rd_kafka_conf_new())
        for name, value in settings.items():
            if self._library.rd_kafka_conf_set(conf, name.encode(), value.encode(), error, len(error)):
                raise LibrdkafkaError(error.value.decode())
        self._handle = ctypes.c_void_p(self._library.rd_kafka_new(kind, conf, error, len(error)))
        if not self._handle:
            raise LibrdkafkaError(error.value.decode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._library.rd_kafka_destroy(self._handle)

    def _topic(self, name: str) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._library.rd_kafka_topic_new(self._handle, name.encode(), None))


class Producer(Client):
    """Enqueues equal records in batches."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(PRODUCER, settings)

    def produce(self, topic: str, *, payload: bytes, count: int, batch_count: int = 1000) -> None:
        """Send `count` records of `payload` to all partitions in turn; returns when all are delivered.

        Raises LibrdkafkaError if some are still undelivered after two minutes.
        """
        rkt = self._topic(topic)
        source = ctypes.create_string_buffer(payload, len(payload))
        address = ctypes.cast(source, ctypes.c_void_p).value
        messages = (_Message * batch_count)()
        sent = 0
        while sent < count:
            wanted = min(batch_count, count - sent)
            for message in messages:
                message.payload, message.length = address, len(payload)
            # Flag 0: the payload stays ours, and is not copied. What did not fit into the queue is tried again.
            accepted = self._library.rd_kafka_produce_batch(rkt, PARTITION_UNASSIGNED, 0, messages, wanted)
            sent += accepted
            self._library.rd_kafka_poll(self._handle, 0 if accepted == wanted else 1)
        if self._library.rd_kafka_flush(self._handle, 120_000):
            raise LibrdkafkaError(
                f"{self._library.rd_kafka_outq_len(self._handle)} records were not delivered"
            )
        self._library.rd_kafka_topic_destroy(rkt)


class Consumer(Client):
    """Takes the records of whole partitions in batches."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(CONSUMER, settings)

    def consume(self, topic: str, *, partitions: range, count: int, batch_count: int = 10_000) -> int:
        """Read `count` records from the beginning of these partitions on; returns their bytes."""
        rkt = self._topic(topic)
        queue = ctypes.c_void_p(self._library.rd_kafka_queue_new(self._handle))
        for partition in partitions:
            if self._library.rd_kafka_consume_start_queue(
                rkt, partition, ctypes.c_int64(OFFSET_BEGINNING), queue
            ):
                raise LibrdkafkaError(f"cannot consume {topic}-{partition}")
        messages = (ctypes.POINTER(_Message) * batch_count)()
        taken = bytes_taken = 0
        while taken < count:
            got = self._library.rd_kafka_consume_batch_queue(
                queue, 1000, messages, ctypes.c_size_t(batch_count)
            )
            for index in range(got):
                message = messages[index].contents
                if message.err == 0:
                    taken += 1
                    bytes_taken += message.length
                elif message.err != _ERROR_PARTITION_END:
                    raise LibrdkafkaError(self._library.rd_kafka_err2str(message.err).decode())
                self._library.rd_kafka_message_destroy(messages[index])
        for partition in partitions:
            self._library.rd_kafka_consume_stop(rkt, partition)
        self._library.rd_kafka_queue_destroy(queue)
        self._library.rd_kafka_topic_destroy(rkt)
        return bytes_taken

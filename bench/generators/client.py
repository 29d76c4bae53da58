"""A handle of librdkafka: its events and records are taken by arrays, in one thread that waits for all of them."""

import ctypes
import json
import os
import select
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from ottla.bench.generators import librdkafka
from ottla.bench.generators.librdkafka import LibrdkafkaError
from ottla.bench.generators.memory import words_at

#: Values of rd_kafka_event_type_t.
_DELIVERY, _ERROR, _STATISTICS = 0x1, 0x8, 0x40
#: The number of events whose messages are read together.
_EVENTS_AT_ONCE: Final = 256
_ERROR_BYTES: Final = 512
_SETTINGS: Final = {
    "log_level": "0",
    # What is known of brokers: whether they are connected, and their bytes.
    "statistics.interval.ms": "1000",
    # To all brokers at once, and not to each with the first record for it.
    "enable.sparse.connections": "false",
}
#: The system's FD_SETSIZE.
_SELECTABLE: Final = 1024
_METADATA_TIMEOUT_MS: Final = 30_000
#: The number of waits of a tenth of a second each; statistics come once a second.
_STATISTICS_WAITS: Final = 30
_PRODUCER_ID_WAITS: Final = 300
_CONNECTION_WAITS: Final = 50
_OFFSETS: Final = {
    "error": 0,
    "partition": 16,
    "payload": 24,
    "size": 32,
    "key": 40,
    "key_size": 48,
    "offset": 56,
    "opaque": 64,
}
#: The struct rd_kafka_message_t.
MESSAGE: Final = np.dtype(
    {
        "names": list(_OFFSETS),
        "formats": ["<i4", "<i4", "<u8", "<u8", "<u8", "<u8", "<i8", "<u8"],
        "offsets": list(_OFFSETS.values()),
        "itemsize": 72,
    }
)
_LOW_HALF: Final = np.uint64(0xFFFFFFFF)


def is_readable(file: int, timeout_s: float) -> bool:
    """Wait until the file is readable.

    Above select's bound of file numbers the timeout is rounded up to milliseconds.

    A process with so many clients has no client of a high rate.
    """
    if file < _SELECTABLE:
        return bool(select.select([file], [], [], timeout_s)[0])
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


class Messages:
    """Messages that the library owns, by their addresses."""

    def __init__(self, addresses: npt.NDArray[np.int64]) -> None:
        self.addresses = addresses

    def __len__(self) -> int:
        return len(self.addresses)

    def chosen(self, mask: npt.NDArray[np.bool_]) -> "Messages":
        """Return the messages where `mask` is true."""
        return Messages(self.addresses[mask])

    def _field(self, name: str) -> npt.NDArray[np.int64]:
        words = words_at(self.addresses + _OFFSETS[name])
        if MESSAGE[name].itemsize == 4:
            return (words & _LOW_HALF).astype(np.uint32).view(np.int32).astype(np.int64)
        return words.view(np.int64)

    @property
    def errors(self) -> npt.NDArray[np.int64]:
        """The rd_kafka_resp_err_t of each message: zero for none."""
        return self._field("error")

    @property
    def partitions(self) -> npt.NDArray[np.int64]:
        """The partition of each message."""
        return self._field("partition")

    @property
    def payloads(self) -> npt.NDArray[np.int64]:
        """The address of each message's value."""
        return self._field("payload")

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """The size of each value; of an error, the size of its text."""
        return self._field("size")

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """The offset of each message."""
        return self._field("offset")

    @property
    def opaques(self) -> npt.NDArray[np.int64]:
        """The number that the producer was given with each message."""
        return self._field("opaque")


class Client:
    """A producer or consumer handle; a context manager that destroys it."""

    def __init__(self, kind: int, settings: Mapping[str, str], *, on_error: Callable[[str], None]) -> None:
        self.library = librdkafka.library()
        self._quick = librdkafka.quick_library()
        self._on_error = on_error
        self._statistics = b""
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        conf = ctypes.c_void_p(self.library.rd_kafka_conf_new())
        for name, value in {**settings, **_SETTINGS}.items():
            if self.library.rd_kafka_conf_set(conf, name.encode(), value.encode(), error, len(error)):
                raise LibrdkafkaError(error.value.decode())
        self.library.rd_kafka_conf_set_events(conf, _DELIVERY | _ERROR | _STATISTICS)
        self.handle = ctypes.c_void_p(self.library.rd_kafka_new(kind, conf, error, len(error)))
        if not self.handle:
            raise LibrdkafkaError(error.value.decode())
        self._main_queue = ctypes.c_void_p(self.library.rd_kafka_queue_get_main(self.handle))
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self.wake_by(self._main_queue)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.library.rd_kafka_queue_destroy(self._main_queue)
        self.library.rd_kafka_destroy(self.handle)
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def wake_by(self, queue: ctypes.c_void_p) -> None:
        """Let `wait` return when an event comes into this queue."""
        self.library.rd_kafka_queue_io_event_enable(queue, self._wake_writer, b"1", ctypes.c_size_t(1))

    def wait(self, timeout_s: float) -> None:
        """Wait until an event comes into a queue that was empty."""
        if is_readable(self._wake_reader, max(0.0, timeout_s)):
            os.read(self._wake_reader, 4096)

    def topic(self, name: str) -> ctypes.c_void_p:
        """Return the library's topic, once a broker has answered for it.

        Raises LibrdkafkaError if none does in half a minute.
        """
        topic = ctypes.c_void_p(self.library.rd_kafka_topic_new(self.handle, name.encode(), None))
        metadata = ctypes.c_void_p()
        error = self.library.rd_kafka_metadata(
            self.handle, 0, topic, ctypes.byref(metadata), _METADATA_TIMEOUT_MS
        )
        if error:
            raise LibrdkafkaError(f"no metadata of {name}: {self.error_text(error)}")
        self.library.rd_kafka_metadata_destroy(metadata)
        return topic

    def error_text(self, code: int) -> str:
        """Return the library's text for an error."""
        text: bytes = self.library.rd_kafka_err2str(code)
        return text.decode()

    def take_events(self, on_deliveries: Callable[[Messages], None] | None = None) -> None:
        """Take all events that there are; the messages of many deliveries in one call."""
        poll = self._quick.rd_kafka_queue_poll
        while True:
            deliveries: list[ctypes.c_void_p] = []
            while len(deliveries) < _EVENTS_AT_ONCE and (event := poll(self._main_queue, 0)):
                if self._quick.rd_kafka_event_type(event) == _DELIVERY:
                    deliveries.append(event)
                else:
                    self._take_other(event)
            if not deliveries:
                return
            if on_deliveries is not None:
                on_deliveries(Messages(np.concatenate([self._messages_of(event) for event in deliveries])))
            for event in deliveries:
                self._quick.rd_kafka_event_destroy(event)

    def _messages_of(self, event: ctypes.c_void_p) -> npt.NDArray[np.int64]:
        addresses = np.empty(self._quick.rd_kafka_event_message_count(event), np.int64)
        taken = self._quick.rd_kafka_event_message_array(event, addresses.ctypes.data, len(addresses))
        return addresses[:taken]

    def _take_other(self, event: ctypes.c_void_p) -> None:
        kind = self._quick.rd_kafka_event_type(event)
        if kind == _STATISTICS:
            self._statistics = self._quick.rd_kafka_event_stats(event)
        elif kind == _ERROR:
            self._on_error(self._quick.rd_kafka_event_error_string(event).decode())
        self._quick.rd_kafka_event_destroy(event)

    def destroy_messages(self, messages: Messages) -> None:
        """Free the messages of a consumer."""
        # Without a loop of Python's: 0.1 us for each.
        deque(map(self._quick.rd_kafka_message_destroy, messages.addresses.tolist()), maxlen=0)

    def await_ready(self, *, needs_producer_id: bool) -> None:
        """Wait until it is connected to all brokers, and has the id without which an idempotent producer
        sends nothing.

        A broker that is down is not waited for indefinitely. Raises LibrdkafkaError without a producer id.
        """
        for waited in range(_PRODUCER_ID_WAITS):
            self.wait(0.1)
            self.take_events()
            if not self._statistics:
                continue
            statistics = json.loads(self._statistics)
            has_id = not needs_producer_id or statistics["eos"]["idemp_state"] == "Assigned"
            brokers = [row["state"] for row in statistics["brokers"].values() if row["nodeid"] >= 0]
            if has_id and (waited > _CONNECTION_WAITS or (brokers and set(brokers) == {"UP"})):
                return
        if needs_producer_id:
            raise LibrdkafkaError("no broker has given a producer id after half a minute")

    def bytes_by_broker(self) -> dict[int, tuple[int, int]]:
        """Return broker id -> (received, sent) by the last statistics: up to a second old."""
        if not self._statistics:
            return {}
        brokers = json.loads(self._statistics)["brokers"].values()
        # Negative ids: the initial connections to brokers that are known by their addresses only.
        return {row["nodeid"]: (row["rxbytes"], row["txbytes"]) for row in brokers if row["nodeid"] >= 0}

    def await_statistics(self) -> None:
        """Wait for statistics that count everything up to now."""
        self.take_events()
        self._statistics = b""
        for _ in range(_STATISTICS_WAITS):
            self.wait(0.1)
            self.take_events()
            if self._statistics:
                return

"""A consumer in a Spark task: takes whole partitions, and verifies every record."""

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Final

import numpy as np

from ottla.bench.generators import librdkafka
from ottla.bench.generators.assignment import ConsumerPlan
from ottla.bench.generators.client import Client, Messages
from ottla.bench.generators.librdkafka import LibrdkafkaError
from ottla.bench.generators.records import Stamps
from ottla.bench.generators.rows import Kind, Row
from ottla.bench.generators.running import ClientFailed, Orders, now_us
from ottla.bench.generators.streams import Streams
from ottla.bench.generators.tally import Tally

_MOST_AT_ONCE: Final = 4000
#: The codes RD_KAFKA_RESP_ERR__PARTITION_EOF and RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET.
_END_OF_PARTITION: Final = -191
_NO_SUCH_OFFSET: Final = -140
#: The longest time without a record for a consumer that has not reached its end.
_STALL_US: Final = 120_000_000
_PAUSE_S: Final = 0.1


class ConsumerClient:
    """A consumer in a task; `run` returns when it has read up to the ends that the driver has named."""

    def __init__(self, plan: ConsumerPlan) -> None:
        self._plan = plan
        self.tally = Tally(plan.name, plan.role, plan.topic)
        #: Partition -> next offset.
        self._positions = np.zeros(max(plan.offsets, default=0) + 1, np.int64)
        for partition, offset in plan.offsets.items():
            self._positions[partition] = max(0, offset)
        self._addresses = np.empty(_MOST_AT_ONCE, np.int64)
        self._streams = Streams()
        self._bytes_by_broker: dict[int, tuple[int, int]] = {}

    def open(self, stack: contextlib.ExitStack) -> None:
        """Connect to the cluster. Raises LibrdkafkaError."""
        self._client = stack.enter_context(
            Client(librdkafka.CONSUMER, self._plan.settings, on_error=self._note_library_error)
        )
        self._topic = self._client.topic(self._plan.topic)
        library = self._client.library
        stack.callback(library.rd_kafka_topic_destroy, self._topic)
        self._queue = ctypes.c_void_p(library.rd_kafka_queue_new(self._client.handle))
        stack.callback(library.rd_kafka_queue_destroy, self._queue)
        self._client.wake_by(self._queue)
        self._client.await_ready(needs_producer_id=False)

    def run(self, orders: Orders, start_us: int) -> None:
        """Read until the ends. Raises LibrdkafkaError, and ClientFailed if an offset is gone or no record comes."""
        self._start_us = self.tally.start_us = start_us
        library = self._client.library
        for partition, offset in self._plan.offsets.items():
            if library.rd_kafka_consume_start_queue(
                self._topic, partition, ctypes.c_int64(offset), self._queue
            ):
                raise LibrdkafkaError(f"cannot consume {self._plan.topic}-{partition}")
        self._read(orders)

    def finish(self) -> None:
        """Read the statistics that are known a while after `run`, and end all fetching."""
        self._client.await_statistics()
        self._bytes_by_broker = self._client.bytes_by_broker()
        for partition in self._plan.offsets:
            self._client.library.rd_kafka_consume_stop(self._topic, partition)

    def _read(self, orders: Orders) -> None:
        progressed_us = now_us()
        while not orders.is_stopped and not self._is_done(orders):
            self._client.wait(_PAUSE_S)
            self._client.take_events()
            while not orders.is_stopped and self._take():
                progressed_us = now_us()
            if orders.ends is None:
                progressed_us = now_us()
            elif now_us() - progressed_us > _STALL_US:
                raise ClientFailed(
                    f"{self._plan.name}: {self._left(orders)} records of {self._plan.topic} are left, "
                    f"and none came for {_STALL_US // 1_000_000} s"
                )

    def _left(self, orders: Orders) -> int:
        assert orders.ends is not None
        ends = orders.ends.get(self._plan.topic, {})
        return sum(
            max(0, ends[partition] - int(self._positions[partition])) for partition in self._plan.offsets
        )

    def _is_done(self, orders: Orders) -> bool:
        return orders.ends is not None and not self._left(orders)

    def _take(self) -> int:
        """Take the records that are in the queue now, up to a bound, and return their number."""
        library = self._client.library
        taken: int = library.rd_kafka_consume_batch_queue(
            self._queue, 0, ctypes.c_void_p(self._addresses.ctypes.data), ctypes.c_size_t(_MOST_AT_ONCE)
        )
        if taken > 0:
            messages = Messages(self._addresses[:taken])
            try:
                self._note(messages)
            finally:
                self._client.destroy_messages(messages)
        return max(0, taken)

    def _note(self, messages: Messages) -> None:
        now = now_us()
        errors = messages.errors
        if errors.any():
            for address in messages.addresses[errors != 0].tolist():
                self._note_error(now, Messages(np.array([address])))
            messages = messages.chosen(errors == 0)
        if not len(messages):
            return
        partitions, sizes = messages.partitions, messages.sizes
        np.maximum.at(self._positions, partitions, messages.offsets + 1)
        stamps = Stamps(messages.payloads, sizes)
        # Those of an earlier phase have waited for us, not for the brokers.
        due_us = stamps.due_us[stamps.due_us >= self._start_us]
        self.tally.note(
            now_us=now, records=len(messages), payload_bytes=int(sizes.sum()), latencies_us=now - due_us
        )
        self._streams.note(stamps, partitions)

    def _note_error(self, now: int, message: Messages) -> None:
        code, partition = int(message.errors[0]), int(message.partitions[0])
        if code == _END_OF_PARTITION:
            self._positions[partition] = max(int(self._positions[partition]), int(message.offsets[0]))
            return
        where = f"{self._plan.topic}-{partition}"
        if code == _NO_SUCH_OFFSET:
            raise ClientFailed(
                f"{self._plan.name}: {where} has no offset {int(self._positions[partition])} any more"
            )
        self.tally.note_errors(now_us=now, text=f"{where}: {self._client.error_text(code)}", count=1)

    def _note_library_error(self, text: str) -> None:
        self.tally.note_errors(now_us=now_us(), text=text, count=0)

    def rows(self) -> Iterator[Row]:
        """Yield the rows after `run`, also if it failed."""
        yield from self.tally.rows()
        yield from self._streams.rows(self.tally)
        for broker, (received, sent) in self._bytes_by_broker.items():
            yield self.tally.row(Kind.BROKER, broker=broker, received_bytes=received, sent_bytes=sent)

"""A producer in a Spark task: an open loop, whose sends never wait for acknowledgements.

With a rate, record k is due at start + k / rate, whatever became of the ones before; its latency is from then
on. If the library's queue is full, the record is sent later, and its latency is the longer for it. Without a
rate a record is due when there is room for it.
"""

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from ottla.bench.generators import librdkafka
from ottla.bench.generators.assignment import ProducerPlan
from ottla.bench.generators.client import MESSAGE, Client, Messages
from ottla.bench.generators.records import Values, shown_stream
from ottla.bench.generators.rows import Kind, Row
from ottla.bench.generators.running import ClientFailed, Orders, now_us
from ottla.bench.generators.tally import Latencies, Tally

#: The flags RD_KAFKA_MSG_F_COPY and RD_KAFKA_MSG_F_PARTITION.
_COPY_TO_OWN_PARTITION: Final = 0x2 | 0x8
#: The bounds of the records in the library, sent or not: its own bound of their number, and of their bytes
#: that of Kafka's producer (`buffer.memory`).
_MOST_QUEUED: Final = 100_000
_MOST_QUEUED_BYTES: Final = 32 << 20
_MOST_AT_ONCE: Final = 2000
#: The size of the values in all slots.
_SLOTS_BYTES: Final = 4 << 20
_LEAST_SLOTS: Final = 64
#: The period of a faster schedule, by which a record is late at most.
_TICK_US: Final = 500
#: The code RD_KAFKA_RESP_ERR__QUEUE_FULL.
_QUEUE_FULL: Final = -184
#: The longest wait while the library's queue is full: a delivery ends it earlier.
_FULL_US: Final = 10_000
#: How long after the end of the phase records are sent that were due before it.
_LATE_S: Final = 10
#: How long the last records may take to be acknowledged, and when the phase is stopped.
_FLUSH_S: Final = 120
_FLUSH_STOPPED_S: Final = 5


class _Sent:
    """The times at which records were handed to the library."""

    def __init__(self) -> None:
        self._firsts = np.zeros(1024, np.int64)
        self._times = np.zeros(1024, np.int64)
        self._count = 0

    def note(self, first: int, at_us: int) -> None:
        """Note the time of all records from `first` on, up to the next call's."""
        if self._count == len(self._firsts):
            self._firsts = np.resize(self._firsts, 2 * self._count)
            self._times = np.resize(self._times, 2 * self._count)
        self._firsts[self._count], self._times[self._count] = first, at_us
        self._count += 1

    def times_of(self, records: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the times of these records, by their numbers."""
        found: npt.NDArray[np.int64] = self._times[
            np.searchsorted(self._firsts[: self._count], records, side="right") - 1
        ]
        return found


class ProducerClient:
    """A producer in a task; `run` returns when all of its records are acknowledged or failed."""

    def __init__(self, plan: ProducerPlan, *, sharers: int) -> None:
        """Prepare the values of the records; `sharers` producers in the same process share the memory."""
        self._plan = plan
        self.tally = Tally(plan.name, plan.role, plan.topic)
        slots = max(_LEAST_SLOTS, min(4 * _MOST_AT_ONCE, _SLOTS_BYTES // sharers // plan.size.mean))
        self._values = Values(plan.size, stream=plan.stream, slots=slots)
        self._messages = np.zeros(slots, MESSAGE)
        self._messages["payload"] = self._values.addresses
        self._messages["size"] = self._values.sizes
        self._most = plan.most_records
        self._sent = 0
        self._is_full = False
        self._sent_at = _Sent()
        self._acknowledged = np.zeros(plan.partitions, np.int64)
        self._next_sequences = np.zeros(plan.partitions, np.int64)
        self._bytes_by_broker: dict[int, tuple[int, int]] = {}

    def open(self, stack: contextlib.ExitStack) -> None:
        """Connect to the cluster. Raises LibrdkafkaError."""
        most_queued = min(_MOST_QUEUED, _MOST_QUEUED_BYTES // self._plan.size.mean)
        settings = {"queue.buffering.max.messages": str(most_queued), **self._plan.settings}
        self._most_queued = int(settings["queue.buffering.max.messages"])
        self._client = stack.enter_context(
            Client(librdkafka.PRODUCER, settings, on_error=self._note_library_error)
        )
        self._topic = self._client.topic(self._plan.topic)
        stack.callback(self._client.library.rd_kafka_topic_destroy, self._topic)
        self._client.await_ready(needs_producer_id=settings.get("enable.idempotence") == "true")

    def run(self, orders: Orders, start_us: int) -> None:
        """Send all records, and wait for all acknowledgements. Raises ClientFailed if some do not come."""
        self._start_us = self.tally.start_us = start_us
        seconds = self._plan.seconds
        # With a rate, the number of records is the end: those that are due before it are sent, unless they
        # are much too late.
        late_s = 0 if self._plan.rate is None else _LATE_S
        end_us = None if seconds is None else start_us + int((seconds + late_s) * 1e6)
        while not orders.is_stopped:
            self._client.take_events(self._note_deliveries)
            now = now_us()
            if end_us is not None and now >= end_us:
                break
            if self._most is not None and self._sent >= self._most:
                break
            if count := self._sendable(now):
                self._send(count, now)
            self._client.wait(self._pause_s(now, end_us))
        # Without a rate, the end of the phase may come before the last of its records.
        due = self._most if self._plan.rate is not None else None
        if due is not None and self._sent < due and not orders.is_stopped:
            self.tally.note_errors(
                now_us=now_us(), text="not sent: the schedule was too fast", count=due - self._sent
            )
        self._flush(orders)

    def finish(self) -> None:
        """Read the statistics that are known a while after `run`."""
        self._client.await_statistics()
        self._bytes_by_broker = self._client.bytes_by_broker()

    def _due_us(self, records: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the times at which these records are due by the schedule."""
        assert self._plan.rate is not None
        after_s = self._plan.first_due_s + records / self._plan.rate
        return self._start_us + (after_s * 1e6).astype(np.int64)

    def _sendable(self, now: int) -> int:
        """Return the number of due records with room in the library's queue, and in consecutive slots."""
        slots = len(self._values)
        room: int = self._most_queued - self._client.library.rd_kafka_outq_len(self._client.handle)
        most = min(room, _MOST_AT_ONCE, slots - self._sent % slots)
        if self._most is not None:
            most = min(most, self._most - self._sent)
        if self._plan.rate is None:
            # Few at once would cost more of our own time for each.
            return most if room >= min(_MOST_AT_ONCE, self._most_queued // 4) else 0
        elapsed_s = (now - self._start_us) / 1e6 - self._plan.first_due_s
        due = int(elapsed_s * self._plan.rate) + 1 if elapsed_s >= 0 else 0
        return max(0, min(most, due - self._sent))

    def _send(self, count: int, now: int) -> None:
        """Hand `count` records to the library. Records for which it has no room are sent later."""
        slot = self._sent % len(self._values)
        records = np.arange(self._sent, self._sent + count)
        self._sent_at.note(self._sent, now)
        due_us = np.full(count, now) if self._plan.rate is None else self._due_us(records)
        self._values.stamp(slot, records // self._plan.partitions, due_us)
        messages = self._messages[slot : slot + count]
        messages["partition"] = self._partitions_of(records)
        messages["opaque"] = records
        messages["error"] = 0
        accepted: int = self._client.library.rd_kafka_produce_batch(
            self._topic,
            librdkafka.PARTITION_UNASSIGNED,
            _COPY_TO_OWN_PARTITION,
            ctypes.c_void_p(messages.ctypes.data),
            count,
        )
        self._check_refused(messages)
        self._sent += accepted
        self._is_full = accepted < count

    def _check_refused(self, messages: npt.NDArray[np.void]) -> None:
        """Raise ClientFailed for a record that the library never takes.

        Sent again, it would keep all others waiting.
        """
        refused = messages[(messages["error"] != 0) & (messages["error"] != _QUEUE_FULL)]
        if len(refused):
            size, reason = int(refused["size"][0]), self._client.error_text(int(refused["error"][0]))
            raise ClientFailed(f"{self._plan.name}: librdkafka takes no record of {size:,} bytes: {reason}")

    def _partitions_of(self, records: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the partitions of these records: all in turn, so that each has sequences without gaps."""
        return (records + self._plan.first_partition) % self._plan.partitions

    def _pause_s(self, now: int, end_us: int | None) -> float:
        """Return how long to wait for deliveries, after records were sent that were due at `now`."""
        if self._is_full:
            until_us = now + _FULL_US
        elif self._plan.rate is None:
            until_us = now if self._sendable(now) else now + _FULL_US
        else:
            next_us = int(self._due_us(np.array([self._sent]))[0])
            # Behind the schedule by more than fits at once: no pause.
            until_us = max(next_us, now + _TICK_US) if next_us > now else now
        return ((until_us if end_us is None else min(until_us, end_us)) - now_us()) / 1e6

    def _note_deliveries(self, messages: Messages) -> None:
        now = now_us()
        errors, records = messages.errors, messages.opaques
        is_acknowledged = errors == 0
        for code in np.unique(errors[~is_acknowledged]).tolist():
            count = int((errors == code).sum())
            self.tally.note_errors(now_us=now, text=self._client.error_text(code), count=count)
        records = records[is_acknowledged]
        due_us = self._sent_at.times_of(records) if self._plan.rate is None else self._due_us(records)
        self.tally.note(
            now_us=now,
            records=len(records),
            payload_bytes=int(self._values.sizes[records % len(self._values)].sum()),
            latencies_us=now - due_us,
        )
        partitions = self._partitions_of(records)
        np.add.at(self._acknowledged, partitions, 1)
        np.maximum.at(self._next_sequences, partitions, records // self._plan.partitions + 1)

    def _note_library_error(self, text: str) -> None:
        self.tally.note_errors(now_us=now_us(), text=text, count=0)

    def _flush(self, orders: Orders) -> None:
        began = now_us()
        library, handle = self._client.library, self._client.handle
        while left := library.rd_kafka_outq_len(handle):
            patience_s = _FLUSH_STOPPED_S if orders.is_stopped else _FLUSH_S
            if now_us() - began > patience_s * 1e6:
                if orders.is_stopped:
                    return
                raise ClientFailed(
                    f"{self._plan.name}: {left} records of {self._plan.topic} have no answer after {patience_s} s"
                )
            self._client.wait(0.1)
            self._client.take_events(self._note_deliveries)

    def lateness(self) -> bytes | None:
        """Return a histogram of how late records were handed to the library; None without a rate.

        That is no broker's doing, unless the library's queue was full: the generator, or the machine, was too slow.
        """
        if self._plan.rate is None or not self._sent:
            return None
        late = Latencies()
        for first in range(0, self._sent, _MOST_QUEUED):
            records = np.arange(first, min(self._sent, first + _MOST_QUEUED))
            late.record(self._sent_at.times_of(records) - self._due_us(records))
        return late.encoded()

    def rows(self) -> Iterator[Row]:
        """Yield the rows after `run`, also if it failed."""
        yield from self.tally.rows()
        first = 0
        for partition, next_sequence in enumerate(self._next_sequences.tolist()):
            if next_sequence:
                yield self.tally.row(
                    Kind.STREAM,
                    partition=partition,
                    stream=shown_stream(self._plan.stream),
                    first_sequence=first,
                    next_sequence=next_sequence,
                    distinct_records=int(self._acknowledged[partition]),
                )
        for broker, (received, sent) in self._bytes_by_broker.items():
            yield self.tally.row(Kind.BROKER, broker=broker, received_bytes=received, sent_bytes=sent)

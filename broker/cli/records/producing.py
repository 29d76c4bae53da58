"""Producing: records to a topic, in order, until all of them are acknowledged or have failed."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from ottla.broker.cli.records.client import KafkaError, KafkaException, Message, Producer, interruptible
from ottla.broker.cli.records.formats import Record
from ottla.broker.cluster_client.errors import ClusterError

#: The failures whose sentences are shown.
_SHOWN: Final = 5
_POLL_S: Final = 0.1
#: The partition that the hash of the key determines.
_ANY_PARTITION: Final = -1


class Production:
    """The records that one command has written, and those that were refused."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        #: The number of acknowledged records by partition.
        self.written: Counter[int] = Counter()
        self.failed: Counter[str] = Counter()

    def send_all(self, records: Iterable[Record]) -> None:
        """Send records and wait for their acknowledgements, also of those before an iteration that raises.

        Raises ClusterError if some have failed.
        """
        try:
            for record in records:
                self._send(record)
        finally:
            with interruptible():
                self._producer.flush()
        if self.failed:
            reasons = "; ".join(f"{count} x {reason}" for reason, count in self.failed.most_common(_SHOWN))
            raise ClusterError(
                f"{self.failed.total()} of {self.failed.total() + self.written.total()} records were not written: "
                f"{reasons}."
            )

    def _send(self, record: Record) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    key=record.key,
                    value=record.value,
                    on_delivery=self._on_delivery,
                    partition=_ANY_PARTITION if record.partition is None else record.partition,
                    timestamp=record.timestamp_ms or 0,
                    headers=list(record.headers) or None,
                )
            except BufferError:  # the queue is full: acknowledgements make room
                with interruptible():
                    self._producer.poll(_POLL_S)
                continue
            except KafkaException as error:  # too large, or for a partition that the topic does not have
                self.failed[error.args[0].str()] += 1
                return
            self._producer.poll(0)
            return

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.written[message.partition() or 0] += 1
        else:
            self.failed[error.str()] += 1

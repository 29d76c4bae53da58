"""Listeners of the metadata log on this node: all are notified of the same events, in the same order.

    commit      one batch of the log, once; with the records that take effect with it
    snapshot    replaces everything notified before
    leader      the leader of an epoch; the leader's own listeners only after everything committed before its epoch

Metadata transactions (KIP-868) are resolved here, once for all listeners: the records of an open transaction are held
back, and take effect with the batch that ends it. Records that this software does not know stop the node.
Source: RaftClient.Listener, KafkaRaftClient.ListenerContext, MetadataBatchLoader of Kafka 4.3.1.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from ottla.controller.metadata_log.record_batches import DecodedBatch
from ottla.controller.metadata_log.transactions import TRANSACTION_MARKERS, TransactionFilter
from ottla.controller.raft.types import LeaderAndEpoch, OffsetAndEpoch
from ottla.metadata.features import METADATA_VERSION, UNDERSTOOD_FEATURES
from ottla.metadata.image import InvalidMetadata
from ottla.metadata.records import FeatureLevelRecord, MetadataRecord

logger: Final = logging.getLogger(__name__)

UNKNOWN_LEADER: Final = LeaderAndEpoch(None, -1)


class QuorumListener(Protocol):
    """A listener of the metadata log. Called on the event loop, in the order of the log; must not wait.

    A listener that raises stops the node: its state no longer matches the log, and nothing would repair it. A listener
    handles I/O errors itself. Kafka's brokers log such a failure and continue without the change.
    """

    def on_commit(self, records: Sequence[MetadataRecord], base_offset: int, end_offset: int) -> None:
        """One batch is committed, and these records take effect with it.

        Those of a metadata transaction are passed together, with the batch that ends it; outside of transactions the
        records have the offsets from `base_offset` on. A batch of control records has no records here.
        """

    def on_snapshot(self, batches: Iterable[list[MetadataRecord]], snapshot: OffsetAndEpoch) -> None:
        """Replace the state: these records are the whole state before `snapshot.offset`."""

    def on_leader(self, leader: LeaderAndEpoch) -> None:
        """There is a new epoch, or the epoch has a leader now, or its leader has resigned."""


class Listeners:
    """The listeners of one quorum's metadata log."""

    def __init__(self) -> None:
        self._all: list[QuorumListener] = []
        self._transactions = TransactionFilter()
        #: End offset of the last batch that listeners were notified of.
        self.end_offset = 0
        #: Bytes of the log that they were notified of since the start, snapshots not counted.
        self.log_bytes = 0
        self.leader = UNKNOWN_LEADER

    @property
    def is_transaction_open(self) -> bool:
        """Whether records before `end_offset` are not applied until their metadata transaction ends."""
        return self._transactions.is_open

    def add(self, listener: QuorumListener) -> None:
        """Add a listener of all later events."""
        self._all.append(listener)

    def notify_commit(self, batch: DecodedBatch) -> None:
        """Notify: the next batch is committed. Raises InvalidMetadata."""
        assert batch.base_offset == self.end_offset, (batch.base_offset, self.end_offset)
        records = self._taking_effect(batch)
        self.end_offset = batch.end_offset
        self.log_bytes += batch.size_bytes
        self._call(
            [listener.on_commit for listener in self._all], records, batch.base_offset, batch.end_offset
        )

    def notify_snapshot(self, batches: Sequence[list[MetadataRecord]], snapshot: OffsetAndEpoch) -> None:
        """Notify: the log starts at the end of this snapshot. Raises InvalidMetadata."""
        for records in batches:
            _check(records)
        self._transactions = TransactionFilter()
        self.end_offset = snapshot.offset
        self._call([listener.on_snapshot for listener in self._all], batches, snapshot)

    def notify_leader(self, leader: LeaderAndEpoch) -> None:
        """Notify of the leader and epoch, if they have changed. Raises InvalidMetadata."""
        if leader == self.leader:
            return
        self.leader = leader
        self._call([listener.on_leader for listener in self._all], leader)

    def _taking_effect(self, batch: DecodedBatch) -> list[MetadataRecord]:
        """The records that take effect with this batch."""
        records = batch.records
        # Nearly all batches have neither: the set of types costs a tenth of a check of each record.
        kinds = set(map(type, records))
        if self._transactions.is_open or not kinds.isdisjoint(TRANSACTION_MARKERS):
            located = self._transactions.apply(enumerate(records, start=batch.base_offset))
            records = [record for _, record in located]
            _check(records)
        elif FeatureLevelRecord in kinds:
            _check(records)
        return records

    def _call(self, functions: Sequence[Callable[..., None]], *arguments: object) -> None:
        """Call all listeners, then raise the first failure: the others are notified even if one fails."""
        failure: InvalidMetadata | None = None
        for function in functions:
            try:
                function(*arguments)
            except InvalidMetadata as error:
                failure = failure or error
            except Exception as error:
                logger.exception(
                    "%s cannot apply the metadata log at offset %d", function.__qualname__, self.end_offset
                )
                failure = failure or InvalidMetadata(
                    f"{function.__qualname__} cannot apply the metadata log at offset {self.end_offset}: {error!r}"
                )
        if failure is not None:
            raise failure


def _check(records: Iterable[MetadataRecord]) -> None:
    """Raise InvalidMetadata for an unknown metadata.version: it may have records that are not supported here."""
    for record in records:
        if isinstance(record, FeatureLevelRecord) and record.name == METADATA_VERSION:
            known = UNDERSTOOD_FEATURES[METADATA_VERSION]
            if record.feature_level not in known:
                raise InvalidMetadata(
                    f"The cluster's {METADATA_VERSION} is {record.feature_level}; this software supports "
                    f"{known.start} to {known.stop - 1}."
                )

"""The controller of one node: the shell around the decisions. It waits, writes and tells; it decides nothing.

    request --decide--> records --append, replay--> waiting for the disk --flush--> committed
                                                                             |--> subscribers, in order
                                                                             '--> the response

Requests that arrive while the disk is busy are decided, appended and replayed at once, and share the next
flush. Nobody is told of a record before it is committed: a crash may still take it back.

    opened --start: a new epoch--> active --stop--> stopped
                                   active --the disk fails--> failed: refuses everything; the node has to stop
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol

from controller import activation, brokers, quorum_state, snapshots
from controller.api import CONTROLLER_APIS
from controller.metadata_log import MAX_RECORDS_PER_BATCH, MetadataLog
from controller.result import Result
from controller.settings import ConfigValidators, ControllerSettings
from controller.state import ClusterState
from controller.transactions import TransactionFilter
from protocol.errors import KafkaError, NotController, UnsupportedVersion
from protocol.metadata.image import InvalidMetadata, MetadataImage
from protocol.metadata.records import MetadataRecord
from storage.files import Files

__all__ = ["Controller", "InvalidMetadata", "Subscriber"]

logger = logging.getLogger(__name__)

#: Called with committed records and the offset behind them; never from another thread than the loop's.
Subscriber = Callable[[Sequence[MetadataRecord], int], None]

#: Sessions are looked through so many times in one timeout.
_CHECKS_PER_SESSION = 4


class Cancellable(Protocol):
    """A timer that has been set."""

    def cancel(self) -> None:
        """It must not ring any more."""


class _Pending(NamedTuple):
    """Records that are in the log but not committed, and who waits for them."""

    records: Sequence[MetadataRecord]
    end_offset: int
    waiter: "asyncio.Future[None]"


class Controller:
    """The active controller of a cluster with one voter. Made by `open`."""

    def __init__(
        self,
        *,
        log: MetadataLog,
        state: ClusterState,
        transactions: TransactionFilter,
        files: Files,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float],
        run_blocking: Callable[..., Awaitable[Any]],
        call_later: Callable[[float, Callable[[], None]], Cancellable],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._log = log
        self._state = state
        self._transactions = transactions
        self._files = files
        self._now_ms = now_ms
        self._monotonic = monotonic
        self._run_blocking = run_blocking
        self._call_later = call_later
        self._on_failure = on_failure
        self._subscribers: list[Subscriber] = []
        self._pending: deque[_Pending] = deque()
        self._flushing: asyncio.Task[None] | None = None
        self._timer: Cancellable | None = None
        self._is_active = False
        #: Everything before it is on the disk, and subscribers know it.
        self._committed = log.end_offset
        self.epoch = 0

    @classmethod
    def open(
        cls,
        log_dir: Path,
        *,
        settings: ControllerSettings,
        files: Files,
        random: Random,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float],
        run_blocking: Callable[..., Awaitable[Any]],
        call_later: Callable[[float, Callable[[], None]], Cancellable],
        validators: ConfigValidators | None = None,
        is_clean: bool = False,
        on_failure: Callable[[BaseException], None] = lambda error: None,
    ) -> "Controller":
        """Open and replay the metadata log in this log directory. [any thread]

        `is_clean`: this directory was closed as it should be; else the end of the log is looked for.
        `on_failure` is told when the controller cannot go on, because the disk does not take its records.
        Raises InvalidMetadata if the log cannot be understood, and OSError.
        """
        log = MetadataLog.open(log_dir, files=files, random=random, now_ms=now_ms(), is_clean=is_clean)
        state = ClusterState(settings=settings, validators=validators or ConfigValidators(), random=random)
        transactions = TransactionFilter()
        for chunk in log.replay():
            for offset, record in transactions.take(enumerate(chunk.records, start=chunk.base_offset)):
                state.replay(record, offset)
        activation.check_features(state.image)
        return cls(
            log=log,
            state=state,
            transactions=transactions,
            files=files,
            now_ms=now_ms,
            monotonic=monotonic,
            run_blocking=run_blocking,
            call_later=call_later,
            on_failure=on_failure,
        )

    @property
    def image(self) -> MetadataImage:
        """The controller's own image: ahead of what is committed. For tests and tools that only read."""
        return self._state.image

    @property
    def committed_offset(self) -> int:
        """Behind the last record that is committed."""
        return self._committed

    async def start(self) -> None:
        """Begin a new epoch as its leader, and serve. Raises InvalidMetadata and OSError."""
        assert not self._is_active, "the controller was started before"
        await self._run_blocking(self._activate)
        self._commit(self._log.end_offset)
        settings = self._state.settings
        self._state.sessions.start_all(
            self._state.image.brokers.values(),
            gone=[settings.node_id] if settings.hosts_broker else (),
            now_ms=self._session_now_ms(),
        )
        self._is_active = True
        self._set_timer()

    async def stop(self) -> None:
        """Refuse further requests, let those in flight end, and close the log."""
        self._is_active = False
        if self._timer is not None:
            self._timer.cancel()
        if self._flushing is not None:
            await self._flushing
        await self._run_blocking(self._log.close)

    async def request(self, api_key: int, message: Any, context: object = None) -> Any:  # noqa: ANN401
        """Decide and answer once the decision is committed and all subscribers have been told.

        Errors of the request are in the response, as Kafka's are. Raises UnsupportedVersion for requests
        that the controller does not serve, and NotController when it is not active or fails meanwhile.
        """
        api = CONTROLLER_APIS.get(api_key)
        if api is None:
            raise UnsupportedVersion(f"The controller does not serve API key {api_key}.")
        if not self._is_active:
            raise NotController("This node is not the active controller.")
        try:
            result = api.decide(self._state, message, self._session_now_ms())
        except KafkaError as error:
            return api.refuse(message, error)
        await self._carry_out(result)
        return result.response

    def subscribe(self, subscriber: Subscriber) -> None:
        """Tell all committed records, from the first on, and then those to come. Raises InvalidMetadata.

        The past is told before this returns; the log is read once more for it.
        """
        transactions = TransactionFilter()
        for chunk in self._log.replay(self._committed):
            located = transactions.take(enumerate(chunk.records, start=chunk.base_offset))
            subscriber([record for _, record in located], chunk.end_offset)
        self._subscribers.append(subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Tell it nothing more."""
        self._subscribers.remove(subscriber)

    # -- activation ----------------------------------------------------------------------------------

    def _activate(self) -> None:
        """Write what an epoch begins with. Nobody is served yet. [any thread]"""
        log, settings, directory = self._log, self._state.settings, self._log.directory
        is_empty = log.end_offset == 0
        if is_empty:
            activation.format_directory(directory, settings, self._files, now_ms=self._now_ms())
        voters = snapshots.read_first_voters(directory, self._files)
        epoch = activation.next_epoch(
            quorum_state.read(directory, self._files), voters, settings, last_epoch=log.last_epoch
        )
        # Before the first record of the epoch: whatever happens now, it is never used again.
        quorum_state.write(directory, epoch, self._files)
        self.epoch = epoch.leader_epoch
        messages = activation.epoch_start(settings, voters if is_empty else None)
        log.append_control(messages, epoch=self.epoch, now_ms=self._now_ms())
        records = activation.later_records(is_transaction_open=self._transactions.is_open)
        metadata_version = self._state.image.metadata_version
        if metadata_version is None:  # an empty log, or one whose beginning was cut short
            path = directory.parent / snapshots.BOOTSTRAP_FILE
            bootstrap = [record for found in snapshots.read(path, self._files) for record in found]
            first, metadata_version = activation.first_records(bootstrap, settings)
            records += first
        if records:
            base_offset = log.append(
                records, epoch=self.epoch, metadata_version=metadata_version, now_ms=self._now_ms()
            ).base_offset
            for offset, record in self._transactions.take(enumerate(records, start=base_offset)):
                self._state.replay(record, offset)
        activation.check_features(self._state.image)
        self._state.next_offset = log.end_offset
        log.flush(log.end_offset)

    # -- from a decision to its answer ---------------------------------------------------------------

    async def _carry_out(self, result: Result[Any]) -> None:
        """Append and replay the records; returns when they, and all before them, are committed."""
        waiter = self._begin(result)
        if waiter is not None:
            await waiter

    def _begin(self, result: Result[Any]) -> "asyncio.Future[None] | None":
        """Append, replay and see to it that it gets committed; None if all is committed already."""
        try:
            self._append(result)
        except (KafkaError, OSError) as error:
            self._fail(error)
            raise NotController("The controller has failed.") from error
        if self._log.end_offset == self._committed:
            return None
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._pending.append(_Pending(result.records, self._log.end_offset, waiter))
        if self._flushing is None:
            self._flushing = loop.create_task(self._flush(), name="metadata-flush")
        return waiter

    def _append(self, result: Result[Any]) -> None:
        records = result.records
        assert not result.is_atomic or len(records) <= MAX_RECORDS_PER_BATCH, len(records)
        for start in range(0, len(records), MAX_RECORDS_PER_BATCH):
            batch = records[start : start + MAX_RECORDS_PER_BATCH]
            base_offset = self._log.append(
                batch,
                epoch=self.epoch,
                metadata_version=self._state.metadata_version,
                now_ms=self._now_ms(),
            ).base_offset
            for offset, record in enumerate(batch, start=base_offset):
                self._state.replay(record, offset)
        if result.on_appended is not None:
            result.on_appended(self._log.end_offset)

    async def _flush(self) -> None:
        """Flush until nothing waits; what comes while the disk is busy goes with the next flush."""
        try:
            while self._pending:
                end_offset = self._log.end_offset
                await self._run_blocking(self._log.flush, end_offset)
                self._commit(end_offset)
        except (KafkaError, OSError) as error:
            self._fail(error)
        finally:
            self._flushing = None

    def _commit(self, end_offset: int) -> None:
        """Everything before `end_offset` is on the disk: tell subscribers, then whoever waits."""
        self._log.update_high_watermark(end_offset)
        self._committed = end_offset
        while self._pending and self._pending[0].end_offset <= end_offset:
            done = self._pending.popleft()
            for subscriber in self._subscribers if done.records else ():
                self._tell(subscriber, done)
            if not done.waiter.done():  # its request may have been given up
                done.waiter.set_result(None)

    def _tell(self, subscriber: Subscriber, done: _Pending) -> None:
        try:
            subscriber(done.records, done.end_offset)
        except Exception:
            # Its bug, or its failing disk: the records are committed, and the others must hear of them.
            logger.exception("a subscriber could not follow the metadata up to %d", done.end_offset)

    def _fail(self, error: BaseException) -> None:
        """The disk does not take what was decided: what is in memory is no longer what the log says."""
        logger.critical("the metadata log cannot be written: the controller stops: %r", error)
        self._is_active = False
        if self._timer is not None:
            self._timer.cancel()
        while self._pending:
            waiter = self._pending.popleft().waiter
            if not waiter.done():
                waiter.set_exception(NotController("The controller has failed."))
        self._on_failure(error)

    # -- sessions ------------------------------------------------------------------------------------

    def _session_now_ms(self) -> int:
        return int(self._monotonic() * 1000)

    def _set_timer(self) -> None:
        delay_s = self._state.settings.broker_session_timeout_ms / _CHECKS_PER_SESSION / 1000
        self._timer = self._call_later(delay_s, self._check_sessions)

    def _check_sessions(self) -> None:
        """Fence who has been silent for too long, one after the other."""
        while self._is_active:
            result = brokers.expire_sessions(self._state, now_ms=self._session_now_ms())
            if not result.records:
                break
            logger.warning("fencing broker %s: its session has expired", result.response[0])
            if (waiter := self._begin(result)) is not None:
                # Nobody waits for it; that it failed is told by `_fail`.
                waiter.add_done_callback(lambda done: done.exception())
        if self._is_active:
            self._set_timer()

"""Raft's driver: `Raft` decides; this waits for events and carries out effects (writes, requests, notifications).

    requests of other nodes --|                          |--> quorum-state, fsync      (off the loop, awaited)
    responses, failures     --|                          |--> requests to other nodes  (a task each)
    timers                  --|--> a queue --> Raft -----|--> responses to requests
    append --> the log      --|    one at a time         |--> listeners: commits, snapshots, leaders

It is one actor: the machine gets the next event only after every effect of the previous one was carried out, in
order. Only `append` does not wait for its turn: records reach the log (not the disk) at once, and the next flush
covers all that were appended while the disk was busy (group commit).

A process has one quorum, whatever its roles: a controller's is a voter, a broker's an observer. All listeners get the
same notifications in the same order: each committed batch once, a snapshot that replaces everything, and changes of
the leader (`controller.raft.listener_dispatch`).

    opened --start--> running --stop--> stopped
                              --I/O error, or an unknown record in the log--> failed: the node has to stop

Source: KafkaRaftClient of Kafka 4.3.1 (poll, ListenerContext), KafkaRaftManager; KIP-595, KIP-630.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, Protocol

from controller.metadata import quorum_state
from controller.metadata.log import MetadataLog
from controller.metadata.log_cleaning import CLEAN_INTERVAL_MS, MetadataLogSettings
from controller.metadata.maintenance import MetadataLogMaintenance
from controller.raft.effects import (
    Committed,
    Effect,
    Fatal,
    Flush,
    Freeze,
    LeaderChanged,
    Persist,
    Reply,
    Send,
    SnapshotLoaded,
    Stopped,
)
from controller.raft.listener_dispatch import ListenerDispatcher
from controller.raft.listeners import Listeners, QuorumListener
from controller.raft.machine import Raft
from controller.raft.types import Address, LeaderAndEpoch, RaftSettings
from controller.raft.voters import VoterSet
from protocol.errors import ErrorCode, KafkaError, NotController, UnsupportedVersion
from protocol.messages.vote import VoteRequest, VoteResponse
from protocol.metadata.image import InvalidMetadata, MetadataImage
from protocol.metadata.records import MetadataRecord
from protocol.schema import Request, Response
from storage.files import Files

logger: Final = logging.getLogger(__name__)

#: Limit of requests without a response yet: each voter and observer has one or two, so more are a fault.
MAX_WAITING_REQUESTS: Final = 10_000
#: Limit of queued events: beyond it, requests are refused with NotController, and their senders retry. Requests queue
#: up while the disk does not respond, since peers time out and retry. Events of this node itself are not refused, but
#: bounded: one for each request that it has sent, one for all appends, one for a resignation.
MAX_WAITING_EVENTS: Final = 20_000


class SendRequest(Protocol):
    """Sends a request to another node."""

    def __call__(self, to: Address, message: Request, timeout_ms: int) -> Awaitable[Response]:
        """Send and wait for the response. Raises OSError, TimeoutError or KafkaError if there is none."""


class Cancellable(Protocol):
    """A timer that has been set."""

    def cancel(self) -> None:
        """Cancel the timer: its function is not called."""


class QuorumFailed(Exception):
    """Raft cannot continue without risk to committed records: the node has to stop."""


class _Event(NamedTuple):
    #: On the machine's clock.
    arrived_ms: int
    decide: Callable[[int], list[Effect]]


class Quorum:
    """The replica of the metadata log on this node, voter or observer. Created by `open`."""

    def __init__(
        self,
        *,
        raft: Raft,
        log: MetadataLog,
        settings: RaftSettings,
        files: Files,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float],
        run_blocking: Callable[..., Awaitable[Any]],
        call_later: Callable[[float, Callable[[], object]], Cancellable],
        send: SendRequest,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._raft = raft
        self._log = log
        self._settings = settings
        self._files = files
        self._now_ms = now_ms
        self._monotonic = monotonic
        self._run_blocking = run_blocking
        self._call_later = call_later
        self._send = send
        self._on_failure = on_failure
        # The machine's clock is monotonic, but starts as the wall clock: it gives records their timestamps.
        self._clock_start_ms = now_ms() - int(monotonic() * 1000)
        self._clean_at_ms = self._clock_start_ms + int(monotonic() * 1000) + CLEAN_INTERVAL_MS
        self._events: deque[_Event] = deque()
        self._is_append_queued = False
        self._wake = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._settled: asyncio.Future[None] | None = None
        self._is_stopped = False
        self._failure: BaseException | None = None
        self._sending: dict[asyncio.Task[None], None] = {}
        self._waiting: dict[asyncio.Future[Response], None] = {}
        #: Effects that were decided outside of the queue; they are carried out before the next event.
        self._owed: deque[list[Effect]] = deque()
        self._listeners = Listeners()
        self._dispatcher = ListenerDispatcher(
            log,
            self._listeners,
            node_id=settings.node_id,
            epoch_start_offset=lambda: raft.epoch_start_offset,
            run_blocking=run_blocking,
        )
        self._maintenance = MetadataLogMaintenance(log, now_ms=now_ms, run_blocking=run_blocking)

    @classmethod
    def open(
        cls,
        log_dir: Path,
        *,
        settings: RaftSettings,
        files: Files,
        random: Random,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float],
        run_blocking: Callable[..., Awaitable[Any]],
        call_later: Callable[[float, Callable[[], object]], Cancellable],
        send: SendRequest,
        on_failure: Callable[[BaseException], None] = lambda error: None,
        is_clean: bool = False,
        log_settings: MetadataLogSettings | None = None,
    ) -> "Quorum":
        """Open the metadata log in this log directory, or create it. [any thread]

        `is_clean`: this directory was shut down cleanly; else the log's end is recovered.
        `on_failure` is called with the error that stops the node after `start`. Raises InvalidMetadata and OSError.
        """
        log = MetadataLog.open(
            log_dir,
            files=files,
            random=random,
            now_ms=now_ms(),
            is_clean=is_clean,
            settings=log_settings or MetadataLogSettings(),
        )
        election = quorum_state.read(log.directory, files)
        others = set() if election is None else set(election.voters) - {settings.node_id}
        if others and list(settings.static_voters) == [settings.node_id]:
            # Kafka does not check this. A node configured as the only voter must not lead alone with the log
            # directory of a larger quorum.
            raise InvalidMetadata(
                f"{log.directory / quorum_state.FILE_NAME} says that {sorted(others)} vote, too, but node "
                f"{settings.node_id} is configured as the only voter."
            )
        return cls(
            raft=Raft(settings=settings, log=log, election=election, random=random),
            log=log,
            settings=settings,
            files=files,
            now_ms=now_ms,
            monotonic=monotonic,
            run_blocking=run_blocking,
            call_later=call_later,
            send=send,
            on_failure=on_failure,
        )

    async def start(self) -> None:
        """Start the actor; returns once nothing is due any more.

        A single voter leads then, and its listeners were notified of all that it has written as the leader. Raises
        InvalidMetadata for records that are unknown or invalid, QuorumFailed and OSError.
        """
        assert self._worker is None, "the quorum was started before"
        loop = asyncio.get_running_loop()
        self._settled = loop.create_future()
        self._worker = loop.create_task(self._work(), name="quorum")
        await self._settled

    async def stop(self) -> None:
        """Stop, and close the log; a leader first sends EndQuorumEpoch to the voters. Raises OSError."""
        if self._worker is not None:
            if not self._worker.done():
                self._enqueue(self._raft.shutdown)
                await asyncio.wait([self._worker])
            self._end()
            await self._maintenance.end()
        await self._run_blocking(self._log.close)

    # -- state -----------------------------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        """This node's id."""
        return self._settings.node_id

    @property
    def voters(self) -> VoterSet:
        """The voter set as of the end of the log."""
        return self._raft.voters

    @property
    def is_only_voter(self) -> bool:
        """Whether this node is the only voter."""
        return self._raft.voters.is_only_voter(self._settings.key)

    @property
    def kraft_version(self) -> int:
        """The finalized level of kraft.version, as of the end of the log."""
        return self._raft.kraft_version

    @property
    def leader(self) -> LeaderAndEpoch:
        """The leader as far as this node knows; if it is this node, its listeners may not be notified of that yet."""
        return self._dispatcher.leader

    def leader_address(self) -> Address | None:
        """The leader's address on the controllers' listener; None if it is not known."""
        return self._raft.leader_address

    @property
    def end_offset(self) -> int:
        """The log end offset: where the next record is appended."""
        return self._log.end_offset

    @property
    def applied_offset(self) -> int:
        """Last applied offset, exclusive: the end of the last batch that listeners were notified of; committed."""
        return self._listeners.end_offset

    @property
    def applied_bytes(self) -> int:
        """Bytes of the log that listeners were notified of since the start, snapshots not counted."""
        return self._listeners.log_bytes

    @property
    def is_transaction_open(self) -> bool:
        """Whether records before `applied_offset` are held back until their metadata transaction ends."""
        return self._listeners.is_transaction_open

    @property
    def has_failed(self) -> bool:
        """Whether this node has to stop."""
        return self._failure is not None

    # -- the log's writers and readers -----------------------------------------------------------------

    def append(self, records: Sequence[MetadataRecord], *, epoch: int, metadata_version: int) -> int:
        """Append records as one batch, not yet durable; returns its base offset. Only for the leader of `epoch`.

        Listeners are notified once it is committed. Raises NotController, also on an I/O error, which stops the node.
        """
        if self._failure is not None or self._is_stopped or not self._raft.is_leader_of(epoch):
            raise NotController("This node does not lead the metadata quorum any more.")
        try:
            chunk = self._log.append(
                records, epoch=epoch, metadata_version=metadata_version, now_ms=self._now_ms()
            )
        except (KafkaError, OSError) as error:
            self._fail(error)
            raise NotController("The metadata log cannot be written.") from error
        self._dispatcher.appended(chunk)
        if not self._is_append_queued:
            self._is_append_queued = True
            self._enqueue(self._decide_appended)
        return chunk.base_offset

    def resign(self, epoch: int) -> None:
        """Resign the leadership of this epoch; ignored if this node does not lead it."""
        self._enqueue(lambda now_ms: self._raft.resign(now_ms, epoch))

    def upgrade_kraft_version(self, level: int, *, epoch: int, validate_only: bool = False) -> None:
        """Append the control records of a higher kraft.version. Raises NotController, InvalidUpdateVersion."""
        effects = self._raft.upgrade_kraft_version(
            self._raft_now_ms(), epoch=epoch, version=level, validate_only=validate_only
        )
        # The records are in the log, as after `append`. Their effects are carried out before those of later events.
        self._owed.append(effects)
        self._wake.set()

    async def handle(self, request: Request, *, listener_name: str | None = None) -> Response:
        """Handle another node's request about the quorum: Vote, Fetch, DescribeQuorum, AddRaftVoter, ...

        `listener_name`: the listener that received it; None: the first. A Fetch without news waits up to its
        `max_wait_ms`. Raises NotController when this node stops meanwhile, or has too many requests.
        """
        if self._failure is not None or self._is_stopped:
            raise NotController("This node does not take part in the metadata quorum.")
        if len(self._waiting) >= MAX_WAITING_REQUESTS or len(self._events) >= MAX_WAITING_EVENTS:
            raise NotController("Too many requests wait for this node's replica of the metadata log.")
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[answer] = None
        answer.add_done_callback(self._waiting.pop)
        self._enqueue(lambda now_ms: self._raft.receive(now_ms, request, answer, listener_name=listener_name))
        return await answer

    def subscribe(self, listener: QuorumListener) -> None:
        """Register a listener; listeners are called in the order of registration. Only before `start`."""
        assert self._worker is None, "the log is told once, from its beginning"
        self._listeners.add(listener)

    def write_snapshot(self, copy: Callable[[], MetadataImage]) -> bool:
        """Begin to write the image that `copy` returns as the snapshot before `applied_offset`; whether it was begun.

        False if a snapshot is being written or exists already, or while a metadata transaction is open: its records
        are before `applied_offset`, but not in the image. Raises InvalidMetadata and OSError.
        """
        if self._is_stopped or self.is_transaction_open:
            return False
        last_offset = self.applied_offset - 1
        voters = self._raft.voters_at(last_offset)
        return self._maintenance.begin_snapshot(
            self.applied_offset,
            copy,
            kraft_version=self._raft.kraft_version_at(last_offset),
            voters=None if voters is None else voters.to_record(),
        )

    # -- the actor -------------------------------------------------------------------------------------

    def _raft_now_ms(self) -> int:
        return self._clock_start_ms + int(self._monotonic() * 1000)

    def _enqueue(self, decide: Callable[[int], list[Effect]]) -> None:
        self._events.append(_Event(self._raft_now_ms(), decide))
        self._wake.set()

    def _decide_appended(self, now_ms: int) -> list[Effect]:
        self._is_append_queued = False
        return self._raft.appended(now_ms, self._log.end_offset)

    async def _work(self) -> None:
        assert self._settled is not None
        try:
            snapshot = self._log.latest_snapshot
            if snapshot is not None and snapshot.offset > 0:
                await self._dispatcher.load_snapshot(snapshot)
            await self._carry_out(self._raft.start(self._raft_now_ms()))
            while not self._is_stopped:
                if self._owed:
                    await self._carry_out(self._owed.popleft())
                elif (decide := self._next()) is not None:
                    await self._carry_out(decide(self._raft_now_ms()))
                else:
                    if not self._settled.done():
                        self._settled.set_result(None)
                    await self._rest()
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._fail(error)  # the awaited operation was cancelled, not this task
        except Exception as error:  # noqa: BLE001 (told to the node, which stops)
            self._fail(error)

    def _next(self) -> Callable[[int], list[Effect]] | None:
        """The machine's next event; None if there is none.

        An event that arrived before the deadline comes first, however long the actor was blocked by the disk: a slow
        disk must not look like a silent leader or follower.
        """
        deadline_ms = self._raft.next_deadline_ms
        if self._events and self._events[0].arrived_ms <= deadline_ms:
            return self._events.popleft().decide
        if deadline_ms <= self._raft_now_ms():
            return self._raft.tick
        return self._events.popleft().decide if self._events else None

    async def _rest(self) -> None:
        """Wait for an event, the machine's deadline, or the next cleaning of the log."""
        self._wake.clear()
        deadline_ms = min(self._raft.next_deadline_ms, self._clean_at_ms)
        timer = self._call_later(max(0, deadline_ms - self._raft_now_ms()) / 1000, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
        if self._raft_now_ms() >= self._clean_at_ms:
            self._clean_at_ms = self._raft_now_ms() + CLEAN_INTERVAL_MS
            await self._maintenance.clean()

    async def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if self._failure is not None:
                return
            match effect:
                case Persist() | Flush() | Freeze():
                    await self._write(effect)
                case Send():
                    task = asyncio.get_running_loop().create_task(self._ask(effect), name="quorum-send")
                    self._sending[task] = None
                    task.add_done_callback(self._sending.pop)
                case Reply():
                    _reply(effect)
                case Committed():
                    await self._dispatcher.commits(effect.high_watermark)
                case LeaderChanged():
                    self._dispatcher.change_leader(effect.leader)
                case SnapshotLoaded():
                    await self._dispatcher.load_snapshot(effect.snapshot)
                case Stopped():
                    self._is_stopped = True
                case Fatal():
                    raise QuorumFailed(effect.reason)

    async def _write(self, effect: Persist | Flush | Freeze) -> None:
        """Carry out in a thread what waits for the disk.

        The event that follows is put in front of the queued ones, since the write has begun before them.
        """
        match effect:
            case Persist():
                await self._run_blocking(quorum_state.write, self._log.directory, effect.state, self._files)
            case Flush():
                end_offset = effect.end_offset
                await self._run_blocking(self._log.flush, end_offset)
                self._events.appendleft(_Event(0, lambda now_ms: self._raft.flushed(now_ms, end_offset)))
            case Freeze():
                corrupt: KafkaError | None = None
                try:
                    await self._run_blocking(effect.download.freeze)
                except KafkaError as error:
                    corrupt = error
                self._events.appendleft(_Event(0, lambda now_ms: self._raft.frozen(now_ms, corrupt)))

    async def _ask(self, sent: Send) -> None:
        response: Response | None = None
        try:
            response = await self._send(sent.to, sent.message, sent.timeout_ms)
        except (KafkaError, OSError, TimeoutError) as error:
            logger.debug(
                "no answer of node %d at %s to %s: %r", sent.node_id, sent.to, type(sent.message), error
            )
            if isinstance(error, UnsupportedVersion) and isinstance(sent.message, VoteRequest):
                # The voter does not support pre-votes (KIP-996): Raft then requests its vote at once.
                response = VoteResponse(error_code=ErrorCode.unsupported_version)
        except Exception:
            logger.exception("a request to node %d at %s has failed", sent.node_id, sent.to)
        self._enqueue(lambda now_ms: self._raft.answered(now_ms, sent, response))

    def _fail(self, error: BaseException) -> None:
        """Stop all processing and notify the node: the state in memory may differ from the log."""
        if self._failure is not None:
            return
        self._failure = error
        self._end()
        if self._settled is not None and not self._settled.done():
            self._settled.set_exception(error)
            return
        is_expected = isinstance(error, KafkaError | OSError | InvalidMetadata | QuorumFailed)
        logger.critical(
            "this node cannot go on with the metadata log: %r", error, exc_info=None if is_expected else error
        )
        self._on_failure(error)

    def _end(self) -> None:
        """End leadership, cancel the requests in flight, and refuse those that wait for a response."""
        self._is_stopped = True
        self._wake.set()
        with suppress(InvalidMetadata):  # a listener that cannot follow any more, and this is the end anyway
            self._dispatcher.end()
        for task in list(self._sending):
            task.cancel()
        for answer in list(self._waiting):
            if not answer.done():
                answer.set_exception(NotController("This node leaves the metadata quorum."))


def _reply(effect: Reply) -> None:
    assert isinstance(effect.token, asyncio.Future)
    if not effect.token.done():  # the request may have been cancelled
        effect.token.set_result(effect.response)

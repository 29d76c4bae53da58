"""Raft's driver: `Raft` decides; this waits for events and carries out effects (writes, requests, notifications).

    requests of other nodes --|                          |--> quorum-state, fsync      (off the loop, awaited)
    responses, failures     --|                          |--> requests to other nodes  (a task each)
    timers                  --|--> a queue --> Raft -----|--> responses to requests
    append --> the log      --|    one at a time         |--> listeners: commits, snapshots, leaders

It is one actor: the machine handles the next event only after every effect of the previous one was carried out, in
order. Only appends do not wait for their turn: records reach the log (not the disk) at once, and the next flush
covers all that were appended while the disk was busy (group commit).

    add          an event at the queue's end, with the time of arrival
    add_result   an event at its front: the result of a write that began before the queued events arrived
    next         the next event; events that arrived before the machine's deadline precede the deadline

    created --start--> running --stop--> stopped
                               --I/O error, or an unknown record in the log--> failed: the node has to stop

Source: KafkaRaftClient.poll, KafkaRaftClientDriver, RaftMessageQueue of Kafka 4.3.1; KIP-595.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol, assert_never

from ottla.controller.metadata_log import quorum_state
from ottla.controller.metadata_log.log import MetadataLog
from ottla.controller.metadata_log.log_cleaning import CLEAN_INTERVAL_MS
from ottla.controller.quorum.election_times import ElectionTimes
from ottla.controller.quorum.listener_dispatch import ListenerDispatcher
from ottla.controller.quorum.log_progress import LogProgress
from ottla.controller.quorum.maintenance import MetadataLogMaintenance
from ottla.controller.raft.effects import (
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
from ottla.controller.raft.machine import Raft
from ottla.controller.raft.messages import QuorumRequest, QuorumResponse
from ottla.controller.raft.types import Address
from ottla.metadata.image import InvalidMetadata
from ottla.protocol.errors import ErrorCode, KafkaError, NotController, UnsupportedVersion
from ottla.protocol.messages.vote import VoteRequest, VoteResponse
from ottla.protocol.schema import Request, Response
from ottla.runtime import Pool, Runtime
from ottla.runtime.windows import IdleRatio
from ottla.storage.files import Files

logger: Final = logging.getLogger(__name__)

#: Limit of requests without a response yet: each voter and observer has one or two, so more are a fault.
MAX_PENDING_REQUESTS: Final = 10_000
#: Limit of decisions whose effects are not carried out yet (upgrades of kraft.version, most of them only validated).
MAX_DECISIONS: Final = 1_000


#: Limit of queued events: beyond it, requests are refused with NotController, and their senders retry. Requests queue
#: up while the disk does not respond, since peers time out and retry. Events of this node itself are not refused, but
#: bounded: one for each request that it has sent, one for all appends, one for a resignation.
MAX_QUEUED_EVENTS: Final = 20_000

#: One event: a function of the time on the machine's clock to the machine's effects.
Decide = Callable[[int], list[Effect]]


class _Event(NamedTuple):
    #: On the machine's clock.
    arrived_ms: int
    decide: Decide


class EventQueue:
    """The queue of the Raft machine's events, and the signal that wakes its only reader."""

    def __init__(self) -> None:
        #: At most MAX_QUEUED_EVENTS, and this node's own.
        self._events: deque[_Event] = deque()
        self._wakeup = asyncio.Event()

    def __len__(self) -> int:
        return len(self._events)

    @property
    def is_full(self) -> bool:
        """Whether the queue is full, so that requests must be refused."""
        return len(self._events) >= MAX_QUEUED_EVENTS

    def add(self, decide: Decide, *, now_ms: int) -> None:
        """Add an event, and wake the reader."""
        self._events.append(_Event(now_ms, decide))
        self._wakeup.set()

    def add_result(self, decide: Decide) -> None:
        """Add the result of a write, in front: the write has begun before the queued events."""
        self._events.appendleft(_Event(0, decide))

    def next(self, *, deadline_ms: int, now_ms: int, tick: Decide) -> Decide | None:
        """The machine's next event, `tick` if its deadline is due; None if there is none.

        An event that arrived before the deadline precedes it, however long the driver was blocked by the disk: a slow
        disk must not look like a silent leader or follower.
        """
        if self._events and self._events[0].arrived_ms <= deadline_ms:
            return self._events.popleft().decide
        if deadline_ms <= now_ms:
            return tick
        return self._events.popleft().decide if self._events else None

    def wakeup(self) -> None:
        """Wake the reader: a deadline is due, or the driver stops."""
        self._wakeup.set()

    def clear_wakeup(self) -> None:
        """Clear the signal after the reader has seen everything, so that the next `wait` returns after the
        next wakeup.
        """
        self._wakeup.clear()

    async def wait(self) -> None:
        """Wait for an event or a wakeup."""
        await self._wakeup.wait()


class SendRequest(Protocol):
    """Sends a request to another node."""

    def __call__(self, to: Address, message: Request, timeout_ms: int) -> Awaitable[QuorumResponse]:
        """Send and wait for the response. Raises OSError, TimeoutError or KafkaError if there is none."""


class QuorumFailed(Exception):
    """Raft cannot continue without risk to committed records: the node has to stop."""


class RaftDriver:
    """The actor of one replica. `start` it once."""

    def __init__(
        self,
        raft: Raft,
        log: MetadataLog,
        *,
        files: Files,
        runtime: Runtime,
        dispatcher: ListenerDispatcher,
        maintenance: MetadataLogMaintenance,
        send: SendRequest,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._raft = raft
        self._log = log
        self._files = files
        self._runtime = runtime
        self._dispatcher = dispatcher
        self._maintenance = maintenance
        self._send = send
        self._on_failure = on_failure
        # The machine's clock is monotonic, but starts as the wall clock: timestamps of records are taken from it.
        self._clock_start_ms = runtime.now_ms() - int(runtime.monotonic() * 1000)
        self._clean_at_ms = self.now_ms() + CLEAN_INTERVAL_MS
        self._queue = EventQueue()
        self._is_append_queued = False
        self._worker: asyncio.Task[None] | None = None
        #: Done when nothing is due for the first time after the start.
        self._started: asyncio.Future[None] | None = None
        self._is_stopped = False
        self.elections = ElectionTimes(runtime.monotonic)
        self.progress = LogProgress(runtime.monotonic, log.end_offset)
        self._began_s = runtime.monotonic()
        #: For how long the actor has waited for events, and since when it waits now.
        self._waited_s = 0.0
        self._waits_since_s: float | None = None
        self.idle = IdleRatio(runtime.monotonic, self._busy_s)
        #: Why this node has to stop.
        self.failure: BaseException | None = None
        self._sending: dict[asyncio.Task[None], None] = {}
        #: The responses that requests wait for; at most MAX_PENDING_REQUESTS.
        self._pending: dict[asyncio.Future[Response], None] = {}
        #: Effects that were decided outside of the queue, carried out before the next event; at most MAX_DECISIONS.
        self._decided: deque[list[Effect]] = deque()

    def now_ms(self) -> int:
        """The time on the machine's clock."""
        return self._clock_start_ms + int(self._runtime.monotonic() * 1000)

    @property
    def is_started(self) -> bool:
        """Whether `start` was called."""
        return self._worker is not None

    @property
    def is_running(self) -> bool:
        """Whether events are processed: this node has neither failed nor stopped."""
        return self.failure is None and not self._is_stopped

    async def start(self) -> None:
        """Start the actor; returns once nothing is due any more. Raises InvalidMetadata, QuorumFailed, OSError."""
        assert self._worker is None, "the driver was started before"
        self._started = self._runtime.loop.create_future()
        self._worker = self._runtime.create_task(self._run(), name="quorum")
        await self._started

    async def stop(self) -> None:
        """Stop; a leader first sends EndQuorumEpoch to the voters."""
        if self._worker is not None:
            if not self._worker.done():
                self.enqueue(self._raft.shutdown)
                await asyncio.wait([self._worker])
            self._end()
            await self._maintenance.stop()

    # -- events ----------------------------------------------------------------------------------------

    def enqueue(self, decide: Decide) -> None:
        """Queue an event of this node; it is not refused."""
        self._queue.add(decide, now_ms=self.now_ms())

    async def receive(self, request: QuorumRequest, *, listener_name: str | None) -> Response:
        """Queue another node's request, and wait for the response. Raises NotController if it must be refused."""
        if not self.is_running:
            raise NotController("This node's replica of the metadata log is stopped.")
        if len(self._pending) >= MAX_PENDING_REQUESTS or self._queue.is_full:
            raise NotController("Too many requests wait for this node's replica of the metadata log.")
        answer: asyncio.Future[Response] = self._runtime.loop.create_future()
        self._pending[answer] = None
        answer.add_done_callback(self._pending.pop)
        self.enqueue(lambda now_ms: self._raft.receive(now_ms, request, answer, listener_name=listener_name))
        return await answer

    def appended(self) -> None:
        """The leader has appended to the log. One event covers all appends until its turn."""
        self.progress.observe(self._raft.role, self._log.end_offset)
        if not self._is_append_queued:
            self._is_append_queued = True
            self.enqueue(self._decide_appended)

    def _decide_appended(self, now_ms: int) -> list[Effect]:
        self._is_append_queued = False
        return self._raft.appended(now_ms, self._log.end_offset)

    def decide_now(self, decide: Decide) -> None:
        """Decide without waiting for a turn; the effects are carried out before those of later events.

        Raises NotController if too many decisions wait for that, and what `decide` raises.
        """
        if len(self._decided) >= MAX_DECISIONS:
            raise NotController("Too many requests wait for this node's replica of the metadata log.")
        self._decided.append(decide(self.now_ms()))
        self._queue.wakeup()

    # -- the actor -------------------------------------------------------------------------------------

    async def _run(self) -> None:
        assert self._started is not None
        try:
            snapshot = self._log.latest_snapshot
            if snapshot is not None and snapshot.offset > 0:
                await self._dispatcher.load_snapshot(snapshot)
            await self._carry_out(self._raft.start(self.now_ms()))
            while not self._is_stopped:
                if self._decided:
                    await self._carry_out(self._decided.popleft())
                elif (decide := self._next_event()) is not None:
                    effects = decide(self.now_ms())
                    self.elections.observe(self._raft.role)
                    self.progress.observe(self._raft.role, self._log.end_offset)
                    await self._carry_out(effects)
                else:
                    if not self._started.done():
                        self._started.set_result(None)
                    await self._wait()
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self.fail(error)  # the awaited operation was cancelled, not this task
        except Exception as error:  # noqa: BLE001 (reported to the node, which stops)
            self.fail(error)

    def _busy_s(self) -> float:
        """For how long the actor has not waited for events: it decided, or waited for the disk."""
        now_s, since_s = self._runtime.monotonic(), self._waits_since_s
        waits_s = 0.0 if since_s is None else now_s - since_s
        return now_s - self._began_s - self._waited_s - waits_s

    def _next_event(self) -> Decide | None:
        return self._queue.next(
            deadline_ms=self._raft.next_deadline_ms, now_ms=self.now_ms(), tick=self._raft.tick
        )

    async def _wait(self) -> None:
        """Wait for an event, the machine's deadline, or the next cleaning of the log."""
        self._queue.clear_wakeup()
        deadline_ms = min(self._raft.next_deadline_ms, self._clean_at_ms)
        timer = self._runtime.call_later(max(0, deadline_ms - self.now_ms()) / 1000, self._queue.wakeup)
        self._waits_since_s = self._runtime.monotonic()
        try:
            await self._queue.wait()
        finally:
            timer.cancel()
            self._waited_s += self._runtime.monotonic() - self._waits_since_s
            self._waits_since_s = None
        if self.now_ms() >= self._clean_at_ms:
            self._clean_at_ms = self.now_ms() + CLEAN_INTERVAL_MS
            await self._maintenance.clean()

    async def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if self.failure is not None:
                return
            match effect:
                case Persist() | Flush() | Freeze():
                    await self._write(effect)
                case Send():
                    task = self._runtime.create_task(self._send_request(effect), name="quorum-send")
                    self._sending[task] = None
                    task.add_done_callback(self._sending.pop)
                case Reply():
                    _reply(effect)
                case Committed():
                    self.progress.committed(effect.high_watermark)
                    await self._dispatcher.dispatch_committed(effect.high_watermark)
                case LeaderChanged():
                    self._dispatcher.change_leader(effect.leader)
                case SnapshotLoaded():
                    await self._dispatcher.load_snapshot(effect.snapshot)
                case Stopped():
                    self._is_stopped = True
                case Fatal():
                    raise QuorumFailed(effect.reason)
                case _:
                    assert_never(effect)

    async def _write(self, effect: Persist | Flush | Freeze) -> None:
        """Carry out, in a thread, an effect that waits for the disk; its result is the next event."""
        run_blocking = self._runtime.run_blocking
        match effect:
            case Persist():
                await run_blocking(
                    quorum_state.write, self._log.directory, effect.state, self._files, pool=Pool.METADATA
                )
            case Flush():
                end_offset = effect.end_offset
                await run_blocking(self._log.flush, end_offset, pool=Pool.METADATA)
                self._queue.add_result(lambda now_ms: self._raft.flushed(now_ms, end_offset))
            case Freeze():
                corrupt: KafkaError | None = None
                try:
                    await run_blocking(effect.download.freeze, pool=Pool.METADATA)
                except KafkaError as error:
                    corrupt = error
                self._queue.add_result(lambda now_ms: self._raft.frozen(now_ms, corrupt))
            case _:
                assert_never(effect)

    async def _send_request(self, sent: Send) -> None:
        response: QuorumResponse | None = None
        try:
            response = await self._send(sent.to, sent.message, sent.timeout_ms)
        except (KafkaError, OSError, TimeoutError) as error:
            logger.debug(
                "no response from node %d at %s to %s: %r", sent.node_id, sent.to, type(sent.message), error
            )
            if isinstance(error, UnsupportedVersion) and isinstance(sent.message, VoteRequest):
                # The voter does not support pre-votes (KIP-996): Raft then requests its vote at once.
                response = VoteResponse(error_code=ErrorCode.unsupported_version)
        except Exception:
            logger.exception(
                "%s to node %d at %s has failed", type(sent.message).__name__, sent.node_id, sent.to
            )
        self.enqueue(lambda now_ms: self._raft.answered(now_ms, sent, response))

    def fail(self, error: BaseException) -> None:
        """Stop all processing and notify the node: the state in memory may differ from the log."""
        if self.failure is not None:
            return
        self.failure = error
        self._end()
        if self._started is not None and not self._started.done():
            self._started.set_exception(error)
            return
        is_expected = isinstance(error, KafkaError | OSError | InvalidMetadata | QuorumFailed)
        logger.critical(
            "the metadata log cannot be processed any further; this node stops: %r",
            error,
            exc_info=None if is_expected else error,
        )
        self._on_failure(error)

    def _end(self) -> None:
        """End leadership, cancel the requests in flight, and refuse those that wait for a response."""
        self._is_stopped = True
        self._queue.wakeup()
        with suppress(InvalidMetadata):  # of a listener that has failed; the node stops anyway
            self._dispatcher.end()
        for task in list(self._sending):
            task.cancel()
        for answer in list(self._pending):
            if not answer.done():
                answer.set_exception(NotController("This node's replica of the metadata log stops."))


def _reply(effect: Reply) -> None:
    assert isinstance(effect.token, asyncio.Future)
    if not effect.token.done():  # the request may have been cancelled
        effect.token.set_result(effect.response)

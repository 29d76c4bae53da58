"""One node's Raft at work: `Raft` decides, this waits, writes, sends and tells.

    requests of other nodes --|                          |--> quorum-state, fsync      (off the loop, awaited)
    answers to our requests --|                          |--> requests to other nodes  (tasks of their own)
    timers                  --|--> a queue --> Raft -----|--> answers to requests
    append --> the log      --|    one at a time         |--> listeners: commits, snapshots, leaders

It is one actor: an event is put through the machine only when every effect of the event before it has been carried
out, in order. `append` alone does not wait for its turn: records reach the log (not the disk) at once, and the next
flush takes along whatever has gathered while the disk was busy.

A process has one quorum, whatever its roles: a controller's votes, a broker's follows. Listeners are told the same
things in the same order, each batch once: what is committed, that a snapshot takes the place of everything, and who
leads (`controller.raft.telling`).

    opened --start--> running --stop--> stopped
                              --the disk fails, or the log cannot be understood--> failed: the node has to stop

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

from controller import quorum_state
from controller.log_cleaning import CLEAN_INTERVAL_MS, MetadataLogSettings
from controller.log_upkeep import LogUpkeep
from controller.metadata_log import MetadataLog
from controller.raft.effects import (
    Committed,
    Effect,
    Fatal,
    Flush,
    LeaderChanged,
    Persist,
    Reply,
    Send,
    SnapshotLoaded,
    Stopped,
)
from controller.raft.listeners import Listeners, QuorumListener
from controller.raft.machine import Raft
from controller.raft.telling import Telling
from controller.raft.types import Address, LeaderAndEpoch, RaftSettings
from controller.raft.voters import VoterSet
from protocol.errors import ErrorCode, KafkaError, NotController, UnsupportedVersion
from protocol.messages.vote import VoteRequest, VoteResponse
from protocol.metadata.image import InvalidMetadata, MetadataImage
from protocol.metadata.records import MetadataRecord
from protocol.schema import Request, Response
from storage.files import Files

logger: Final = logging.getLogger(__name__)

#: More requests than these are not held: each voter and observer has one or two, the rest is somebody's mistake.
MAX_WAITING_REQUESTS: Final = 10_000
#: More events than these do not wait for the actor: requests are refused with NotController, and sent again. They pile up
#: while the disk does not answer, since peers that have given up ask again. What this node itself does is not refused,
#: and bounded: an answer for each request that it has sent, one event for all appends, one for a resignation.
MAX_WAITING_EVENTS: Final = 20_000


class SendRequest(Protocol):
    """The way to other nodes."""

    def __call__(self, to: Address, message: Request, timeout_ms: int) -> Awaitable[Response]:
        """Send and wait for the answer. Raises OSError, TimeoutError or KafkaError if there is none."""


class Cancellable(Protocol):
    """A timer that has been set."""

    def cancel(self) -> None:
        """It must not ring any more."""


class QuorumFailed(Exception):
    """Raft cannot go on: the node has to stop, or would risk what is committed."""


class _Event(NamedTuple):
    #: By the machine's clock.
    arrived_ms: int
    decide: Callable[[int], list[Effect]]


class Quorum:
    """The replica of the metadata log on this node, voter or observer. Made by `open`."""

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
        # The machine's clock never goes back, but reads as the wall clock did at the beginning: it dates records.
        self._clock_start_ms = now_ms() - int(monotonic() * 1000)
        self._clean_at_ms = self._clock_start_ms + int(monotonic() * 1000) + CLEAN_INTERVAL_MS
        self._events: deque[_Event] = deque()
        self._is_append_queued = False
        self._wake = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._settled: asyncio.Future[None] | None = None
        self._is_over = False
        self._failure: BaseException | None = None
        self._sending: dict[asyncio.Task[None], None] = {}
        self._waiting: dict[asyncio.Future[Response], None] = {}
        #: Effects that are decided, and come before anything else is.
        self._owed: deque[list[Effect]] = deque()
        self._listeners = Listeners()
        self._telling = Telling(
            log,
            self._listeners,
            node_id=settings.node_id,
            epoch_start_offset=lambda: raft.epoch_start_offset,
            run_blocking=run_blocking,
        )
        self._upkeep = LogUpkeep(log, now_ms=now_ms, run_blocking=run_blocking)

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
        """Open the metadata log in this log directory, or begin it. [any thread]

        `is_clean`: this directory was closed as it should be; else the end of the log is looked for.
        `on_failure` is told why the node cannot go on. Raises InvalidMetadata and OSError.
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
            # Kafka does not look. A node that was told to decide alone must not do so in the folder of a quorum.
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
        """Begin to take part; returns when there is nothing more to do at the moment.

        A single voter leads then, and its listeners know all that it has written as such. Raises InvalidMetadata
        for what cannot be understood, QuorumFailed and OSError.
        """
        assert self._worker is None, "the quorum was started before"
        loop = asyncio.get_running_loop()
        self._settled = loop.create_future()
        self._worker = loop.create_task(self._work(), name="quorum")
        await self._settled

    async def stop(self) -> None:
        """Leave the others in peace, and close the log. A leader tells the voters that it goes. Raises OSError."""
        if self._worker is not None:
            if not self._worker.done():
                self._enqueue(self._raft.shutdown)
                await asyncio.wait([self._worker])
            self._end()
            await self._upkeep.end()
        await self._run_blocking(self._log.close)

    # -- what the node sees of it ----------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        """This node."""
        return self._settings.node_id

    @property
    def voters(self) -> VoterSet:
        """Who votes, by the end of the log."""
        return self._raft.voters

    @property
    def is_only_voter(self) -> bool:
        """Whether this node decides alone."""
        return self._raft.voters.is_only_voter(self._settings.key)

    @property
    def kraft_version(self) -> int:
        """The finalized level of kraft.version, by the end of the log."""
        return self._raft.kraft_version

    @property
    def leader(self) -> LeaderAndEpoch:
        """Who leads, as far as this node knows; the leader itself may not have caught up yet."""
        return self._telling.leader

    def leader_address(self) -> Address | None:
        """Where the leader is reached by the controllers' listener; None if it is not known."""
        return self._raft.leader_address

    @property
    def end_offset(self) -> int:
        """Where the next record will stand."""
        return self._log.end_offset

    @property
    def told_offset(self) -> int:
        """Behind the last batch that listeners know of; committed."""
        return self._listeners.end_offset

    @property
    def told_bytes(self) -> int:
        """Bytes of the log that listeners have been told of since the start, snapshots not counted."""
        return self._listeners.log_bytes

    @property
    def is_transaction_open(self) -> bool:
        """Whether records before `told_offset` wait for the end of their metadata transaction."""
        return self._listeners.is_transaction_open

    @property
    def has_failed(self) -> bool:
        """Whether this node has to stop."""
        return self._failure is not None

    # -- the log's writers and readers -----------------------------------------------------------------

    def append(self, records: Sequence[MetadataRecord], *, epoch: int, metadata_version: int) -> int:
        """Append records as one batch, not yet durable; its base offset. For the leader of `epoch` alone.

        Listeners are told when it is committed. Raises NotController, also if the disk does not take it.
        """
        if self._failure is not None or self._is_over or not self._raft.is_leader_of(epoch):
            raise NotController("This node does not lead the metadata quorum any more.")
        try:
            chunk = self._log.append(
                records, epoch=epoch, metadata_version=metadata_version, now_ms=self._now_ms()
            )
        except (KafkaError, OSError) as error:
            self._fail(error)
            raise NotController("The metadata log cannot be written.") from error
        self._telling.appended(chunk)
        if not self._is_append_queued:
            self._is_append_queued = True
            self._enqueue(self._decide_appended)
        return chunk.base_offset

    def resign(self, epoch: int) -> None:
        """Give up the leadership of this epoch, if it is not over anyway."""
        self._enqueue(lambda now_ms: self._raft.resign(now_ms, epoch))

    def upgrade_kraft_version(self, level: int, *, epoch: int, validate_only: bool = False) -> None:
        """Append the control records of a higher kraft.version. Raises NotController, InvalidUpdateVersion."""
        effects = self._raft.upgrade_kraft_version(
            self._raft_now_ms(), epoch=epoch, version=level, validate_only=validate_only
        )
        # They are in the log, as after `append`. What is to be done about them comes before what is decided later.
        self._owed.append(effects)
        self._wake.set()

    async def handle(self, request: Request, *, listener_name: str | None = None) -> Response:
        """Answer another node's request about the quorum: Vote, Fetch, DescribeQuorum, AddRaftVoter, ...

        `listener_name`: by which it came; None: the first. Takes as long as a Fetch finds nothing new. Raises
        NotController when this node stops meanwhile.
        """
        if self._failure is not None or self._is_over:
            raise NotController("This node does not take part in the metadata quorum.")
        if len(self._waiting) >= MAX_WAITING_REQUESTS or len(self._events) >= MAX_WAITING_EVENTS:
            raise NotController("Too many requests wait for this node's replica of the metadata log.")
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[answer] = None
        answer.add_done_callback(self._waiting.pop)
        self._enqueue(lambda now_ms: self._raft.receive(now_ms, request, answer, listener_name=listener_name))
        return await answer

    def subscribe(self, listener: QuorumListener) -> None:
        """Tell the listener all that is to come, behind those who have subscribed before. Before `start` only."""
        assert self._worker is None, "the log is told once, from its beginning"
        self._listeners.add(listener)

    def write_snapshot(self, copy: Callable[[], MetadataImage]) -> bool:
        """Begin to write what `copy` gives as the snapshot of everything that was told; whether it was begun.

        It is not if one is being written or is there already, or while a metadata transaction is open: its records
        are before `told_offset`, but not in the image. Raises InvalidMetadata and OSError.
        """
        if self._is_over or self.is_transaction_open:
            return False
        last_offset = self.told_offset - 1
        voters = self._raft.voters_at(last_offset)
        return self._upkeep.begin_snapshot(
            self.told_offset,
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
                await self._telling.load_snapshot(snapshot)
            await self._carry_out(self._raft.start(self._raft_now_ms()))
            while not self._is_over:
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
            self._fail(error)  # what it waited for was cancelled, not this task
        except Exception as error:  # noqa: BLE001 (told to the node, which stops)
            self._fail(error)

    def _next(self) -> Callable[[int], list[Effect]] | None:
        """What the machine is to see now.

        What has arrived before a deadline counts as in time, however long the disk has kept us from looking at it.
        """
        deadline_ms = self._raft.next_deadline_ms
        if self._events and self._events[0].arrived_ms <= deadline_ms:
            return self._events.popleft().decide
        if deadline_ms <= self._raft_now_ms():
            return self._raft.tick
        return self._events.popleft().decide if self._events else None

    async def _rest(self) -> None:
        """Wait for an event, the machine's deadline, or the next look at what the log may let go."""
        self._wake.clear()
        deadline_ms = min(self._raft.next_deadline_ms, self._clean_at_ms)
        timer = self._call_later(max(0, deadline_ms - self._raft_now_ms()) / 1000, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
        if self._raft_now_ms() >= self._clean_at_ms:
            self._clean_at_ms = self._raft_now_ms() + CLEAN_INTERVAL_MS
            await self._upkeep.clean()

    async def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if self._failure is not None:
                return
            match effect:
                case Persist():
                    await self._run_blocking(
                        quorum_state.write, self._log.directory, effect.state, self._files
                    )
                case Flush():
                    await self._flush(effect.end_offset)
                case Send():
                    task = asyncio.get_running_loop().create_task(self._ask(effect), name="quorum-send")
                    self._sending[task] = None
                    task.add_done_callback(self._sending.pop)
                case Reply():
                    _reply(effect)
                case Committed():
                    await self._telling.commits(effect.high_watermark)
                case LeaderChanged():
                    self._telling.change_leader(effect.leader)
                case SnapshotLoaded():
                    await self._telling.load_snapshot(effect.snapshot)
                case Stopped():
                    self._is_over = True
                case Fatal():
                    raise QuorumFailed(effect.reason)

    async def _flush(self, end_offset: int) -> None:
        await self._run_blocking(self._log.flush, end_offset)
        # In front of what waits, as it has begun before that.
        self._events.appendleft(_Event(0, lambda now_ms: self._raft.flushed(now_ms, end_offset)))

    async def _ask(self, sent: Send) -> None:
        response: Response | None = None
        try:
            response = await self._send(sent.to, sent.message, sent.timeout_ms)
        except (KafkaError, OSError, TimeoutError) as error:
            logger.debug(
                "no answer of node %d at %s to %s: %r", sent.node_id, sent.to, type(sent.message), error
            )
            if isinstance(error, UnsupportedVersion) and isinstance(sent.message, VoteRequest):
                # It knows no pre-votes (KIP-996): Raft then asks for its vote at once.
                response = VoteResponse(error_code=ErrorCode.unsupported_version)
        except Exception:
            logger.exception("a request to node %d at %s has failed", sent.node_id, sent.to)
        self._enqueue(lambda now_ms: self._raft.answered(now_ms, sent, response))

    def _fail(self, error: BaseException) -> None:
        """Nothing more is decided, written or told here; what is in memory may not be what the log says."""
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
        """Nobody is answered or led any more."""
        self._is_over = True
        self._wake.set()
        with suppress(InvalidMetadata):  # a listener that cannot follow any more, and this is the end anyway
            self._telling.end()
        for task in list(self._sending):
            task.cancel()
        for answer in list(self._waiting):
            if not answer.done():
                answer.set_exception(NotController("This node leaves the metadata quorum."))


def _reply(effect: Reply) -> None:
    assert isinstance(effect.token, asyncio.Future)
    if not effect.token.done():  # who asked may have gone
        effect.token.set_result(effect.response)

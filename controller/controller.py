"""The controller: active while its node leads the metadata quorum, standby while another one does.

    standby --on_leader(this node)--> active --on_leader(another one, or none)--> standby
       '- has no state                   '- decides, replays, appends, and responds when it is committed

    request --decide--> records --replay, append--> waiting --committed--> listeners of the log, in order
                                                       |                     '--> the response
                                                       '--not the leader any more--> NotController

A decision's records change the state at once, so that the next decision sees them, but no response is sent before
they are committed: the next leader may not have them, and then the state has changes that never took effect. So only
the active controller has a state. It begins as a copy of this node's image, which is replayed from committed records
only, and is dropped when the leadership is lost. Kafka's standby controllers replay, too, and revert every map to an
older version instead; here a copy costs 10 ms for 100,000 partitions, and look-ups need no additional layer.

Everything runs on the event loop; between two events the state is consistent. A decision about many partitions is
made in several turns, and one with many records is encoded, replayed and appended in several; nothing else is decided
in between, so that it finds the state that it was made on, and the next one all of its records.

    decided | encoded | replayed: some partitions or records in each turn; appended with the last of them
Source: QuorumController of Kafka 4.3.1.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from ottla.controller import activation
from ottla.controller.api import CONTROLLER_APIS
from ottla.controller.decision_lock import DecisionLock
from ottla.controller.metadata_log import new_batches
from ottla.controller.metadata_log.new_batches import NewBatch, batching
from ottla.controller.metadata_log.transactions import TRANSACTION_MARKERS
from ottla.controller.periodic import PeriodicTask, PeriodicTasks, expiring
from ottla.controller.quorum.raft_client import RaftClient
from ottla.controller.raft.types import LeaderAndEpoch, OffsetAndEpoch
from ottla.controller.result import Result
from ottla.controller.settings import ConfigValidators, ControllerSettings
from ottla.controller.state import ClusterState
from ottla.controller.steps import Steps
from ottla.metadata.image import InvalidMetadata, MetadataImage
from ottla.metadata.records import MetadataRecord
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import (
    KafkaError,
    NotController,
    RequestTimedOut,
    UnsupportedVersion,
)
from ottla.protocol.refusals import refuse_in_steps
from ottla.runtime import Runtime
from ottla.runtime.turns import FreedInTurns, in_turns
from ottla.storage.files import Files

__all__ = ["Controller", "InvalidMetadata"]

logger: Final = logging.getLogger(__name__)


#: The largest number of requests that wait to be committed; further ones are refused with NotController, and retried.
#: They accumulate while a disk or a majority does not respond, those that have timed out included.
MAX_DEFERRED_RESPONSES: Final = 10_000

#: A decision with more records takes several turns: one with 3,000 would stop the loop for 15 ms, and all
#: requests with it.
MAX_RECORDS_IN_ONE_TURN: Final = 200


class _DeferredResponse(NamedTuple):
    """A request that waits until the log is committed up to this offset."""

    end_offset: int
    done: "asyncio.Future[None]"


class _Active(NamedTuple):
    """The epoch and the state of an active controller, dropped as a whole with uncommitted decisions."""

    epoch: int
    state: ClusterState


class Controller:
    """One node's controller, a listener of its quorum from the beginning."""

    def __init__(
        self,
        quorum: RaftClient,
        *,
        committed_image: Callable[[], MetadataImage],
        log_dir: Path,
        settings: ControllerSettings,
        validators: ConfigValidators | None = None,
        files: Files,
        runtime: Runtime,
    ) -> None:
        """`committed_image` returns the image of a listener of the same quorum: committed records, and nothing else.

        `log_dir` is where `bootstrap.checkpoint` is, with the first records of a new cluster.
        """
        self._quorum = quorum
        self._committed_image = committed_image
        self._log_dir = log_dir
        self._settings = settings
        self._validators = validators or ConfigValidators()
        self._files = files
        self._runtime = runtime
        #: At most MAX_DEFERRED_RESPONSES.
        self._deferred: deque[_DeferredResponse] = deque()
        self._periodic = PeriodicTasks(settings, run=self._run_periodic, runtime=runtime)
        #: While this controller is active.
        self._active: _Active | None = None
        self._has_been_active = False
        #: Held also between the turns of a decision: nothing else is decided then.
        self._deciding = DecisionLock()
        self._is_stopped = False
        #: The offset after the last committed batch that this controller was notified of.
        self.committed_offset = 0
        quorum.subscribe(self)

    @property
    def image(self) -> MetadataImage:
        """The image that the next decision uses; while active, ahead of what is committed. Read only."""
        return self._committed_image() if self._active is None else self._active.state.image

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller, which serves requests."""
        return self._active is not None

    @property
    def epoch(self) -> int | None:
        """The epoch that this controller is active in, or None."""
        return None if self._active is None else self._active.epoch

    def stop(self) -> None:
        """Refuse new requests; those in progress are completed, or fail with NotController when the quorum stops."""
        self._is_stopped = True
        self._periodic.stop()

    async def request(self, api_key: int, message: Any, context: object = None) -> Any:  # noqa: ANN401
        """Decide, and respond once the decision is committed and this node's listeners of the log are notified.

        Errors of the request are in the response, as in Kafka; REQUEST_TIMED_OUT if a request that names a
        timeout was not committed in time, although it may be later. Raises UnsupportedVersion for requests that the
        controller does not serve, and NotController when it is not active, or no longer, or too many requests wait.
        """
        api = CONTROLLER_APIS.get(api_key)
        if api is None:
            raise UnsupportedVersion(f"The controller does not serve API key {api_key}.")
        await self._deciding.acquire(goes_first=api_key == ApiKey.BROKER_HEARTBEAT)
        try:
            active = self._serving()
            if len(self._deferred) >= MAX_DEFERRED_RESPONSES:
                raise NotController("Too many requests wait until the metadata log is committed.")
            try:
                result, batches = await self._decided(active, api.decide, message)
            except NotController:
                raise
            except KafkaError as error:
                return await self._made(refuse_in_steps(message, error))
            done = await self._carry_out(active, result, batches)
        finally:
            self._deciding.release()
        if done is not None and not await _is_done(done, timeout_ms=getattr(message, "timeout_ms", None)):
            refused = RequestTimedOut("The request was not committed in time.")
            return await self._made(refuse_in_steps(message, refused))
        return result.response

    async def expire_session(self, broker_id: int) -> None:
        """Fence a broker as if its session had expired, for tests that kill it; returns when that is committed.

        Raises NotController.
        """
        task = expiring(broker_id)
        while True:
            await self._deciding.acquire()
            try:
                active = self._serving()
                result, batches = await self._decided(active, task.decide)
                done = await self._carry_out(active, result, batches)
            finally:
                self._deciding.release()
            if done is not None:
                await done
            if not result.response:  # those whose sessions have expired before are fenced first
                return

    # -- following the log -----------------------------------------------------------------------------

    def on_commit(self, records: Sequence[MetadataRecord], base_offset: int, end_offset: int) -> None:
        """Complete the requests that waited until the log was committed up to `end_offset`."""
        self.committed_offset = end_offset
        while self._deferred and self._deferred[0].end_offset <= end_offset:
            done = self._deferred.popleft().done
            if not done.done():  # its request may have been cancelled
                done.set_result(None)

    def on_snapshot(self, batches: Iterable[list[MetadataRecord]], snapshot: OffsetAndEpoch) -> None:
        """Adopt the snapshot's offset as committed; the controller is not active."""
        assert self._active is None, "a leader loads no snapshot"
        self.committed_offset = snapshot.offset

    def on_leader(self, leader: LeaderAndEpoch) -> None:
        """Become active or standby."""
        if self._active is not None:
            self._renounce()
        if leader.leader_id == self._quorum.node_id and not self._is_stopped:
            self._activate(leader.epoch)

    # -- active and standby ----------------------------------------------------------------------------

    def _activate(self, epoch: int) -> None:
        """Write the activation records, and serve. The state begins with everything before this epoch."""
        settings, is_first = self._settings, not self._has_been_active
        logger.info("controller %d becomes active in epoch %d", settings.node_id, epoch)
        state = ClusterState(
            settings=settings,
            validators=self._validators,
            random=self._runtime.random,
            image=self._committed_image().copy(),
            next_offset=self.committed_offset,
        )
        state.kraft = _Kraft(self._quorum)
        state.new_parts = lambda: FreedInTurns(self._runtime)
        self._active = active = _Active(epoch, state)
        self._has_been_active = True
        # A single voter becomes active before its process serves requests: the registration of the broker in this
        # process is that of a previous process, which has stopped, so that its session need not expire first.
        is_alone = is_first and self._quorum.is_only_voter and settings.hosts_broker
        state.sessions.start_all(
            state.image.brokers.values(),
            stopped=[settings.node_id] if is_alone else (),
            now_ms=self._now_ms(),
        )
        result = activation.first_decision(
            state.image,
            log_dir=self._log_dir,
            files=self._files,
            settings=settings,
            is_transaction_open=self._quorum.is_transaction_open,
        )
        with suppress(NotController):  # Raft may be in a later epoch, and is about to notify this listener
            batches: list[NewBatch] = []
            _run_at_once(_batching(result, state, batches))
            _run_at_once(self._append(active, batches))
            self._periodic.start()

    def _renounce(self) -> None:
        """Become standby; the requests that wait fail with NotController."""
        logger.info(
            "controller %d becomes standby: it does not lead the metadata quorum any more",
            self._settings.node_id,
        )
        self._active = None
        self._periodic.stop()
        while self._deferred:
            each = self._deferred.popleft()
            if not each.done.done():
                each.done.set_exception(NotController("This node is not the active controller any more."))
                each.done.exception()  # marked as retrieved, also where the request has timed out

    def _not_controller(self) -> NotController:
        leader_id = self._quorum.leader.leader_id
        if leader_id is None or leader_id == self._settings.node_id:
            return NotController("No controller appears to be active.")
        return NotController(f"The active controller appears to be node {leader_id}.")

    def _serving(self) -> _Active:
        """The epoch and state of this controller while it is active. Raises NotController, also once it is stopped."""
        if self._active is None or self._is_stopped:
            raise self._not_controller()
        return self._active

    # -- from a decision to its response ---------------------------------------------------------------

    async def _decided(
        self, active: _Active, decide: Callable[..., Steps[Any] | Result[Any]], *arguments: object
    ) -> tuple[Result[Any], list[NewBatch]]:
        """Decide, and encode the records. Raises what `decide` does, RecordListTooLarge, and NotController."""
        state = active.state
        while True:
            # Raft appends control records of its own, too.
            state.next_offset = self._quorum.end_offset
            state.wall_clock_ms = self._runtime.now_ms()
            result = await self._result(active, decide(state, *arguments, self._now_ms()))
            batches: list[NewBatch] = []
            steps = _batching(result, state, batches)
            if _takes_turns(result):
                await self._in_turns(active, steps)
            else:
                _run_at_once(steps)
            # Decisions contain offsets, those of registrations: this one is made again if Raft has appended meanwhile.
            if self._quorum.end_offset == state.next_offset:
                return result, batches

    async def _result(self, active: _Active, decided: Steps[Any] | Result[Any]) -> Result[Any]:
        """Return the decision; all of its steps but the first are made in later turns."""
        if isinstance(decided, Result):
            return decided
        result: Result[Any] = await self._made(decided, lambda steps: self._in_turns(active, steps))
        return result

    async def _made(
        self,
        making: Generator[None, None, Any],
        run_rest: Callable[[Iterator[None]], Coroutine[Any, Any, None]] | None = None,
    ) -> Any:  # noqa: ANN401
        """Return the result of `making`, whose steps run in later turns, except for the first one."""
        try:
            next(making)
        except StopIteration as done:
            return done.value
        made: list[Any] = []

        def steps() -> Iterator[None]:
            made.append((yield from making))

        await (in_turns(self._runtime, steps()) if run_rest is None else run_rest(steps()))
        return made[0]

    async def _carry_out(
        self, active: _Active, result: Result[Any], batches: Iterable[NewBatch]
    ) -> "asyncio.Future[None] | None":
        """Replay and append; returns a future that is done when all is committed, None if it is already.

        Raises NotController if this node does not lead any more.
        """
        steps = self._append(active, batches)
        try:
            if _takes_turns(result):
                await self._in_turns(active, steps)
        finally:
            # Of a request that is cancelled in between, as by the timeout of controlled shutdown in a combined
            # node, the state has some records: the log must have them, too.
            if self._active is active:
                _run_at_once(steps)
                if result.on_appended is not None:
                    result.on_appended(self._quorum.end_offset)
        # A response without records may depend on uncommitted records of other requests: it waits for them, too.
        end_offset = self._quorum.end_offset
        if end_offset <= self.committed_offset:
            return None
        done: asyncio.Future[None] = self._runtime.loop.create_future()
        self._deferred.append(_DeferredResponse(end_offset, done))
        return done

    async def _in_turns(self, active: _Active, steps: Iterator[None]) -> None:
        """Run the steps while this controller is active, the first of them in a later turn.

        Raises NotController, and what they raise.
        """

        def while_active() -> Iterator[None]:
            while self._active is active and next(steps, self) is not self:
                yield

        await asyncio.sleep(0)
        await in_turns(self._runtime, while_active(), goes_first=True)
        if self._active is not active:
            raise self._not_controller()

    def _append(self, active: _Active, batches: Iterable[NewBatch]) -> Iterator[None]:
        """Replay and append, in steps of a few records; the last step of a batch appends it.

        Control records that Raft appends between two steps come before the batch. A registration, which is the
        last record of its decision, then has an offset after its broker's epoch; that epoch is unique all the same.
        """
        state = active.state
        for batch in batches:
            for first in range(0, len(batch.records), new_batches.RECORDS_OF_STEP):
                records = batch.records[first : first + new_batches.RECORDS_OF_STEP]
                effective = [record for record in records if type(record) not in TRANSACTION_MARKERS]
                try:
                    # Replay comes first: a record that cannot be replayed must not be appended to the log.
                    state.replay(effective, self._quorum.end_offset + first)
                    if first + len(records) == len(batch.records):
                        self._quorum.append(batch, epoch=active.epoch)
                except Exception as error:
                    if self._active is active:
                        level = logging.INFO if isinstance(error, NotController) else logging.ERROR
                        logger.log(level, "controller %d resigns: %r", self._settings.node_id, error)
                        self._quorum.resign(active.epoch)
                        self._renounce()
                    raise
                yield

    # -- periodic tasks --------------------------------------------------------------------------------

    async def _run_periodic(self, task: PeriodicTask) -> bool:
        await self._deciding.acquire()
        try:
            active = self._serving()
            result, batches = await self._decided(active, task.decide)
            if batches:
                await self._carry_out(active, result, batches)
        finally:
            self._deciding.release()
        has_more: bool = result.response
        return has_more

    def _now_ms(self) -> int:
        return int(self._runtime.monotonic() * 1000)


class _Kraft:
    """The finalized kraft.version and the voters of the quorum, for decisions (a `KraftVersionLayer`)."""

    def __init__(self, quorum: RaftClient) -> None:
        self._quorum = quorum

    @property
    def version(self) -> int:
        return self._quorum.kraft_version

    @property
    def voter_ids(self) -> frozenset[int]:
        return frozenset(self._quorum.voters.ids)

    def check_upgrade(self, level: int) -> None:
        self._quorum.upgrade_kraft_version(level, epoch=self._quorum.leader.epoch, validate_only=True)

    def upgrade(self, level: int) -> None:
        self._quorum.upgrade_kraft_version(level, epoch=self._quorum.leader.epoch)


def _takes_turns(result: Result[Any]) -> bool:
    return len(result.records) > MAX_RECORDS_IN_ONE_TURN


def _run_at_once(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


def _batching(result: Result[Any], state: ClusterState, batches: list[NewBatch]) -> Iterator[None]:
    """Encode a decision's records in steps, in the versions of the metadata.version that it was made at."""
    # A new cluster has none; its bootstrap records have one version only.
    metadata_version = state.image.metadata_version or 0
    return batching(
        result.records, metadata_version=metadata_version, is_atomic=result.is_atomic, batches=batches
    )


async def _is_done(done: "asyncio.Future[None]", *, timeout_ms: int | None) -> bool:
    """Wait for the future; False if the timeout expires first. Raises the future's exception."""
    if timeout_ms is None:
        await done
    elif not (await asyncio.wait([done], timeout=max(0, timeout_ms) / 1000))[0]:
        return False
    else:
        done.result()
    return True

"""Replica fetcher: fetches all partitions assigned to it from one leader, over one connection.

    wait for work --> ask for offsets (ListOffsets, OffsetForLeaderEpoch), else for records (Fetch)
         ^                                                   |
         '---------- execute the followers' actions <--------'

It decides nothing: `ottla.replication.follower` decides what to ask for and what a response means. A partition that
fails is paused for replica.fetch.backoff.ms; the others continue. While the remote tier fails a follower, its
pauses double, up to `_MAX_BACKOFF_MS`.

Source: ReplicaFetcherThread, AbstractFetcherThread of Kafka 4.3.1.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Final, TypeVar, TypeVarTuple, assert_never

from ottla.broker.replicas.flushes import flush_log
from ottla.broker.replicas.following import append_turns
from ottla.broker.replicas.following.follower_actions import FollowerActions
from ottla.broker.replicas.following.leader_endpoint import SESSION_ERRORS, FetcherSettings, LeaderEndpoint
from ottla.broker.replicas.following.partition_fetch_states import (
    PartitionFetchState,
    PartitionFetchStates,
    key_of,
)
from ottla.broker.replicas.following.replication_throttle import FollowerThrottle
from ottla.broker.replicas.partition import Partition
from ottla.protocol.errors import CorruptMessage, ErrorCode, InvalidRecord, KafkaError, KafkaStorageError
from ottla.protocol.hot.fetch import FetchRow, Key, Records
from ottla.protocol.types import TopicPartition
from ottla.remote.auxiliary_state import AuxiliaryStates
from ottla.remote.errors import RemoteStorageError
from ottla.replication.follower import (
    Action,
    Append,
    Bounds,
    Divergence,
    FetchBounds,
    FetchRecords,
    Follower,
    FollowerRequest,
    TruncateFullyAndStartAt,
    TruncateTo,
)
from ottla.replication.follower_states import ReplicaState
from ottla.replication.remote_log_aux import (
    BuildRemoteLogAux,
    EpochEnd,
    FetchEpochEnd,
    FetchLeaderOffsets,
    LeaderOffsets,
)
from ottla.runtime import Pool, Runtime
from ottla.runtime.turns import MAX_STEPS
from ottla.storage.log_availability import TooManyOpenFiles

logger = logging.getLogger(__name__)
_new_tuple = tuple.__new__

#: The longest pause of a partition whose state the remote tier does not return, and by how much pauses differ.
_MAX_BACKOFF_MS: Final = 30_000
_JITTER: Final = 0.2

#: How long a Fetch waits for records while actions wait for the disk or the remote tier.
_WAIT_BESIDE_ACTIONS_MS: Final = 50
#: Appends of `append_turns.TURN_COST` are counted as so many steps of a turn: several fetchers share it.
_STEPS_OF_APPENDS: Final = MAX_STEPS // 4

#: The input of a follower's decision: a request with its response, or a leader epoch.
Input = TypeVarTuple("Input")
#: A request for offsets, and its answer.
Asked = TypeVar("Asked", FetchBounds, FetchLeaderOffsets, FetchEpochEnd)
Answer = TypeVar("Answer", Bounds, LeaderOffsets, EpochEnd)


class ReplicaFetcher:
    """Fetches all partitions assigned to it from one leader, and executes what each follower decides."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        leader: LeaderEndpoint,
        settings: FetcherSettings,
        throttle: FollowerThrottle,
        prefers_last_tiered: Callable[[], bool],
        auxiliary: AuxiliaryStates | None,
    ) -> None:
        """`prefers_last_tiered` is for all topics of two tiers (KIP-1023).

        `auxiliary` None: this broker has no remote tier.
        """
        self._runtime = runtime
        self._leader = leader
        self._settings = settings
        self._throttle = throttle
        self._prefers_last_tiered = prefers_last_tiered
        self._states = PartitionFetchStates(runtime)
        self._task: asyncio.Task[None] | None = None
        self._is_failing = False
        self._actions = FollowerActions(runtime, pool=Pool.FLUSHES, auxiliary=auxiliary)
        #: Actions that run as tasks, since they wait for the disk or the remote tier.
        self._waiting_actions: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._states)

    # -- followed partitions -----------------------------------------------------------------------

    def follow(self, partition: Partition) -> None:
        """Follow the partition in its leader epoch; nothing changes if it is followed in that epoch already."""
        fetch_state = self._states.get(key_of(partition))
        if fetch_state is not None and (
            fetch_state.partition is partition and fetch_state.follower.leader_epoch == partition.leader_epoch
        ):
            return
        self.unfollow(partition)
        fetch_state = PartitionFetchState(
            partition, prefers_last_tiered=lambda: self._can_build(partition) and self._prefers_last_tiered()
        )
        self._states.add(fetch_state)
        self._execute(fetch_state, fetch_state.follower.follow, partition.leader_epoch)
        self._states.update(fetch_state)
        if self._task is None:
            self._task = self._runtime.supervise(self._run, name=f"fetcher-{self._leader.leader_id}")

    def unfollow(self, partition: Partition) -> None:
        """Stop following the partition; its row in a response that arrives later is ignored."""
        self._states.remove(key_of(partition))

    def refresh(self, partition: Partition) -> None:
        """The row may have changed without a response: by retention, or by a new configuration."""
        fetch_state = self._states.get(key_of(partition))
        if fetch_state is not None:
            self._states.update(fetch_state)

    async def stop(self) -> None:
        """Send no more requests, start no more actions, and close the connection.

        A running action ends with the job that is in a thread: a thread cannot be stopped, and the files that it
        has created must be removed. Nothing waits for the remote tier.
        """
        for fetch_state in self._states:
            fetch_state.is_removed = True
        for action in self._waiting_actions:
            action.cancel()
        if self._task is not None:
            self._task.cancel()
        tasks = [*self._waiting_actions, *([] if self._task is None else [self._task])]
        if tasks:
            await asyncio.wait(tasks)
        await self._leader.close()

    def lag(self, partition: Partition) -> int | None:
        """The number of offsets by which the leader's high watermark is ahead of this log; None: not known."""
        fetch_state = self._states.get(key_of(partition))
        return None if fetch_state is None else fetch_state.follower.lag

    # -- rounds ------------------------------------------------------------------------------------

    async def _run(self) -> None:
        states = self._states
        # This may be a restart of the task: the leader may have answered its last request, and the response is lost.
        self._leader.reset_session()
        while True:
            states.resume()
            self._pause_throttled()
            if not states.locating and not states.fetching:
                self._leader.buffer.drop()
                await states.wait()
                continue
            try:
                if states.locating:
                    await self._locate(list(states.locating))
                else:
                    await self._fetch()
            except (OSError, TimeoutError, KafkaError) as error:
                self._on_failure(error)
                self._pause([*states.locating, *states.fetching])
            else:
                self._on_success()
            finally:
                self._leader.buffer.release()  # all records of the response are appended, or dropped

    def _on_failure(self, error: Exception) -> None:
        # An unavailable broker is retried after each backoff, and logged as a warning only once.
        level = logging.DEBUG if self._is_failing else logging.WARNING
        logger.log(level, "Fetch from broker %d failed: %s", self._leader.leader_id, error)
        self._is_failing = True
        self._leader.reset_session()

    def _on_success(self) -> None:
        if self._is_failing:
            logger.info("Fetch from broker %d works again", self._leader.leader_id)
            self._is_failing = False

    def _pause(self, fetch_states: Iterable[PartitionFetchState]) -> None:
        self._states.pause(fetch_states, pause_ms=self._settings.backoff_ms)

    def _pause_throttled(self) -> None:
        # Not a replica that has everything committed (lag 0): a member of the ISR would leave it.
        throttled = [
            each
            for each in self._states.changed
            if each.follower.lag != 0
            and self._states.may_send(each)
            and self._throttle.should_throttle(each.partition)
        ]
        if throttled:
            self._pause(throttled)

    # -- records -----------------------------------------------------------------------------------

    async def _fetch(self) -> None:
        states = self._states
        answer = await self._leader.fetch(
            {each.key: self._row(each) for each in states.take_changed()},
            self._rows,
            # A partition whose action ends meanwhile is part of the next Fetch only.
            wait_max_ms=_WAIT_BESIDE_ACTIONS_MS if self._waiting_actions else self._settings.wait_max_ms,
        )
        if answer.error is not ErrorCode.none:
            logger.info("Fetch from broker %d failed: %s", self._leader.leader_id, answer.error.name)
            if answer.error not in SESSION_ERRORS:
                self._pause(list(states.fetching))
            return
        cost = 0
        for key, row in answer.rows:
            fetch_state = states.get(key)
            if fetch_state is None:
                continue
            if fetch_state.asked is None:
                # Its follower was replaced after the request. The leader repeats offsets in the session only
                # after an error.
                if isinstance(row, Records):
                    self._leader.reset_session()
                continue
            if not isinstance(row, Records):
                self._process(fetch_state, fetch_state.asked, row)
                continue
            for part in append_turns.parts_of(row):
                self._execute(fetch_state, fetch_state.follower.on_records, fetch_state.asked, part.answer)
                states.on_records(fetch_state)
                cost += part.cost
                if cost >= append_turns.TURN_COST:
                    cost = 0
                    await self._runtime.turns.share(steps=_STEPS_OF_APPENDS, goes_first=True)
                if part.end_offset is not None and not self._asks_for(fetch_state, part.end_offset):
                    break
        for fetch_state in [each for each in states.changed if each.partition.log.flusher.is_due]:
            # Before the next Fetch, by which the leader counts the records as replicated (flush.messages).
            await flush_log(self._runtime, fetch_state.partition.log)

    def _asks_for(self, fetch_state: PartitionFetchState, offset: int) -> bool:
        """Whether the next request would be for records from this offset on, so that the next part answers it."""
        request = self._next_fetch(fetch_state)
        if request is None or request.fetch_offset != offset:
            return False
        fetch_state.asked = request
        return True

    def _rows(self) -> dict[Key, FetchRow]:
        """The rows of a full fetch: all partitions that can be fetched now."""
        return {each.key: row for each in self._states if (row := self._row(each)) is not None}

    def _row(self, fetch_state: PartitionFetchState) -> FetchRow | None:
        """The partition's row of a Fetch; None: it is not fetched now."""
        fetch_state.asked = request = self._next_fetch(fetch_state)
        if request is None:
            return None
        partition = fetch_state.partition
        local_log = partition.reported_local_log
        leader_epoch, fetch_offset, last_fetched_epoch, log_start_offset = request
        fields = (
            fetch_state.key[1],
            leader_epoch,
            fetch_offset,
            -1 if last_fetched_epoch is None else last_fetched_epoch,
            log_start_offset,
            self._settings.max_bytes,
            partition.log.offsets.high_watermark,
            None if local_log is None else local_log.to_state(),
        )
        return _new_tuple(FetchRow, fields)  # not a call of the class: 0.2 us instead of 0.35

    def _next_fetch(self, fetch_state: PartitionFetchState) -> FetchRecords | None:
        """The partition's next request for records; None: it has none now."""
        request = fetch_state.follower.next_request() if fetch_state in self._states.fetching else None
        return request if isinstance(request, FetchRecords) else None

    def _process(
        self, fetch_state: PartitionFetchState, asked: FetchRecords, answer: Divergence | ErrorCode
    ) -> None:
        """Process the answer to one row of a Fetch, which has no records."""
        follower = fetch_state.follower
        match answer:
            case Divergence():
                logger.info("%s: the log diverges from the leader's: %s", fetch_state.partition, answer)
                self._execute(fetch_state, follower.on_divergence, asked, answer)
            case ErrorCode.offset_out_of_range:
                follower.on_out_of_range(asked)
            case ErrorCode.offset_moved_to_tiered_storage if self._can_build(fetch_state.partition):
                follower.on_offset_moved(asked)
            case ErrorCode.fenced_leader_epoch:
                self._on_fenced(fetch_state, asked)
            case code:
                self._on_error_code(fetch_state, code)
        self._states.update(fetch_state)

    def _can_build(self, partition: Partition) -> bool:
        """Whether the log may restart after tiered records: the topic's configuration may arrive here later."""
        return self._actions.has_remote_tier and partition.log.is_tiered

    def _on_error_code(self, fetch_state: PartitionFetchState, code: int) -> None:
        """The leader has not answered this partition's request, which is retried after a pause.

        Usually one of the two brokers does not know the newest epoch or the topic yet: a repeated error is
        logged at DEBUG.
        """
        level = logging.DEBUG if code == fetch_state.error_code else logging.INFO
        name = ErrorCode(code).name
        logger.log(level, "%s: broker %d returned %s", fetch_state.partition, self._leader.leader_id, name)
        fetch_state.error_code = code
        self._pause([fetch_state])

    def _on_fenced(self, fetch_state: PartitionFetchState, asked: FollowerRequest) -> None:
        # Of each partition when its leader stops: the next epoch arrives here with the metadata, a moment later.
        logger.debug("%s: leader epoch %d is fenced", fetch_state.partition, asked.leader_epoch)
        fetch_state.follower.on_fenced(asked)

    # -- offsets -----------------------------------------------------------------------------------

    async def _locate(self, fetch_states: list[PartitionFetchState]) -> None:
        """Send the requests for the leader's offsets, each kind for all partitions at once."""
        bounds: dict[PartitionFetchState, FetchBounds] = {}
        offsets: dict[PartitionFetchState, FetchLeaderOffsets] = {}
        epoch_ends: dict[PartitionFetchState, FetchEpochEnd] = {}
        for each in fetch_states:
            match each.follower.next_request():
                case FetchBounds() as asked:
                    bounds[each] = asked
                case FetchLeaderOffsets() as asked:
                    offsets[each] = asked
                case FetchEpochEnd() as asked:
                    epoch_ends[each] = asked
                case FetchRecords() | None:
                    raise AssertionError((str(each.partition), each.follower.state))
                case unknown:
                    assert_never(unknown)
        if bounds:
            found = await self._leader.bounds(_leader_epochs(bounds))
            for each in bounds:
                if isinstance(answer := found[each.partition.topic_partition], Bounds):
                    logger.warning("%s: the log end is out of the leader's range: %s", each.partition, answer)
            self._on_offsets(bounds, found, Follower.on_bounds)
        if offsets:
            self._on_offsets(
                offsets,
                await self._leader.leader_offsets(
                    {each.partition.topic_partition: asked for each, asked in offsets.items()}
                ),
                Follower.on_leader_offsets,
            )
        if epoch_ends:
            asked_ends = {each.partition.topic_partition: asked for each, asked in epoch_ends.items()}
            self._on_offsets(epoch_ends, await self._leader.epoch_ends(asked_ends), Follower.on_epoch_end)

    def _on_offsets(
        self,
        requests: Mapping[PartitionFetchState, Asked],
        found: Mapping[TopicPartition, Answer | ErrorCode],
        decide: Callable[[Follower, Asked, Answer], Action | None],
    ) -> None:
        for fetch_state, asked in requests.items():
            if fetch_state.is_removed:
                continue
            answer = found[fetch_state.partition.topic_partition]
            if not isinstance(answer, ErrorCode):
                self._execute(fetch_state, decide, fetch_state.follower, asked, answer)
            elif answer is ErrorCode.fenced_leader_epoch:
                self._on_fenced(fetch_state, asked)
            else:
                self._on_error_code(fetch_state, answer)
            self._states.update(fetch_state)

    # -- actions -----------------------------------------------------------------------------------

    def _execute(
        self, fetch_state: PartitionFetchState, decide: Callable[[*Input], Action | None], *inputs: *Input
    ) -> None:
        """Execute the follower's decision on the log; replication stops for a log that cannot be written.

        `decide` is called in here, so that a bug in it, too, stops one partition and not the fetcher.
        """
        partition = fetch_state.partition
        try:
            action = decide(*inputs)
            if type(action) is Append:  # nearly always
                rest = self._actions.append(
                    action, fetch_state.follower, partition.follower, is_wanted=fetch_state.is_followed
                )
                self._throttle.record_received(partition, len(action.records))
            else:
                _log_action(partition, action)
                rest = self._actions.execute(
                    action, fetch_state.follower, partition.follower, is_wanted=fetch_state.is_followed
                )
        except Exception as error:  # noqa: BLE001 - logged
            self._on_error(fetch_state, error)
            return
        if rest is not None:
            task = self._runtime.create_task(
                self._complete(fetch_state, rest), name=f"{type(action).__name__} of {partition}"
            )
            self._waiting_actions.add(task)
            task.add_done_callback(self._waiting_actions.discard)

    async def _complete(self, fetch_state: PartitionFetchState, rest: Coroutine[None, None, None]) -> None:
        """Complete an action that has to wait; the other partitions continue, this one sends no request meanwhile."""
        try:
            await rest
        except Exception as error:  # noqa: BLE001 - logged
            self._on_error(fetch_state, error)
        else:
            fetch_state.failed_builds = 0
        if not fetch_state.is_removed:
            self._states.update(fetch_state)

    def _on_error(self, fetch_state: PartitionFetchState, error: Exception) -> None:
        """An error of one partition stops that partition only."""
        partition, follower = fetch_state.partition, fetch_state.follower
        match error:
            case CorruptMessage() if follower.state is ReplicaState.TRUNCATING:
                logger.error(
                    "%s: replication stops until the next leader epoch, the log cannot be truncated: %s",
                    partition,
                    error,
                )
            case CorruptMessage() | InvalidRecord():
                # Possibly damaged in transit; a leader with a failing disk is detected by its own readers.
                leader_id = self._leader.leader_id
                logger.error("%s: records from broker %d cannot be appended: %s", partition, leader_id, error)
                self._pause([fetch_state])
                return
            case RemoteStorageError():
                self._on_remote_error(fetch_state, error)
                return
            case TooManyOpenFiles():
                logger.warning("%s: records cannot be appended now: %s", partition, error)
                self._pause([fetch_state])
                return
            case KafkaStorageError():
                logger.error("%s: replication stops until the next leader epoch: %s", partition, error)
            case _ if follower.state is ReplicaState.BUILDING_REMOTE_LOG_AUX:
                # Of the store, in the end: what it returns later may be another thing.
                level = logging.DEBUG if fetch_state.failed_builds else logging.ERROR
                logger.log(level, "%s: unexpected error after its tiered records", partition, exc_info=error)
                self._on_remote_error(fetch_state, RemoteStorageError(repr(error)))
                return
            case _:
                logger.error("%s: replication stops until the next leader epoch", partition, exc_info=error)
        follower.on_failure()

    def _on_remote_error(self, fetch_state: PartitionFetchState, error: RemoteStorageError) -> None:
        """The remote tier does not have or return what a follower needs: it tries again, later each time."""
        if fetch_state.is_removed:
            return
        fetch_state.follower.on_remote_log_aux_failed()
        pause_ms = min(self._settings.backoff_ms << min(fetch_state.failed_builds, 16), _MAX_BACKOFF_MS)
        pause_ms = round(pause_ms * self._runtime.random.uniform(1 - _JITTER, 1 + _JITTER))
        # As an unavailable broker: logged as a warning only once.
        level = logging.DEBUG if fetch_state.failed_builds else logging.WARNING
        logger.log(
            level,
            "%s: the log cannot continue after its tiered records, the next attempt is in %d ms: %s",
            fetch_state.partition,
            pause_ms,
            error,
        )
        fetch_state.failed_builds += 1
        self._states.pause([fetch_state], pause_ms=pause_ms)


def _leader_epochs(
    fetch_states: Iterable[PartitionFetchState],
) -> dict[TopicPartition, int]:
    return {each.partition.topic_partition: each.follower.leader_epoch for each in fetch_states}


def _log_action(partition: Partition, action: Action | None) -> None:
    match action:
        case TruncateTo():
            if action.offset < partition.log.log_end_offset:
                logger.info("%s: truncating to offset %d", partition, action.offset)
        case TruncateFullyAndStartAt():
            logger.warning(
                "%s: removing all records, to start at offset %d of the leader", partition, action.offset
            )
        case BuildRemoteLogAux():
            logger.info("%s: continuing after the tiered records: %s", partition, action)
        case Append() | None:
            pass
        case _:
            assert_never(action)

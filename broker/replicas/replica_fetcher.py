"""Replica fetcher: fetches all partitions assigned to it from one leader, over one connection.

    wait for work --> ask for bounds (ListOffsets), else for records (Fetch) --> execute the followers' actions
         ^                                                                                  |
         '----------------------------------------------------------------------------------'

It decides nothing: `follower.Follower` decides what to ask for and what a response means. A partition that fails is
paused for replica.fetch.backoff.ms; the others continue.

Source: ReplicaFetcherThread, RemoteLeaderEndPoint of Kafka 4.3.1.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVarTuple, assert_never
from uuid import UUID

from broker.network.client import Address, ClientSettings, Disconnected, NodeClient
from broker.reads.list_offsets import EARLIEST, LATEST
from broker.replicas.flushes import flush_log
from broker.replicas.follower_actions import FollowerActions
from broker.replicas.partition import Partition
from broker.replication.follower import (
    Action,
    Append,
    AskBounds,
    Bounds,
    Divergence,
    FetchRecords,
    Follower,
    Records,
    ReplicaState,
    TruncateFullyAndStartAt,
    TruncateTo,
)
from broker.replication.follower_session import FollowerSession
from protocol.api_keys import ApiKey
from protocol.errors import CorruptMessage, ErrorCode, KafkaError, KafkaStorageError
from protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from protocol.messages.fetch import ReplicaState as Sender
from protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.types import TopicPartition
from runtime import Pool, Runtime

logger = logging.getLogger(__name__)

#: With topic ids (KIP-516), which is what all brokers of a KRaft cluster speak.
_FETCH_VERSIONS: Final = range(13, 19)
_SESSION_IS_GONE: Final = frozenset(
    {ErrorCode.fetch_session_id_not_found, ErrorCode.fetch_session_topic_id_error}
)
#: Other tasks of the event loop run after this much has been appended.
_TURN_BYTES: Final = 1 << 20

_UNANSWERED: Final = (ErrorCode.unknown_server_error, -1)

#: A partition as a Fetch names it: (topic id, partition index).
Key = tuple[UUID, int]

#: The input of a follower's decision: a request with its response, or a leader epoch.
Heard = TypeVarTuple("Heard")


@dataclass(slots=True, frozen=True, kw_only=True)
class FetcherSettings:
    """Configuration of the fetchers; names are those of Kafka's keys after `replica.fetch.`."""

    node_id: int
    wait_max_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 1_048_576
    response_max_bytes: int = 10_485_760
    backoff_ms: int = 1_000
    #: request.timeout.ms
    request_timeout_ms: int = 30_000
    #: A response may exceed the requested size: by one batch, which a leader accepts up to a request's size, and by
    #: the other fields of each partition. A response above this `response_max_bytes` is invalid.
    connections: ClientSettings = ClientSettings(response_max_bytes=128 * 1024 * 1024)  # noqa: RUF009 (frozen)


class PartitionFetchState:
    """One partition that this broker follows in one leader epoch."""

    __slots__ = ("asked", "follower", "is_removed", "key", "partition", "refusal")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        #: Its key in a Fetch.
        self.key: Key = (partition.topic_id, partition.topic_partition.partition)
        self.follower = Follower(partition.log)
        #: The request that the leader was last sent for it.
        self.asked: FetchRecords | None = None
        self.is_removed = False
        #: The last error code that the leader returned and that was logged.
        self.refusal: int | None = None


class ReplicaFetcher:
    """See the module. `address` returns the leader's present address, None while it is unknown."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        client: NodeClient,
        leader_id: int,
        address: Callable[[], Address | None],
        broker_epoch: Callable[[], int],
        settings: FetcherSettings,
        is_held_back: Callable[[Partition], bool],
        on_bytes: Callable[[Partition, int], None],
    ) -> None:
        self._runtime = runtime
        self._client = client
        self._leader_id = leader_id
        self._address = address
        self._broker_epoch = broker_epoch
        self._settings = settings
        self._is_held_back = is_held_back
        self._on_bytes = on_bytes
        self._fetch_states: dict[Key, PartitionFetchState] = {}
        #: Those with a request, by its kind: a round costs O(changes), not O(followed partitions).
        self._fetching: dict[PartitionFetchState, None] = {}
        self._locating: dict[PartitionFetchState, None] = {}
        #: Paused until this time in seconds of the monotonic clock: they send no requests before.
        self._paused: dict[PartitionFetchState, float] = {}
        #: Those whose row in the fetch session may have changed, in the order of the request.
        self._changed: dict[PartitionFetchState, None] = {}
        self._session: FollowerSession[Key, FetchPartition] = FollowerSession()
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_failing = False
        self._actions = FollowerActions(runtime, pool=Pool.FLUSHES)
        #: Actions that run as tasks, since they wait for the disk.
        self._waiting_actions: set[asyncio.Task[None]] = set()

    def __bool__(self) -> bool:
        return bool(self._fetch_states)

    # -- followed partitions -----------------------------------------------------------------------

    def follow(self, partition: Partition) -> None:
        """Follow the partition in its leader epoch; nothing changes if it is followed in that epoch already."""
        fetch_state = self._fetch_states.get((partition.topic_id, partition.topic_partition.partition))
        if fetch_state is not None and (
            fetch_state.partition is partition and fetch_state.follower.leader_epoch == partition.leader_epoch
        ):
            return
        self.unfollow(partition)
        fetch_state = PartitionFetchState(partition)
        self._fetch_states[fetch_state.key] = fetch_state
        self._execute(fetch_state, fetch_state.follower.follow, partition.leader_epoch)
        self._note(fetch_state)
        if self._task is None:
            self._task = self._runtime.supervise(self._run, name=f"fetcher-{self._leader_id}")

    def unfollow(self, partition: Partition) -> None:
        """Stop following the partition; a response that is still to come is ignored for it."""
        key = (partition.topic_id, partition.topic_partition.partition)
        fetch_state = self._fetch_states.pop(key, None)
        if fetch_state is not None:
            fetch_state.is_removed = True
            self._paused.pop(fetch_state, None)
            self._note(fetch_state)

    def refresh(self, partition: Partition) -> None:
        """Retention has moved the log start, without a response."""
        fetch_state = self._fetch_states.get((partition.topic_id, partition.topic_partition.partition))
        if fetch_state is not None:
            self._note(fetch_state)

    async def stop(self) -> None:
        """Send no more requests, start no more actions, and close the connection.

        A running action ends with the job that is in a thread: a thread cannot be stopped, and the files that it
        has created must be removed.
        """
        for fetch_state in self._fetch_states.values():
            fetch_state.is_removed = True
        if self._task is not None:
            self._task.cancel()
        tasks = [*self._waiting_actions, *([] if self._task is None else [self._task])]
        if tasks:
            await asyncio.wait(tasks)
        await self._client.close()

    def lag(self, partition: Partition) -> int | None:
        """How many offsets the leader's high watermark is ahead; None: not known."""
        fetch_state = self._fetch_states.get((partition.topic_id, partition.topic_partition.partition))
        return None if fetch_state is None else fetch_state.follower.lag

    # -- rounds ------------------------------------------------------------------------------------

    async def _run(self) -> None:
        # This may be a restart of the task: the leader may have answered its last request, and the response is lost.
        self._session.on_refusal(is_gone=False)
        while True:
            self._resume()
            self._hold_back_throttled()
            if not self._locating and not self._fetching:
                await self._rest()
                continue
            address = self._address()
            try:
                if address is None:
                    raise Disconnected(f"broker {self._leader_id} has no address now")
                if self._locating:
                    await self._locate(address, list(self._locating))
                else:
                    await self._fetch(address)
            except (OSError, TimeoutError, KafkaError) as error:
                self._on_failure(error)
                self._delay([*self._locating, *self._fetching])
            else:
                self._on_success()

    def _on_failure(self, error: Exception) -> None:
        # An unavailable broker is retried after each backoff, and logged as a warning only once.
        level = logging.DEBUG if self._is_failing else logging.WARNING
        logger.log(level, "Fetch from broker %d failed: %s", self._leader_id, error)
        self._is_failing = True
        self._session.on_refusal(is_gone=False)

    def _on_success(self) -> None:
        if self._is_failing:
            logger.info("broker %d works again", self._leader_id)
            self._is_failing = False

    async def _rest(self) -> None:
        """Wait for work: a newly followed partition, or the end of a pause."""
        self._work.clear()
        resumes_at = min(self._paused.values(), default=None)
        timeout_s = None if resumes_at is None else max(0.0, resumes_at - self._runtime.monotonic())
        try:
            async with asyncio.timeout(timeout_s):
                await self._work.wait()
        except TimeoutError:
            pass

    def _resume(self) -> None:
        if self._paused:
            now = self._runtime.monotonic()
            for fetch_state in [each for each, resumes_at in self._paused.items() if resumes_at <= now]:
                del self._paused[fetch_state]
                self._note(fetch_state)

    def _delay(self, fetch_states: Iterable[PartitionFetchState]) -> None:
        resumes_at = self._runtime.monotonic() + self._settings.backoff_ms / 1000
        for fetch_state in fetch_states:
            self._paused[fetch_state] = resumes_at
            self._note(fetch_state)

    def _note(self, fetch_state: PartitionFetchState) -> None:
        """The partition's next request may have changed."""
        self._changed[fetch_state] = None
        self._fetching.pop(fetch_state, None)
        self._locating.pop(fetch_state, None)
        if not fetch_state.is_removed and fetch_state not in self._paused:
            match fetch_state.follower.state:
                case ReplicaState.FETCHING:
                    self._fetching[fetch_state] = None
                case ReplicaState.LOCATING:
                    self._locating[fetch_state] = None
                case _:
                    pass
        self._work.set()

    # -- records -----------------------------------------------------------------------------------

    async def _fetch(self, address: Address) -> None:
        changed, self._changed = self._changed, {}
        # Unfollowed ones first: a successor may have the same key.
        in_order = sorted(changed, key=lambda each: not each.is_removed)
        request = self._session.request({each.key: self._row(each) for each in in_order}, self._rows)
        response: FetchResponse = await self._client.request(
            address,
            ApiKey.FETCH,
            FetchRequest(
                replica_state=Sender(replica_id=self._settings.node_id, replica_epoch=self._broker_epoch()),
                max_wait_ms=self._settings.wait_max_ms,
                min_bytes=self._settings.min_bytes,
                max_bytes=self._settings.response_max_bytes,
                session_id=request.session_id,
                session_epoch=request.epoch,
                topics=_by_topic(request.rows),
                forgotten_topics_data=_forgotten(request.forgotten),
            ),
            timeout_s=self._settings.request_timeout_ms / 1000,
            versions=_FETCH_VERSIONS,
        )
        if response.error_code != ErrorCode.none:
            logger.info(
                "Fetch from broker %d failed: %s", self._leader_id, ErrorCode(response.error_code).name
            )
            is_gone = response.error_code in _SESSION_IS_GONE
            self._session.on_refusal(is_gone=is_gone)
            if not is_gone and response.error_code != ErrorCode.invalid_fetch_session_epoch:
                self._delay(list(self._fetching))  # a new session does not help
            return
        self._session.on_answer(response.session_id)
        appended_bytes = 0
        for topic in response.responses:
            for row in topic.partitions:
                fetch_state = self._fetch_states.get((topic.topic_id, row.partition_index))
                if fetch_state is None or fetch_state.asked is None:
                    continue
                self._process(fetch_state, fetch_state.asked, row)
                appended_bytes += len(row.records or b"")
                if appended_bytes >= _TURN_BYTES:
                    appended_bytes = 0
                    await asyncio.sleep(0)
        for fetch_state in [each for each in self._changed if each.partition.log.is_flush_due]:
            # Before the next Fetch, by which the leader counts the records as replicated (flush.messages).
            await flush_log(self._runtime, fetch_state.partition.log)

    def _hold_back_throttled(self) -> None:
        # Not a replica that has everything committed (lag 0): a member of the ISR would fall out of it.
        self._delay(
            [
                each
                for each in self._changed
                if not each.is_removed
                and each not in self._paused
                and each.follower.lag != 0
                and self._is_held_back(each.partition)
            ]
        )

    def _rows(self) -> dict[Key, FetchPartition]:
        """The rows of a full fetch: all partitions that can be fetched now."""
        return {key: row for key, each in self._fetch_states.items() if (row := self._row(each)) is not None}

    def _row(self, fetch_state: PartitionFetchState) -> FetchPartition | None:
        """The partition's row of a Fetch; None: it is not fetched now."""
        question = None
        if not fetch_state.is_removed and fetch_state not in self._paused:
            question = fetch_state.follower.question()
        if not isinstance(question, FetchRecords):
            fetch_state.asked = None
            return None
        fetch_state.asked = question
        return FetchPartition(
            partition=fetch_state.partition.topic_partition.partition,
            current_leader_epoch=question.leader_epoch,
            fetch_offset=question.fetch_offset,
            last_fetched_epoch=-1 if question.last_fetched_epoch is None else question.last_fetched_epoch,
            log_start_offset=question.log_start_offset,
            partition_max_bytes=self._settings.max_bytes,
            high_watermark=fetch_state.partition.log.high_watermark,
        )

    def _process(self, fetch_state: PartitionFetchState, asked: FetchRecords, row: PartitionData) -> None:
        """Process one row of a Fetch response."""
        follower = fetch_state.follower
        match row.error_code:
            case ErrorCode.none if row.diverging_epoch.epoch >= 0:
                divergence = Divergence(
                    epoch=row.diverging_epoch.epoch, end_offset=row.diverging_epoch.end_offset
                )
                logger.info("%s: the log diverges from the leader's: %s", fetch_state.partition, divergence)
                self._execute(fetch_state, follower.on_divergence, asked, divergence)
            case ErrorCode.none:
                answer = Records(
                    records=memoryview(row.records or b""),
                    high_watermark=row.high_watermark,
                    log_start_offset=row.log_start_offset,
                )
                self._execute(fetch_state, follower.on_records, asked, answer)
            case ErrorCode.offset_out_of_range:
                follower.on_out_of_range(asked)
            case ErrorCode.fenced_leader_epoch:
                logger.info("%s: leader epoch %d is fenced", fetch_state.partition, asked.leader_epoch)
                follower.on_fenced(asked)
            case code:
                # Usually one of the two brokers does not know the newest epoch or the topic yet: the request is
                # retried, and a repeated error is logged at DEBUG.
                level = logging.DEBUG if code == fetch_state.refusal else logging.INFO
                name = ErrorCode(code).name
                logger.log(level, "%s: broker %d returned %s", fetch_state.partition, self._leader_id, name)
                fetch_state.refusal = code
                self._delay([fetch_state])
        self._note(fetch_state)

    # -- bounds ------------------------------------------------------------------------------------

    async def _locate(self, address: Address, fetch_states: list[PartitionFetchState]) -> None:
        ends = await self._offsets(address, fetch_states, LATEST)
        starts = await self._offsets(address, fetch_states, EARLIEST)
        for fetch_state in fetch_states:
            if fetch_state.is_removed:
                continue
            end_error, end = ends.get(fetch_state, _UNANSWERED)
            start_error, start = starts.get(fetch_state, _UNANSWERED)
            asked = AskBounds(leader_epoch=fetch_state.follower.leader_epoch)
            if end_error is start_error is ErrorCode.none:
                bounds = Bounds(log_start_offset=start, log_end_offset=end)
                logger.warning(
                    "%s: the log end is out of the leader's range: %s", fetch_state.partition, bounds
                )
                self._execute(fetch_state, fetch_state.follower.on_bounds, asked, bounds)
            elif ErrorCode.fenced_leader_epoch in (end_error, start_error):
                fetch_state.follower.on_fenced(asked)
            else:
                self._delay([fetch_state])
            self._note(fetch_state)

    async def _offsets(
        self, address: Address, fetch_states: list[PartitionFetchState], timestamp: int
    ) -> dict[PartitionFetchState, tuple[ErrorCode, int]]:
        """One bound of the leader's logs by ListOffsets: (error code, offset) of each partition that was answered."""
        topics: dict[str, ListOffsetsTopic] = {}
        by_name = {each.partition.topic_partition: each for each in fetch_states}
        for (topic, index), fetch_state in by_name.items():
            topics.setdefault(topic, ListOffsetsTopic(name=topic)).partitions.append(
                ListOffsetsPartition(
                    partition_index=index,
                    current_leader_epoch=fetch_state.follower.leader_epoch,
                    timestamp=timestamp,
                )
            )
        response: ListOffsetsResponse = await self._client.request(
            address,
            ApiKey.LIST_OFFSETS,
            ListOffsetsRequest(replica_id=self._settings.node_id, topics=list(topics.values())),
            timeout_s=self._settings.request_timeout_ms / 1000,
        )
        found: dict[PartitionFetchState, tuple[ErrorCode, int]] = {}
        for answered in response.topics:
            for row in answered.partitions:
                asked = by_name.get(TopicPartition(answered.name, row.partition_index))
                if asked is not None:
                    found[asked] = ErrorCode(row.error_code), row.offset
        return found

    # -- actions -----------------------------------------------------------------------------------

    def _execute(
        self, fetch_state: PartitionFetchState, decide: Callable[[*Heard], Action | None], *heard: *Heard
    ) -> None:
        """Execute the follower's decision on the log; a log that cannot be written is not followed any more.

        `decide` is called in here, so that a bug in it, too, stops one partition and not the fetcher.
        """
        partition = fetch_state.partition
        with self._failures(fetch_state):
            action = decide(*heard)
            _log_action(partition, action)
            rest = self._actions.execute(
                action,
                fetch_state.follower,
                partition.follower,
                is_wanted=lambda: not fetch_state.is_removed,
            )
            if type(action) is Append:
                self._on_bytes(partition, len(action.records))
            if rest is not None:
                task = self._runtime.create_task(
                    self._complete(fetch_state, rest), name=f"truncation of {partition}"
                )
                self._waiting_actions.add(task)
                task.add_done_callback(self._waiting_actions.discard)

    async def _complete(self, fetch_state: PartitionFetchState, rest: Coroutine[None, None, None]) -> None:
        """Complete an action that has to wait; the other partitions continue, this one sends no request meanwhile."""
        with self._failures(fetch_state):
            await rest
        if not fetch_state.is_removed:
            self._note(fetch_state)

    @contextmanager
    def _failures(self, fetch_state: PartitionFetchState) -> Iterator[None]:
        """An error of one partition stops that partition only."""
        partition, follower = fetch_state.partition, fetch_state.follower
        try:
            yield
        except CorruptMessage as error:
            if follower.state is ReplicaState.TRUNCATING:
                logger.error(
                    "%s: replication stops until the next leader epoch, the log cannot be truncated: %s",
                    partition,
                    error,
                )
                follower.on_failure()
                return
            # Possibly damaged in transit; a leader with a failing disk is detected by its own readers.
            logger.error(
                "%s: records from broker %d cannot be appended: %s", partition, self._leader_id, error
            )
            self._delay([fetch_state])
        except KafkaStorageError as error:
            logger.error("%s: replication stops until the next leader epoch: %s", partition, error)
            follower.on_failure()
        except Exception:
            logger.exception("%s: replication stops until the next leader epoch", partition)
            follower.on_failure()


def _log_action(partition: Partition, action: Action | None) -> None:
    match action:
        case TruncateTo():
            if action.offset < partition.log.log_end_offset:
                logger.info("%s: truncating to offset %d", partition, action.offset)
        case TruncateFullyAndStartAt():
            logger.warning(
                "%s: removing all records, to start at offset %d of the leader", partition, action.offset
            )
        case Append() | None:
            pass
        case _:
            assert_never(action)


def _by_topic(rows: Mapping[Key, FetchPartition]) -> list[FetchTopic]:
    topics: dict[UUID, FetchTopic] = {}
    for (topic_id, _), row in rows.items():
        topics.setdefault(topic_id, FetchTopic(topic_id=topic_id)).partitions.append(row)
    return list(topics.values())


def _forgotten(keys: Iterable[Key]) -> list[ForgottenTopic]:
    topics: dict[UUID, ForgottenTopic] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, ForgottenTopic(topic_id=topic_id)).partitions.append(index)
    return list(topics.values())

"""Coordinator runtime: loads and unloads the shards of this broker as the leadership of their partitions changes.

    no shard --on_election--> loading, one by one --> active --on_resignation--> kept for `KEPT_S` --> discarded
                                   ^------------------ on_election ------------------'

Source: CoordinatorRuntime (scheduleLoadOperation, scheduleUnloadOperation) of Kafka 4.3.
"""

from asyncio import Lock, Semaphore
from collections.abc import Callable, Iterable, Iterator
from typing import Final
from uuid import UUID

from ottla.broker.groups.config import OFFSETS_TOPIC, GroupConfig
from ottla.broker.groups.coordinator_log import CoordinatorLog
from ottla.broker.groups.log_state import LogState
from ottla.broker.groups.offset_manager import Topics
from ottla.broker.groups.resuming import KEPT_S, Resumable
from ottla.broker.groups.shard_runtime import ShardRuntime
from ottla.protocol.errors import CoordinatorNotAvailable, NotCoordinator
from ottla.protocol.types import TopicPartition
from ottla.runtime import Runtime
from ottla.runtime.turns import in_turns

#: Maximum number of partitions loaded at the same time; Kafka's CoordinatorLoaderImpl has one thread, too.
LOADS_AT_ONCE: Final = 1

#: How long a request waits for a partition that this broker is about to lead, or loads: a new offsets topic needs a few
#: hundred ms, and a client that is refused waits for up to three seconds. A longer load is answered in the meantime.
LOAD_WAIT_S: Final = 1.0


class CoordinatorRuntime:
    """Holds the shards of all partitions of the offsets topic that this broker leads, and loads and unloads them.

    Implements `LeadershipListener`.
    """

    def __init__(self, *, config: GroupConfig, log: CoordinatorLog, runtime: Runtime, topics: Topics) -> None:
        self._config = config
        self._log = log
        self._runtime = runtime
        self._topics = topics
        #: Partition of the offsets topic -> its shard.
        self.by_partition: dict[int, ShardRuntime] = {}
        #: The replayed state of partitions whose leadership has ended within the last `KEPT_S`.
        self.resumables: dict[int, Resumable] = {}
        #: Shards whose leadership has ended, until all their requests are answered.
        self._unloading: list[ShardRuntime] = []
        self._loads = Semaphore(LOADS_AT_ONCE)
        #: One partition is unloaded at a time: fifty tasks together would block the loop for a tenth of a second.
        self._unloads = Lock()
        self.is_active = False
        #: Partition -> callbacks of the requests that wait for its shard to be loaded; at most one of each
        #: connection.
        self._waiting: dict[int, list[Callable[[], None]]] = {}

    def start(self) -> None:
        """Load the partitions that this broker leads, and follow leadership changes from now on."""
        self.is_active = True
        self._log.add_leadership_listener(self)
        self._schedule_expiry()

    def stop(self) -> None:
        """Answer all waiting requests, and cancel all timers."""
        self.is_active = False
        for shard in [*self._unloading, *self.by_partition.values()]:
            for _ in shard.close():
                pass
            shard.answer_at_once()
        self.by_partition.clear()
        for partition in list(self._waiting):
            for wake in self._waiting.pop(partition):
                wake()
        self.resumables.clear()

    def shard(self, partition: int) -> ShardRuntime:
        """Return the shard of a partition of the offsets topic.

        Raises NotCoordinator; CoordinatorNotAvailable before `start`.
        """
        if not self.is_active:
            raise CoordinatorNotAvailable("the coordinator does not run")
        shard = self.by_partition.get(partition)
        if shard is None:
            raise NotCoordinator(f"{OFFSETS_TOPIC}-{partition} is not led here")
        return shard

    def is_ready(self, partition: int) -> bool:
        """Whether `shard` of this partition has its final answer, unless the leadership changes."""
        shard = self.by_partition.get(partition)
        return not self.is_active or (shard is not None and not shard.is_loading)

    def when_ready(self, partition: int, wake: Callable[[], None]) -> None:
        """Call `wake` when the partition is loaded, or is not to be loaded any more, or after `LOAD_WAIT_S`."""
        waiting = self._waiting.get(partition)
        if waiting is None:
            self._waiting[partition] = waiting = []
            self._runtime.call_later(LOAD_WAIT_S, self._wake, partition, waiting)
        waiting.append(wake)

    def _wake(self, partition: int, waiting: list[Callable[[], None]] | None = None) -> None:
        """Wake the callbacks that wait for the partition, in turns of the loop; with `waiting`, only these."""
        current = self._waiting.get(partition)
        if current and (waiting is None or waiting is current):
            del self._waiting[partition]
            steps = (wake() for wake in current)
            self._runtime.create_task(
                in_turns(self._runtime, steps), name=f"answer {OFFSETS_TOPIC}-{partition}"
            )

    # Leadership

    def on_election(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """Load the partition, unless this broker led it already: then its state is that of the log."""
        topic, partition = topic_partition
        if topic != OFFSETS_TOPIC or not self.is_active:
            return
        led = self.by_partition.get(partition)
        if led is not None and not led.is_closed:
            return
        state = self._take_resumable(topic_partition) or LogState(topic_partition)
        shard = ShardRuntime(
            state, config=self._config, log=self._log, runtime=self._runtime, topics=self._topics
        )
        self.by_partition[partition] = shard
        self._runtime.create_task(self._load(shard), name=f"load {topic_partition} of epoch {leader_epoch}")

    async def _load(self, shard: ShardRuntime) -> None:
        async with self._loads:
            await shard.load()
        if self.by_partition.get(shard.topic_partition.partition) is shard:
            self._wake(shard.topic_partition.partition)

    def on_resignation(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """Unload the partition. Its replayed state is kept for `KEPT_S`: this broker may lead it again soon."""
        topic, partition = topic_partition
        shard = self.by_partition.pop(partition, None) if topic == OFFSETS_TOPIC else None
        if shard is None:
            return
        self._wake(partition)
        self._unloading.append(shard)
        self._runtime.create_task(self._unload(shard, shard.close()), name=f"unload {shard.topic_partition}")
        resumable = shard.resumable()
        if resumable is None:
            self._discard(shard.state)
            return
        self.resumables[partition] = resumable
        self._runtime.call_later(KEPT_S, self.drop_resumable, partition, resumable)

    def _take_resumable(self, topic_partition: TopicPartition) -> LogState | None:
        """The replayed state of the partition's previous leadership, if it is still valid."""
        resumable = self.resumables.pop(topic_partition.partition, None)
        if resumable is None or resumable.is_of(self._log.replica_log(topic_partition)):
            return resumable and resumable.state
        self._discard(resumable.state)
        return None

    def drop_resumable(self, partition: int, resumable: Resumable) -> None:
        """The partition was led by other brokers for `KEPT_S`: free the memory."""
        if self.resumables.get(partition) is resumable:
            del self.resumables[partition]
            self._discard(resumable.state)

    def _discard(self, state: LogState) -> None:
        self._runtime.create_task(self._in_turns(state.discard()), name=f"discard {state.topic_partition}")

    async def _unload(self, shard: ShardRuntime, steps: Iterator[None]) -> None:
        await self._in_turns(steps)
        await in_turns(self._runtime, shard.answering())
        self._unloading.remove(shard)

    async def _in_turns(self, steps: Iterator[None]) -> None:
        async with self._unloads:
            await in_turns(self._runtime, steps)

    # Cleanup

    def on_topics_deleted(self, topics: Iterable[tuple[UUID, str]]) -> None:
        """Delete the committed offsets of these topics (id, name)."""
        self._runtime.create_task(self._delete_topics(list(topics)), name="delete offsets of deleted topics")

    async def _delete_topics(self, deleted: list[tuple[UUID, str]]) -> None:
        for partition in list(self.by_partition):
            if (shard := self.by_partition.get(partition)) is not None:
                await shard.delete_topics(deleted)

    def _schedule_expiry(self) -> None:
        self._runtime.call_later(self._config.offsets_retention_check_interval_ms / 1000, self._expire)

    def _expire(self) -> None:
        if self.is_active:
            self._runtime.create_task(self.expire_all(), name="expire committed offsets")

    async def expire_all(self) -> None:
        """Clean up all shards, and schedule the next run.

        Deletes expired offsets and groups, and offsets of deleted topics.
        """
        try:
            for shard in list(self.by_partition.values()):
                await shard.expire()
        finally:
            self._schedule_expiry()

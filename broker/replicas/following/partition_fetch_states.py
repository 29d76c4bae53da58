"""Fetch states of the partitions that one replica fetcher follows: which have a request to send, and which are paused.

    FETCHING of `follower`                       --> ready: `fetching`
    LOCATING, LOCATING_LOCAL, CONFIRMING_COPY    --> ready: `locating`
    another state, or removed                    --> no request
    an error of the partition                    --> paused for replica.fetch.backoff.ms or longer, then as above

Invariant: `fetching` and `locating` have only partitions that are followed and not paused. They are ordered sets, so
that a round costs O(changes), not O(followed partitions).

Source: Kafka's PartitionFetchState and AbstractFetcherThread.partitionStates.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import assert_never

from ottla.broker.replicas.partition import Partition
from ottla.protocol.hot.fetch import Key
from ottla.replication.follower import FetchRecords, Follower
from ottla.replication.follower_states import ReplicaState
from ottla.runtime import Runtime


class PartitionFetchState:
    """One partition that this broker follows in one leader epoch."""

    __slots__ = ("asked", "error_code", "failed_builds", "follower", "is_removed", "key", "partition")

    def __init__(self, partition: Partition, *, prefers_last_tiered: Callable[[], bool]) -> None:
        """`prefers_last_tiered` returns follower.fetch.last.tiered.offset.enable (KIP-1023)."""
        self.partition = partition
        self.key = key_of(partition)
        self.follower = Follower(partition.log, prefers_last_tiered=prefers_last_tiered)
        #: Its row in the last request that was sent to the leader.
        self.asked: FetchRecords | None = None
        #: Its responses are ignored: it is not followed any more, or in another leader epoch.
        self.is_removed = False
        #: The last error code that the leader returned and that was logged.
        self.error_code: int | None = None
        #: How often in a row the remote tier did not return what the follower needs.
        self.failed_builds = 0

    def is_followed(self) -> bool:
        """Whether this broker still follows the partition in its leader epoch."""
        return not self.is_removed


def key_of(partition: Partition) -> Key:
    """The partition as a Fetch names it."""
    return partition.topic_id.bytes, partition.topic_partition.partition


class PartitionFetchStates:
    """The fetch states of one replica fetcher's partitions: ready to fetch, ready to ask for offsets, or paused."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._by_key: dict[Key, PartitionFetchState] = {}
        self.fetching: dict[PartitionFetchState, None] = {}
        self.locating: dict[PartitionFetchState, None] = {}
        #: Partitions whose row in the fetch session may have changed, in the order of the request.
        self.changed: dict[PartitionFetchState, None] = {}
        #: When each pause ends, in seconds of the monotonic clock.
        self._paused: dict[PartitionFetchState, float] = {}
        self._has_work = asyncio.Event()

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[PartitionFetchState]:
        return iter(self._by_key.values())

    def get(self, key: Key) -> PartitionFetchState | None:
        """The state of a followed partition."""
        return self._by_key.get(key)

    def add(self, fetch_state: PartitionFetchState) -> None:
        """Start following; the caller calls `update` when the follower has its leader epoch."""
        assert fetch_state.key not in self._by_key, str(fetch_state.partition)
        assert not fetch_state.is_removed, str(fetch_state.partition)
        self._by_key[fetch_state.key] = fetch_state

    def remove(self, key: Key) -> None:
        """Stop following; a response that arrives later is ignored."""
        fetch_state = self._by_key.pop(key, None)
        if fetch_state is not None:
            fetch_state.is_removed = True
            self._paused.pop(fetch_state, None)
            self.update(fetch_state)

    def update(self, fetch_state: PartitionFetchState) -> None:
        """The partition's next request may have changed."""
        self.changed[fetch_state] = None
        self.fetching.pop(fetch_state, None)
        self.locating.pop(fetch_state, None)
        is_followed = self._by_key.get(fetch_state.key) is fetch_state
        assert is_followed is not fetch_state.is_removed, str(fetch_state.partition)
        if not fetch_state.is_removed and fetch_state not in self._paused:
            match fetch_state.follower.state:
                case ReplicaState.FETCHING:
                    self.fetching[fetch_state] = None
                case ReplicaState.LOCATING | ReplicaState.LOCATING_LOCAL | ReplicaState.CONFIRMING_COPY:
                    self.locating[fetch_state] = None
                case ReplicaState.TRUNCATING | ReplicaState.BUILDING_REMOTE_LOG_AUX:
                    pass
                case ReplicaState.FENCED | ReplicaState.FAILED:
                    pass
                case unknown:
                    assert_never(unknown)
        self._has_work.set()

    def on_records(self, fetch_state: PartitionFetchState) -> None:
        """Update the state after an append: nearly always the next request is for the records that follow."""
        if fetch_state in self.fetching and fetch_state.follower.state is ReplicaState.FETCHING:
            self.changed[fetch_state] = None
        else:
            self.update(fetch_state)

    def take_changed(self) -> list[PartitionFetchState]:
        """Return the states whose row may have changed since the last call, and forget them.

        Removed ones are first: a successor may have the same key.
        """
        changed, self.changed = self.changed, {}
        removed = [each for each in changed if each.is_removed]
        return [*removed, *[each for each in changed if not each.is_removed]] if removed else list(changed)

    # -- pauses ------------------------------------------------------------------------------------

    def may_send(self, fetch_state: PartitionFetchState) -> bool:
        """Whether the partition is followed and not paused, so that it may send a request."""
        return not fetch_state.is_removed and fetch_state not in self._paused

    def pause(self, fetch_states: Iterable[PartitionFetchState], *, pause_ms: int) -> None:
        """Send no request for these partitions during `pause_ms`."""
        resumes_at = self._runtime.monotonic() + pause_ms / 1000
        for fetch_state in fetch_states:
            self._paused[fetch_state] = resumes_at
            self.update(fetch_state)

    def resume(self) -> None:
        """End the pauses that are due."""
        if self._paused:
            now = self._runtime.monotonic()
            for fetch_state in [each for each, resumes_at in self._paused.items() if resumes_at <= now]:
                del self._paused[fetch_state]
                self.update(fetch_state)

    async def wait(self) -> None:
        """Wait for an `update`, or the end of a pause."""
        self._has_work.clear()
        resumes_at = min(self._paused.values(), default=None)
        timeout_s = None if resumes_at is None else max(0.0, resumes_at - self._runtime.monotonic())
        try:
            async with asyncio.timeout(timeout_s):
                await self._has_work.wait()
        except TimeoutError:
            pass

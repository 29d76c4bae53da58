"""The methods by which a test looks at a cluster, plain and awaitable; `ottla.testing.operations` does the work."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

from ottla.broker.cluster_client.client import addresses_of
from ottla.broker.cluster_client.errors import ClusterError
from ottla.broker.network.client import Address
from ottla.protocol.types import TopicPartition
from ottla.runtime.loop_thread import LoopThread
from ottla.testing.awaitables import AwaitableMethods, AwaitableOf, in_a_thread
from ottla.testing.operations import PATIENCE_S, Operations
from ottla.testing.records import Record

T = TypeVar("T")
#: How long an answer may take that is under way when the time of a method ends: its reason is better than none.
_LAST_ANSWER_S: Final = 0.5


class ClusterMethods(ABC):
    """The methods of a broker, or of a cluster, over Kafka's protocol."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._thread: LoopThread | None = None
        self._operations: Operations | None = None

    @property
    @abstractmethod
    def bootstrap_servers(self) -> str:
        """The addresses for clients' `bootstrap.servers`: HOST:PORT,..."""

    @property
    def aio(self) -> "Awaitables":
        """The same methods as awaitables: `await broker.aio.values("orders")`."""
        return Awaitables(self)

    # -- configurations of clients ----------------------------------------------------------------------

    def get_bootstrap_server(self) -> str:
        """Return the same as `bootstrap_servers`, under the name that testcontainers gives it."""
        return self.bootstrap_servers

    def config(self, **extra: object) -> dict[str, Any]:
        """Return a configuration for confluent-kafka; underscores of `extra` are dots: `group_id="g"`.

        A client reconnects quickly to a broker that comes back.
        """
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            **{key.replace("_", "."): value for key, value in extra.items()},
        }

    def consumer_config(self, group: str, **extra: object) -> dict[str, Any]:
        """Return a configuration for a consumer of confluent-kafka, which reads from the beginning."""
        return self.config(group_id=group, auto_offset_reset="earliest", **extra)

    def kafka_python_config(self, **extra: object) -> dict[str, Any]:
        """Return keyword arguments for the clients of kafka-python."""
        return {"bootstrap_servers": self.bootstrap_servers, "reconnect_backoff_ms": 10, **extra}

    def aiokafka_config(self, **extra: object) -> dict[str, Any]:
        """Return keyword arguments for the clients of aiokafka."""
        return {"bootstrap_servers": self.bootstrap_servers, "retry_backoff_ms": 20, **extra}

    # -- topics -----------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replicas: int = -1,
        config: Mapping[str, object] | None = None,
    ) -> str:
        """Create a topic, wait until it has leaders, and return its name."""
        return self._do(
            lambda do: do.create_topic(name, partitions=partitions, replicas=replicas, config=config)
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until no broker shows it."""
        self._do(lambda do: do.delete_topic(name))

    def topics(self) -> list[str]:
        """Return the names of all topics but the internal ones, sorted."""
        return self._do(lambda do: do.topics())

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the broker id of the partition's leader; -1: it has none."""
        return self._do(lambda do: do.leader(topic, partition))

    def move_leader(self, topic: str, partition: int = 0, *, to: int) -> None:
        """Make broker `to` the leader of the partition; it must have a replica."""
        self._do(lambda do: do.move_leader(topic, partition, to=to))

    # -- records ----------------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        *values: str | bytes | None,
        key: str | bytes | None = None,
        headers: Mapping[str, str | bytes | None] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> int:
        """Append records with acks=all, and return the offset of the first one; see `Operations.produce`."""
        return self._do(
            lambda do: do.produce(
                topic,
                *values,
                key=key,
                headers=headers,
                partition=partition,
                timestamp_ms=self._record_time_ms() if timestamp_ms is None else timestamp_ms,
            )
        )

    def records(self, topic: str, partition: int | None = None) -> list[Record]:
        """Read all committed records, of both tiers, by partition and offset."""
        return self._do(lambda do: do.records(topic, partition))

    def values(self, topic: str, partition: int | None = None) -> list[bytes | None]:
        """Read the values of all committed records, by partition and offset."""
        return self._do(lambda do: do.values(topic, partition))

    def wait_for_records(self, topic: str, count: int, *, timeout_s: float = PATIENCE_S) -> list[Record]:
        """Wait until the topic has at least `count` records, and return all."""
        return self._do(lambda do: do.wait_for_records(topic, count, timeout_s=timeout_s), timeout_s)

    def records_since(
        self, topic: str, count: int, *, since: Mapping[int, int], timeout_s: float = PATIENCE_S
    ) -> list[Record]:
        """Wait until the topic has at least `count` records from these offsets on, by partition, and return them."""
        return self._do(
            lambda do: do.wait_for_records(topic, count, since=since, timeout_s=timeout_s), timeout_s
        )

    @contextmanager
    def recording(
        self,
        topic: str,
        expected: Sequence[str | bytes | None] | None = None,
        *,
        timeout_s: float = PATIENCE_S,
    ) -> Iterator[list[Record]]:
        """Record what arrives in the topic within the `with`, in a list that is filled at its end.

        With `expected` values, the end waits for as many records, and raises AssertionError if others have arrived.
        """
        recording = _Recording(self, topic, expected, timeout_s)
        yield recording.arrived
        recording.end()

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the log end offset, as consumers see it, of each partition."""
        return self._do(lambda do: do.end_offsets(topic))

    def start_offsets(self, topic: str) -> dict[int, int]:
        """Return the log start offset of each partition."""
        return self._do(lambda do: do.start_offsets(topic))

    # -- groups -----------------------------------------------------------------------------------------

    def groups(self) -> dict[str, str]:
        """Return the state of each group: Stable, Empty, PreparingRebalance, ..."""
        return self._do(lambda do: do.groups())

    def members(self, group: str) -> dict[str, str]:
        """Return the client id of each member of the group, by member id."""
        return self._do(lambda do: do.members(group))

    def committed(self, group: str, topic: str | None = None) -> dict[TopicPartition, int]:
        """Return the committed offsets of the group, of all its topics or of one."""
        return self._do(lambda do: do.committed(group, topic))

    def lag(self, group: str, topic: str | None = None) -> dict[TopicPartition, int]:
        """Return how many records the group has not committed, for each partition with a committed offset."""
        return self._do(lambda do: do.lag(group, topic))

    def wait_until_stable(
        self, group: str, *, members: int | None = None, timeout_s: float = PATIENCE_S
    ) -> None:
        """Wait until the group has finished its rebalance, and has that many members if a number is given."""
        self._do(lambda do: do.wait_until_stable(group, members=members, timeout_s=timeout_s), timeout_s)

    def wait_for_commit(
        self, group: str, topic: str, offset: int, *, partition: int = 0, timeout_s: float = PATIENCE_S
    ) -> None:
        """Wait until the group has committed this offset, or a later one, of the partition."""
        self._do(
            lambda do: do.wait_for_commit(group, topic, offset, partition=partition, timeout_s=timeout_s),
            timeout_s,
        )

    def expire_member(self, group: str, client: str = "") -> list[str]:
        """Remove the members whose client id contains `client`, as if their sessions had expired."""
        return self._do(lambda do: do.expire_member(group, client))

    def reset(self) -> None:
        """Delete all topics but the internal ones, and all groups; members that are active are removed from theirs."""
        self._do(lambda do: do.reset())

    # -- inside -----------------------------------------------------------------------------------------

    def _do(self, work: Callable[[Operations], Coroutine[Any, Any, T]], timeout_s: float = PATIENCE_S) -> T:
        """Carry out work. Raises ClusterError, at the latest some time after `timeout_s`: a broker may not answer."""
        with self._starting:
            if self._thread is None or self._operations is None:
                self._thread = LoopThread(name="ottla-testing")
                self._operations = Operations(self._thread.runtime, self._addresses)
            thread, operations = self._thread, self._operations

        async def in_time() -> T:
            try:
                async with asyncio.timeout(None if timeout_s is None else timeout_s + _LAST_ANSWER_S):
                    return await work(operations)
            except TimeoutError as error:
                raise ClusterError(f"No broker has answered in time (waited {timeout_s:g} s).") from error

        return thread.call(in_time())

    def _record_time_ms(self) -> int | None:
        """Return the time of records that are produced without one; None: the system's."""
        return None

    def _addresses(self) -> Sequence[Address]:
        servers = self.bootstrap_servers
        return addresses_of(servers, option="bootstrap_servers") if servers else ()

    def close_operations(self) -> None:
        """Close the connections to the cluster, and end their thread."""
        thread, self._thread = self._thread, None
        operations, self._operations = self._operations, None
        if thread is not None and operations is not None:
            thread.call(operations.close())
            thread.stop()


class Awaitables(AwaitableMethods):
    """The methods of any cluster as awaitables."""

    create_topic = AwaitableOf(ClusterMethods.create_topic)
    delete_topic = AwaitableOf(ClusterMethods.delete_topic)
    topics = AwaitableOf(ClusterMethods.topics)
    leader = AwaitableOf(ClusterMethods.leader)
    move_leader = AwaitableOf(ClusterMethods.move_leader)
    produce = AwaitableOf(ClusterMethods.produce)
    records = AwaitableOf(ClusterMethods.records)
    values = AwaitableOf(ClusterMethods.values)
    wait_for_records = AwaitableOf(ClusterMethods.wait_for_records)
    end_offsets = AwaitableOf(ClusterMethods.end_offsets)
    start_offsets = AwaitableOf(ClusterMethods.start_offsets)
    groups = AwaitableOf(ClusterMethods.groups)
    members = AwaitableOf(ClusterMethods.members)
    committed = AwaitableOf(ClusterMethods.committed)
    lag = AwaitableOf(ClusterMethods.lag)
    wait_until_stable = AwaitableOf(ClusterMethods.wait_until_stable)
    wait_for_commit = AwaitableOf(ClusterMethods.wait_for_commit)
    expire_member = AwaitableOf(ClusterMethods.expire_member)
    reset = AwaitableOf(ClusterMethods.reset)

    @asynccontextmanager
    async def recording(
        self,
        topic: str,
        expected: Sequence[str | bytes | None] | None = None,
        *,
        timeout_s: float = PATIENCE_S,
    ) -> AsyncIterator[list[Record]]:
        """Record what arrives in the topic within the `async with`; see `ClusterMethods.recording`."""
        recording = await in_a_thread(lambda: _Recording(self.cluster, topic, expected, timeout_s))
        yield recording.arrived
        await in_a_thread(recording.end)

    @property
    def cluster(self) -> ClusterMethods:
        """The cluster whose methods these are."""
        assert isinstance(self.methods, ClusterMethods)
        return self.methods


class _Recording:
    """The records that arrive in a topic from its creation to `end`."""

    def __init__(
        self,
        cluster: ClusterMethods,
        topic: str,
        expected: Sequence[str | bytes | None] | None,
        timeout_s: float,
    ) -> None:
        self._cluster, self._topic, self._expected, self._timeout_s = cluster, topic, expected, timeout_s
        self._before = cluster.end_offsets(topic) if topic in cluster.topics() else {}
        #: Filled by `end`.
        self.arrived: list[Record] = []

    def end(self) -> None:
        """Read the records, and compare them to the expected ones. Raises AssertionError, ClusterError."""
        topic, count = self._topic, len(self._expected or ())
        if count or topic in self._cluster.topics():
            self.arrived += self._cluster.records_since(
                topic, count, since=self._before, timeout_s=self._timeout_s
            )
        if self._expected is not None:
            values = [each.encode() if isinstance(each, str) else each for each in self._expected]
            wanted, found = sorted(values, key=repr), sorted((each.value for each in self.arrived), key=repr)
            assert found == wanted, f"{topic}: {found} have arrived instead of {wanted}"

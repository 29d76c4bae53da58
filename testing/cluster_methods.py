"""The methods by which a test looks at a cluster, plain and awaitable; `ottla.testing.operations` does the work."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeAlias, TypeVar

from ottla.broker.network.client import Address
from ottla.protocol.types import TopicPartition
from ottla.runtime.loop_thread import LoopThread
from ottla.testing.operations import PATIENCE_S, Operations, Record

T = TypeVar("T")
#: The result of a method that is known by its name only.
Result: TypeAlias = Any


class Awaitables:
    """The methods of a broker or cluster as awaitables: `await broker.aio.values("orders")`.

    Each runs in a thread, so that the caller's loop goes on.
    """

    def __init__(self, methods: "ClusterMethods") -> None:
        self._methods = methods

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._methods, name)
        if name.startswith("_") or not callable(method):
            raise AttributeError(f"{name} is no method that can be awaited.")

        @wraps(method)
        async def awaited(*args: object, **named: object) -> Result:
            return await asyncio.to_thread(method, *args, **named)

        return awaited


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
    def aio(self) -> Awaitables:
        """The same methods as awaitables."""
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
        return self._do(lambda do: do.wait_for_records(topic, count, timeout_s=timeout_s))

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
        before = self.end_offsets(topic) if topic in self.topics() else {}
        arrived: list[Record] = []
        yield arrived
        count = len(expected or ())
        if count or topic in self.topics():
            arrived += self._do(
                lambda do: do.wait_for_records(topic, count, since=before, timeout_s=timeout_s)
            )
        if expected is not None:
            values = [each.encode() if isinstance(each, str) else each for each in expected]
            wanted, found = sorted(values, key=repr), sorted((each.value for each in arrived), key=repr)
            assert found == wanted, f"{topic}: {found} have arrived instead of {wanted}"

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
        self._do(lambda do: do.wait_until_stable(group, members=members, timeout_s=timeout_s))

    def wait_for_commit(
        self, group: str, topic: str, offset: int, *, partition: int = 0, timeout_s: float = PATIENCE_S
    ) -> None:
        """Wait until the group has committed this offset, or a later one, of the partition."""
        self._do(
            lambda do: do.wait_for_commit(group, topic, offset, partition=partition, timeout_s=timeout_s)
        )

    def expire_member(self, group: str, client: str = "") -> list[str]:
        """Remove the members whose client id contains `client`, as if their sessions had expired."""
        return self._do(lambda do: do.expire_member(group, client))

    def reset(self) -> None:
        """Delete all topics but the internal ones, and all groups; members that are active are removed from theirs."""
        self._do(lambda do: do.reset())

    # -- inside -----------------------------------------------------------------------------------------

    def _do(self, work: Callable[[Operations], Coroutine[Any, Any, T]]) -> T:
        with self._starting:
            if self._thread is None or self._operations is None:
                self._thread = LoopThread(name="ottla-testing")
                self._operations = Operations(self._thread.runtime, self._addresses)
            thread, operations = self._thread, self._operations
        return thread.call(work(operations))

    def _record_time_ms(self) -> int | None:
        """Return the time of records that are produced without one; None: the system's."""
        return None

    def _addresses(self) -> list[Address]:
        pairs = (each.rpartition(":") for each in self.bootstrap_servers.split(",") if each)
        return [(host.removeprefix("[").removesuffix("]"), int(port)) for host, _, port in pairs]

    def close_operations(self) -> None:
        """Close the connections to the cluster, and end their thread."""
        thread, self._thread = self._thread, None
        operations, self._operations = self._operations, None
        if thread is not None and operations is not None:
            thread.call(operations.close())
            thread.stop()

"""The stage of the stories in this folder: real brokers, a real store, real clients.

| command | meaning |
|---|---|
| `brokers ottla ottla` | brokers 1 and 2, under our controller, share a store; `kafka` is Apache Kafka 4.3.1 |
| `topic A 1,2 batches 1` | a tiered topic with these replicas (one word a partition); so many batches to a segment |
| `untiered topic A 1,2 batches 1` | the same without remote.storage.enable |
| `produce A-0 3` | so many batches of one record each, `k0` on; `at 1000`: with the timestamps 1000, 1001, ... |
| `tiered A-0 0 1` | wait until the store has exactly the segments with these base offsets |
| `local-start A-0 2` | wait until its leader's local log starts there; `on 1`: broker 1's, which may follow |
| `segments A-0 on 1 2 3` | wait until broker 1 has exactly the segment files with these base offsets |
| `offset A-0 earliest 0 e0` | what ListOffsets returns: earliest, local, tiered, pending, latest, max, a time; `none` |
| `get-offsets A-0 -6 3` | what Kafka's kafka-get-offsets prints for that --time; `none` |
| `read A-0 0 4` | a consumer reads the records of [0, 4), and nothing else is before or between them |
| `read committed A-0 0 4` | the same with isolation.level=read_committed: without the records of aborted transactions |
| `transactions-on 1` | `__transaction_state` is on broker 1, which must be Kafka's |
| `transaction A-0 3 abort` | so many batches in a transaction, then its marker, in one segment or several |
| `out-of-range A-0 0` | a fetch at this offset is answered OFFSET_OUT_OF_RANGE |
| `epochs A-0 on 1 0@3` | wait until broker 1's leader-epoch-checkpoint has these entries |
| `lead A-0 2` | broker 2 becomes leader: it becomes the preferred replica, then a preferred election |
| `replicas A-0 1,2` | reassign, and wait until exactly these are in sync |
| `partitions A 1,2 2,1` | add partitions with these replicas |
| `set A retention.ms=1 ...` | the topic's configuration; `key=` removes the override |
| `delete-records A-0 3`, `delete-topic A` | by an admin client |
| `nothing-of A` | wait until no object of the topic is in the store |
| `move-dir A-0 on 1` | to the broker's other log directory, and wait |
| `restart 1`, `stop 1`, `kill 1`, `start 1` | of a broker |
| `wipe 1` | remove its log directories, while it is stopped |
| `without-checkpoints 1` | while it is stopped, remove its checkpoints of log start offsets and recovery points |
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from ottla.config.config_def import AlterOperation
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponsePartition
from tests.compat.admin import PATIENCE_S, eventually_equal, once, produce, read
from tests.compat.tiering.tiered_cluster import TieredCluster
from tests.harness.blocking_wire import BlockingWire
from tests.harness.kafka import tool

_TOPIC = 2
#: Errors of a broker that has not learnt of an election yet, or of one that the client's metadata does not show.
_NOT_YET = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.offset_not_available,
    }
)
_SPECIAL = {"latest": -1, "earliest": -2, "max": -3, "local": -4, "tiered": -5, "pending": -6}
#: The replica ids of a consumer, which asks the leader, and of a tool, which asks any replica.
_CONSUMER, _DEBUGGING = -1, -2
#: The size of an entry of the time index: a segment is rolled when one of its indexes is full.
_INDEX_ENTRY_BYTES = 12


class Stage:
    """Carries out the commands of one story."""

    def __init__(self, cluster: TieredCluster) -> None:
        self._cluster = cluster
        #: The next offset of each partition. The value of a record is `k` and its offset.
        self._produced: dict[str, int] = {}
        #: Offsets of markers, and those of records of aborted transactions.
        self._markers: dict[str, set[int]] = {}
        self._aborted: dict[str, set[int]] = {}
        self._commands: dict[str, Callable[..., None]] = {
            "topic": self._create,
            "produce": self._produce,
            "transactions-on": self._create_transaction_state,
            "transaction": self._transact,
            "tiered": self._expect_tiered,
            "local-start": self._expect_local_start,
            "segments": self._expect_segments,
            "offset": self._expect_offset,
            "get-offsets": self._expect_printed_offset,
            "read": self._read,
            "out-of-range": self._expect_out_of_range,
            "epochs": self._expect_epochs,
            "lead": self._lead,
            "replicas": self._reassign,
            "partitions": self._add_partitions,
            "set": self._set,
            "delete-records": self._delete_records,
            "delete-topic": self._delete_topic,
            "nothing-of": self._expect_nothing_of,
            "move-dir": self._move_dir,
            "restart": self._restart,
            "stop": lambda node_id: self._node(node_id).stop(),
            "kill": lambda node_id: self._node(node_id).kill(),
            "start": lambda node_id: cluster.start(int(node_id)),
            "wipe": lambda node_id: cluster.wipe(int(node_id)),
            "without-checkpoints": self._remove_checkpoints,
        }

    def run(self, line: str) -> None:
        """One line of a story."""
        command, *words = line.split()
        if command == "untiered":
            self._create(*words[1:], is_tiered=False)
        else:
            self._commands[command](*words)

    # -- brokers ---------------------------------------------------------------------------------------

    def _node(self, node_id: str) -> Any:
        return self._cluster.brokers[int(node_id)]

    def _restart(self, node_id: str) -> None:
        self._node(node_id).stop()
        self._cluster.start(int(node_id))

    def _remove_checkpoints(self, node_id: str) -> None:
        for directory in self._node(node_id).log_dirs:
            for name in ("log-start-offset-checkpoint", "recovery-point-offset-checkpoint"):
                (directory / name).unlink(missing_ok=True)

    def _port(self, node_id: int) -> int:
        return self._cluster.brokers[node_id].port

    def _any_port(self) -> int:
        return next(iter(self._cluster.running.values())).port

    def _partitions(self, topic: str) -> dict[int, MetadataResponsePartition]:
        """The partitions that a running broker knows."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        with BlockingWire(self._any_port()) as wire:
            (found,) = wire.call(ApiKey.METADATA, 12, request).topics
        return {row.partition_index: row for row in found.partitions}

    def _partition(self, name: str) -> MetadataResponsePartition:
        """The partition as a running broker sees it, once it has a leader."""
        topic, _, index = name.rpartition("-")

        def ask() -> MetadataResponsePartition | None:
            return self._partitions(topic).get(int(index))

        found = once(ask, lambda row: row is not None and row.leader_id > 0)
        assert found is not None
        return found

    def _leader(self, name: str) -> int:
        return self._partition(name).leader_id

    # -- topics ----------------------------------------------------------------------------------------

    def _create(self, topic: str, *words: str, is_tiered: bool = True) -> None:
        at = words.index("batches")
        replicas = [[int(each) for each in row.split(",")] for row in words[:at]]
        batches, *more = words[at + 1 :]
        config = {
            "remote.storage.enable": str(is_tiered).lower(),
            # As in Kafka's tests: the time index has room for so many batches, each of which has an entry.
            "index.interval.bytes": "1",
            "segment.index.bytes": str(_INDEX_ENTRY_BYTES * int(batches)),
            "local.retention.bytes": "1",
            "retention.ms": "-1",
            **dict(each.split("=", 1) for each in more),
        }
        self._create_topic(topic, replicas, config)
        for index, row in enumerate(replicas):
            once(
                lambda index=index: self._partition(f"{topic}-{index}"),
                lambda found, row=row: set(found.isr_nodes) == set(row),
            )

    def _create_topic(self, topic: str, replicas: Sequence[list[int]], config: Mapping[str, str]) -> None:
        new = CreatableTopic(
            name=topic,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                CreatableReplicaAssignment(partition_index=index, broker_ids=row)
                for index, row in enumerate(replicas)
            ],
            configs=[CreatableTopicConfig(name=name, value=value) for name, value in config.items()],
        )
        with BlockingWire(self._any_port()) as wire:
            request = CreateTopicsRequest(topics=[new], timeout_ms=60_000)
            (row,) = wire.call(ApiKey.CREATE_TOPICS, 7, request).topics
        assert row.error_code == ErrorCode.none, row

    def _add_partitions(self, topic: str, *rows: str) -> None:
        count = len(self._partitions(topic))
        assignments = [
            CreatePartitionsAssignment(broker_ids=[int(each) for each in row.split(",")]) for row in rows
        ]
        new = CreatePartitionsTopic(name=topic, count=count + len(rows), assignments=assignments)
        with BlockingWire(self._any_port()) as wire:
            request = CreatePartitionsRequest(topics=[new], timeout_ms=60_000)
            (answer,) = wire.call(ApiKey.CREATE_PARTITIONS, 3, request).results
        assert answer.error_code == ErrorCode.none, answer
        for index in range(count, count + len(rows)):
            self._partition(f"{topic}-{index}")

    def _set(self, topic: str, *pairs: str) -> None:
        self._alter_configs(_TOPIC, topic, pairs)

    def _alter_configs(self, resource_type: int, name: str, pairs: Sequence[str]) -> None:
        """Set `key=value`; `key=` removes the override."""
        configs = []
        for pair in pairs:
            key, _, value = pair.partition("=")
            operation = AlterOperation.SET if value else AlterOperation.DELETE
            configs.append(AlterableConfig(name=key, config_operation=operation, value=value or None))
        resource = AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=configs)
        with BlockingWire(self._any_port()) as wire:
            request = IncrementalAlterConfigsRequest(resources=[resource])
            (row,) = wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses
        assert row.error_code == ErrorCode.none, row

    def _delete_topic(self, topic: str) -> None:
        request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=60_000)
        with BlockingWire(self._any_port()) as wire:
            (row,) = wire.call(ApiKey.DELETE_TOPICS, 5, request).responses
        assert row.error_code == ErrorCode.none, row

    # -- replicas --------------------------------------------------------------------------------------

    def _alter_replicas(self, name: str, replicas: Sequence[int]) -> None:
        topic, _, index = name.rpartition("-")
        rows = [ReassignablePartition(partition_index=int(index), replicas=list(replicas))]
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=60_000, topics=[ReassignableTopic(name=topic, partitions=rows)]
        )
        with BlockingWire(self._any_port()) as wire:
            answer = wire.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request)
        found = [answer, *(row for topic in answer.responses for row in topic.partitions)]
        assert all(row.error_code == ErrorCode.none for row in found), answer

        def is_done(row: MetadataResponsePartition) -> bool:
            return row.replica_nodes == list(replicas) and set(row.isr_nodes) == set(replicas)

        once(lambda: self._partition(name), is_done)

    def _reassign(self, name: str, replicas: str) -> None:
        self._alter_replicas(name, [int(each) for each in replicas.split(",")])

    def _lead(self, name: str, node_id: str) -> None:
        leader = int(node_id)
        replicas = self._partition(name).replica_nodes
        if replicas[0] != leader:
            self._alter_replicas(name, [leader, *(each for each in replicas if each != leader)])
        once(lambda: self._partition(name).isr_nodes, lambda isr: leader in isr)

        def elected() -> int:
            # Again: a broker that is fenced for a moment is not elected.
            self._hold_preferred_election(name)
            return self._leader(name)

        once(elected, lambda found: found == leader)

    def _hold_preferred_election(self, name: str) -> ElectLeadersResponse:
        topic, _, index = name.rpartition("-")
        request = ElectLeadersRequest(
            election_type=0,
            topic_partitions=[TopicPartitions(topic=topic, partitions=[int(index)])],
            timeout_ms=60_000,
        )
        with BlockingWire(self._any_port()) as wire:
            answer: ElectLeadersResponse = wire.call(ApiKey.ELECT_LEADERS, 2, request)
        return answer

    def _move_dir(self, name: str, _on: str, node_id: str) -> None:
        topic, _, index = name.rpartition("-")

        def directory() -> tuple[str, bool]:
            """The directory of the log, and whether the log is only there."""
            with BlockingWire(self._port(int(node_id))) as wire:
                answer = wire.call(ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None))
            found = [
                (result.log_dir, row.is_future_key)
                for result in answer.results
                for it in result.topics
                for row in it.partitions
                if (it.name, row.partition_index) == (topic, int(index))
            ]
            return found[0][0], len(found) == 1 and not found[0][1]

        old, _ = directory()
        (new,) = [str(path) for path in self._node(node_id).log_dirs if str(path) != old]
        row = AlterReplicaLogDir(
            path=new, topics=[AlterReplicaLogDirTopic(name=topic, partitions=[int(index)])]
        )
        with BlockingWire(self._port(int(node_id))) as wire:
            wire.call(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, AlterReplicaLogDirsRequest(dirs=[row]))
        eventually_equal(directory, (new, True))

    # -- records ---------------------------------------------------------------------------------------

    def _produce(self, name: str, count: str, *at: str) -> None:
        topic, _, index = name.rpartition("-")
        start = self._produced.get(name, 0)
        for number in range(start, start + int(count)):
            if at:
                self._produce_at(topic, int(index), number, int(at[1]) + number - start)
            else:
                produce(self._cluster.bootstrap, topic, [b"k%d" % number], partition=int(index), acks="all")
        self._produced[name] = start + int(count)

    def _produce_at(self, topic: str, index: int, number: int, timestamp: int) -> None:
        producer = Producer({"bootstrap.servers": self._cluster.bootstrap, "acks": "all", "linger.ms": 0})
        errors: list[object] = []
        producer.produce(
            topic,
            b"k%d" % number,
            partition=index,
            timestamp=timestamp,
            on_delivery=lambda error, _: error is not None and errors.append(error),
        )
        assert producer.flush(PATIENCE_S) == 0
        assert not errors, errors

    def _create_transaction_state(self, node_id: str) -> None:
        self._create_topic("__transaction_state", [[int(node_id)]], {"cleanup.policy": "compact"})
        self._partition("__transaction_state-0")

    def _transact(self, name: str, count: str, end: str) -> None:
        topic, _, index = name.rpartition("-")
        producer = Producer(
            {"bootstrap.servers": self._cluster.bootstrap, "transactional.id": f"on-{name}", "linger.ms": 0}
        )
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        start = self._produced.get(name, 0)
        marker = start + int(count)
        for number in range(start, marker):
            producer.produce(topic, b"k%d" % number, partition=int(index))
            assert producer.flush(PATIENCE_S) == 0
        if end == "abort":
            producer.abort_transaction(PATIENCE_S)
            self._aborted.setdefault(name, set()).update(range(start, marker))
        else:
            assert end == "commit", end
            producer.commit_transaction(PATIENCE_S)
        self._markers.setdefault(name, set()).add(marker)
        self._produced[name] = marker + 1

    def _read(self, *words: str) -> None:
        is_committed = words[0] == "committed"
        name, start, end = words[-3:]
        topic, _, index = name.rpartition("-")
        left_out = self._markers.get(name, set()) | (
            self._aborted.get(name, set()) if is_committed else set()
        )
        expected = [
            (offset, b"k%d" % offset) for offset in range(int(start), int(end)) if offset not in left_out
        ]

        def ask() -> list[tuple[int | None, bytes | None]] | str:
            try:
                messages = read(
                    self._cluster.bootstrap,
                    topic,
                    len(expected),
                    partition=int(index),
                    offset=int(start),
                    isolation_level="read_committed" if is_committed else "read_uncommitted",
                )
            except AssertionError as error:
                if not self._cluster.has_kafka:
                    raise
                # Kafka answers UNKNOWN_SERVER_ERROR until it has read the metadata of copies.
                return str(error)
            return [(message.offset(), message.value()) for message in messages]

        eventually_equal(ask, expected)

    def _delete_records(self, name: str, offset: str) -> None:
        topic, _, index = name.rpartition("-")
        row = DeleteRecordsPartition(partition_index=int(index), offset=int(offset))
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic, partitions=[row])], timeout_ms=60_000
        )

        def ask() -> tuple[int, int]:
            with BlockingWire(self._port(self._leader(name))) as wire:
                (answer,) = wire.call(ApiKey.DELETE_RECORDS, 2, request).topics
            (found,) = answer.partitions
            return found.error_code, found.low_watermark

        found = once(ask, lambda answer: answer[0] not in _NOT_YET)
        assert found == (ErrorCode.none, int(offset)), found

    # -- what is expected ------------------------------------------------------------------------------

    def _base_offsets(self, topic: str, index: int | None = None) -> list[int]:
        return sorted(
            found.start_offset
            for found in self._cluster.store.objects()
            if found.index_type is None
            and found.segment_id.partition.topic_partition.topic == topic
            and index in (None, found.segment_id.partition.topic_partition.partition)
        )

    def _expect_tiered(self, name: str, *offsets: str) -> None:
        topic, _, index = name.rpartition("-")
        eventually_equal(lambda: self._base_offsets(topic, int(index)), [int(each) for each in offsets])

    def _expect_nothing_of(self, topic: str) -> None:
        def keys() -> list[object]:
            objects = self._cluster.store.objects()
            return [it for it in objects if it.segment_id.partition.topic_partition.topic == topic]

        eventually_equal(keys, [])

    def _list_offsets(self, name: str, timestamp: int, *, on: int | None = None) -> tuple[int, int] | None:
        """Return (offset, leader epoch) or None, or (error code, -2) while the broker does not lead yet.

        `on` None: the leader is asked.
        """
        topic, _, index = name.rpartition("-")
        row = ListOffsetsPartition(partition_index=int(index), timestamp=timestamp)
        request = ListOffsetsRequest(
            replica_id=_CONSUMER if on is None else _DEBUGGING,
            topics=[ListOffsetsTopic(name=topic, partitions=[row])],
            timeout_ms=30_000,
        )
        with BlockingWire(self._port(on or self._leader(name))) as wire:
            (answer,) = wire.call(ApiKey.LIST_OFFSETS, 11, request).topics
        (found,) = answer.partitions
        if found.error_code in _NOT_YET:
            return found.error_code, -2
        assert found.error_code == ErrorCode.none, found
        return None if found.offset < 0 else (found.offset, found.leader_epoch)

    def _expect_segments(self, name: str, _on: str, node_id: str, *offsets: str) -> None:
        def found() -> list[int]:
            paths = [path for home in self._node(node_id).log_dirs for path in (home / name).glob("*.log")]
            return sorted(int(path.stem) for path in paths)

        eventually_equal(found, [int(each) for each in offsets])

    def _expect_local_start(self, name: str, offset: str, *on: str) -> None:
        def start() -> int | None:
            found = self._list_offsets(name, _SPECIAL["local"], on=int(on[1]) if on else None)
            return None if found is None else found[0]

        eventually_equal(start, int(offset))

    def _expect_offset(self, name: str, timestamp: str, *expected: str) -> None:
        asked = _SPECIAL[timestamp] if timestamp in _SPECIAL else int(timestamp)
        if expected == ("none",):
            eventually_equal(lambda: self._list_offsets(name, asked), None)
        else:
            offset, epoch = expected
            wanted = (int(offset), -1 if epoch == "e-" else int(epoch.removeprefix("e")))
            eventually_equal(lambda: self._list_offsets(name, asked), wanted)

    def _expect_printed_offset(self, name: str, time: str, expected: str) -> None:
        topic, _, index = name.rpartition("-")
        where = ("--bootstrap-server", self._cluster.bootstrap, "--topic-partitions", f"{topic}:{index}")
        eventually_equal(
            lambda: tool("kafka-get-offsets", *where, "--time", time).split(),
            [] if expected == "none" else [f"{topic}:{index}:{expected}"],
        )

    def _expect_out_of_range(self, name: str, offset: str) -> None:
        topic, _, index = name.rpartition("-")
        request = FetchRequest(
            topics=[
                FetchTopic(
                    topic=topic,
                    partitions=[
                        FetchPartition(
                            partition=int(index), fetch_offset=int(offset), partition_max_bytes=1 << 20
                        )
                    ],
                )
            ],
            max_wait_ms=100,
            max_bytes=1 << 20,
        )

        def error() -> int:
            with BlockingWire(self._port(self._leader(name))) as wire:
                (answer,) = wire.call(ApiKey.FETCH, 12, request).responses
            return int(answer.partitions[0].error_code)

        eventually_equal(error, int(ErrorCode.offset_out_of_range))

    def _expect_epochs(self, name: str, _on: str, node_id: str, *entries: str) -> None:
        wanted = [tuple(map(int, entry.split("@"))) for entry in entries]

        def found() -> list[tuple[int, ...]] | None:
            for directory in self._node(node_id).log_dirs:
                path: Path = directory / name / "leader-epoch-checkpoint"
                if path.exists():
                    _, _, *rows = path.read_text().splitlines()
                    return [tuple(map(int, row.split())) for row in rows]
            return None

        eventually_equal(found, wanted)

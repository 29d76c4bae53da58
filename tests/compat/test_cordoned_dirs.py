"""Log directories are cordoned while the broker runs (KIP-1066): the same story for Ottla and for Apache Kafka."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from ottla.config.config_def import AlterOperation
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.compat.admin import eventually_equal, once
from tests.compat.conftest import make_server
from tests.harness.blocking_wire import BlockingWire

_BROKER = 4


class Operator(BlockingWire):
    """An operator of the directories A and B of broker `node_id`."""

    def __init__(self, port: int, a: Path, b: Path) -> None:
        super().__init__(port)
        self.a, self.b = a, b
        broker = self.call(ApiKey.DESCRIBE_CLUSTER, 1, DescribeClusterRequest(endpoint_type=1)).brokers[0]
        self.node_id: int = broker.broker_id

    def cordon(self, value: str) -> int:
        config = AlterableConfig(name="cordoned.log.dirs", config_operation=AlterOperation.SET, value=value)
        resource = AlterConfigsResource(
            resource_type=_BROKER, resource_name=str(self.node_id), configs=[config]
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        return int(self.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses[0].error_code)

    def cordoned(self) -> set[Path]:
        answer = self.call(ApiKey.DESCRIBE_LOG_DIRS, 5, DescribeLogDirsRequest(topics=None))
        return {Path(row.log_dir) for row in answer.results if row.is_cordoned}

    def create(self, name: str, *, by_hand: bool = False) -> int:
        topic = CreatableTopic(name=name, num_partitions=4, replication_factor=1)
        if by_hand:
            assignments = [CreatableReplicaAssignment(partition_index=0, broker_ids=[self.node_id])]
            topic = CreatableTopic(
                name=name, num_partitions=-1, replication_factor=-1, assignments=assignments
            )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
        return int(self.call(ApiKey.CREATE_TOPICS, 7, request).topics[0].error_code)

    def directories(self, topic: str, *, partitions: int = 4) -> dict[int, Path]:
        """The directories of the partitions' logs, once all logs exist."""

        def ask() -> dict[int, Path]:
            answer = self.call(ApiKey.DESCRIBE_LOG_DIRS, 5, DescribeLogDirsRequest(topics=None))
            return {
                row.partition_index: Path(result.log_dir)
                for result in answer.results
                for found in result.topics
                if found.name == topic
                for row in found.partitions
            }

        return once(ask, lambda found: len(found) == partitions)

    def move(self, topic: str, index: int, path: Path) -> int:
        asked = AlterReplicaLogDir(
            path=str(path), topics=[AlterReplicaLogDirTopic(name=topic, partitions=[index])]
        )
        answer = self.call(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, AlterReplicaLogDirsRequest(dirs=[asked]))
        return int(answer.results[0].partitions[0].error_code)


@pytest.fixture
def operator(tmp_path) -> Iterator[Operator]:
    a, b = tmp_path / "a", tmp_path / "b"
    server = make_server(tmp_path / "server", {"log.dirs": f"{a},{b}"}).start()
    try:
        with Operator(server.port, a, b) as connected:
            yield connected
    finally:
        server.stop()


def test_cordoned_directories_get_nothing_new(operator):
    a, b = operator.a, operator.b
    assert operator.cordoned() == set()
    assert operator.create("before") == ErrorCode.none
    before = operator.directories("before")
    assert set(before.values()) == {a, b}

    assert operator.cordon(str(a / "elsewhere")) == ErrorCode.invalid_request
    assert operator.cordon(f"*,{a}") == ErrorCode.invalid_request
    assert operator.cordon(str(a)) == ErrorCode.none
    eventually_equal(operator.cordoned, {a})
    assert operator.create("one") == ErrorCode.none
    assert set(operator.directories("one").values()) == {b}
    assert operator.directories("before") == before
    in_a = min(index for index in before if before[index] == a)
    assert operator.move("one", 0, a) == ErrorCode.invalid_replica_assignment
    assert operator.move("before", in_a, a) == ErrorCode.invalid_replica_assignment
    assert operator.move("nowhere", 0, a) == ErrorCode.invalid_replica_assignment
    assert operator.move("one", 0, b) == ErrorCode.none

    assert operator.cordon("*") == ErrorCode.none
    eventually_equal(operator.cordoned, {a, b})
    # A heartbeat reports it to the controller.
    names = (f"none-{number}" for number in count())
    once(lambda: operator.create(next(names)), lambda code: code == ErrorCode.invalid_replication_factor)
    assert operator.create("by-hand", by_hand=True) == ErrorCode.none
    assert set(operator.directories("by-hand", partitions=1).values()) == {a}

    assert operator.cordon("") == ErrorCode.none
    eventually_equal(operator.cordoned, set())
    once(lambda: operator.create("again"), lambda code: code == ErrorCode.none)
    assert len(operator.directories("again")) == 4

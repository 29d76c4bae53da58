"""The number of AlterPartition requests that retention causes where elections use local logs (draft
KIP-1303), counted exactly.

Three brokers, each of which leads a third of the partitions; logs, retention, fetchers, leaders and the controller's
decision are the real ones, in virtual time. Set PARTITIONS for another number than that of the checks.
"""

import asyncio
import os
from dataclasses import dataclass, field
from random import Random

import pytest

from ottla.broker.replicas.leading.alter_partition_manager import AlterPartitionManager
from ottla.controller.partitions.alter_partition import alter_partition
from ottla.controller.settings import ConfigValidators, ControllerSettings
from ottla.controller.state import ClusterState
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.types import TopicPartition
from ottla.stories.partition.replicas import ReplicaCluster
from tests.harness.waiting import until

PARTITIONS = int(os.environ.get("PARTITIONS", "150"))
BROKERS = (1, 2, 3)
CONFIGS = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "leader.election.prefer.early.local.log.start.offset": "true",
}
#: Logs that one call of maintenance checks for retention, once a second.
LOGS_A_SECOND = 100
#: Calls in which a broker's run of retention checks all of its replicas.
CALLS = -(-PARTITIONS // LOGS_A_SECOND)
AT_THE_SAME_TIME = (300, 300, 300)
AT_DIFFERENT_TIMES = (300, 305 + CALLS, 310 + 2 * CALLS)


@dataclass
class Controller:
    """Decides and commits at once; `knows_field`: not of an older version."""

    cluster: ReplicaCluster
    knows_field: bool = True
    #: (rows, records) of each request.
    requests: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = ControllerSettings(cluster_id="c", node_id=1)
        self._state = ClusterState(
            settings=settings, validators=ConfigValidators(), random=Random(1), image=self.cluster.image
        )

    async def request(self, api_key, message, context=None):
        await asyncio.sleep(0.005)
        rows = [row for topic in message.topics for row in topic.partitions]
        if not self.knows_field:
            for row in rows:
                for member in row.new_isr_with_epochs:
                    member.local_log = None
        result = alter_partition(self._state, message)
        assert {row.error_code for it in result.response.topics for row in it.partitions} == {ErrorCode.none}
        if result.records:
            self.cluster.commit(*result.records)
        self.requests.append((len(rows), len(result.records)))
        return result.response

    def take(self) -> tuple[int, int, int]:
        """Requests, rows and records since the last call."""
        taken, self.requests = self.requests, []
        return len(taken), sum(rows for rows, _ in taken), sum(records for _, records in taken)


async def maintain(broker, *, begins_s: float) -> None:
    await asyncio.sleep(begins_s)
    while True:
        for job in broker.logs.maintain(broker.runtime.now_ms()):
            job.complete()
        broker.replicas.notice_retention()
        await asyncio.sleep(1)


def write(cluster: ReplicaCluster, at: list[TopicPartition]) -> None:
    for broker in cluster.brokers.values():
        for partition in [broker.partition(each) for each in at]:
            if partition.is_leader:
                now_ms = broker.runtime.now_ms()
                batch = bytearray(build_batch(simple_records([(None, b"value")], timestamp=now_ms)))
                partition.as_leader().append_records(batch, required_acks=1, now_ms=now_ms)


async def write_copied_segments(cluster: ReplicaCluster) -> None:
    """Each partition has a closed segment that is copied, on all replicas."""
    at = [TopicPartition("t", index) for index in range(PARTITIONS)]
    write(cluster, at)
    logs = [broker.partition(each).log for each in at for broker in cluster.brokers.values()]
    await until(lambda: all(log.high_watermark == 1 for log in logs))
    for log in logs:
        log.roll(cluster.simulation.loop.time() * 1000)
        log.update_remote_end_offset(1)
    write(cluster, at)
    await until(lambda: all(log.high_watermark == 2 for log in logs))


def retention_of(simulation, *, begins_s, knows_field):
    """(Requests, rows, records) of the first reports, of one run of retention by each broker, and of a quiet time."""
    found = []

    async def story():
        cluster = ReplicaCluster(simulation, BROKERS, configs=CONFIGS)
        controller = Controller(cluster, knows_field)
        for broker in cluster.brokers.values():
            changes = AlterPartitionManager(
                runtime=broker.runtime,
                controller=controller,
                node_id=broker.node_id,
                broker_epoch=lambda broker=broker: broker.epoch,
            )
            broker.report = changes.report
            await broker.listen()
        replicas = {index: [BROKERS[(index + at) % 3] for at in range(3)] for index in range(PARTITIONS)}
        cluster.create("t", replicas)
        for index, (leader, *_) in replicas.items():
            cluster.elect(TopicPartition("t", index), leader)
        for broker in cluster.brokers.values():
            await broker.replicas.all_created()
        await write_copied_segments(cluster)
        await asyncio.sleep(5)
        found.append(controller.take())
        tasks = [
            asyncio.ensure_future(maintain(broker, begins_s=at))
            for broker, at in zip(cluster.brokers.values(), begins_s, strict=True)
        ]
        await asyncio.sleep(max(begins_s) + CALLS + 5)
        found.append(controller.take())
        await asyncio.sleep(30)
        found.append(controller.take())
        expected = dict.fromkeys(BROKERS, 1) if knows_field else {}
        for partition in cluster.image.topics_by_name["t"].partitions.values():
            starts = {replica: log.start_offset for replica, log in partition.local_logs}
            assert starts == expected
        for task in tasks:
            task.cancel()
        for broker in cluster.brokers.values():
            await broker.stop()

    simulation.run(story())
    return found


@pytest.mark.parametrize(("begins_s", "knows_field", "expected"), [
    # A row and a record for each replica, as each changes at another time; in each second three leaders send a request.
    (AT_DIFFERENT_TIMES, True,  (9 * CALLS, 3 * PARTITIONS, 3 * PARTITIONS)),
    (AT_THE_SAME_TIME,   True,  (3 * CALLS, PARTITIONS, PARTITIONS)),
    # Kafka 4.3.1: each value is sent once, and the metadata log never shows it.
    (AT_DIFFERENT_TIMES, False, (9 * CALLS, 3 * PARTITIONS, 0)),
])  # fmt: skip
def test_requests_rows_and_records_of_a_run_of_retention(simulation, begins_s, knows_field, expected):
    first, retention, quiet = retention_of(simulation, begins_s=begins_s, knows_field=knows_field)
    assert first == (3, PARTITIONS, PARTITIONS * knows_field)
    assert retention == expected
    assert quiet == (0, 0, 0)

"""An operator of a cluster, who asks for moves, elections, configurations and topics.

The outcome is not waited for.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cluster_clients import UNANSWERED, Client
from cluster_world import World

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
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

UNCLEAN = 1
#: What DeleteRecords means by -1.
HIGH_WATERMARK = -1


class Operator:
    """Each method without a parameter is something that the nemesis may want done."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random
        self._client: Client | None = None
        #: Whether all replicas of a partition have what they had: no operator takes the last sound one away.
        self.is_whole: Callable[[str, int], bool] = lambda topic, index: True

    def _partitions(self) -> list[tuple[str, int]]:
        return [(topic, index) for topic, index, _ in self._world.partitions() if not topic.startswith("__")]

    def elect(self) -> None:
        """Request preferred leader elections."""
        self._world.note("preferred election")
        self._ask(ApiKey.ELECT_LEADERS, ElectLeadersRequest(topic_partitions=None, timeout_ms=1000))

    def elect_uncleanly(self) -> None:
        """An unclean election, where records may be lost."""
        wanted = [
            TopicPartitions(topic=topic, partitions=[index])
            for topic, index in self._partitions()
            if topic in self._world.history.unclean
        ]
        self._world.note("unclean election")
        self._ask(
            ApiKey.ELECT_LEADERS,
            ElectLeadersRequest(election_type=UNCLEAN, topic_partitions=wanted, timeout_ms=1000),
        )

    def reassign(self) -> None:
        """Some partition to other replicas, or in another order; or a reassignment is cancelled."""
        random, world = self._random, self._world
        partitions = [
            each
            for each in world.partitions()
            if not each[0].startswith("__") and self.is_whole(each[0], each[1])
        ]
        if not partitions:
            return
        topic, index, image = random.choice(partitions)
        count = random.choice((2, 3, 3, len(world.broker_ids)))
        replicas: list[int] | None = random.sample(world.broker_ids, count)
        if image.adding_replicas and random.random() < 0.4:
            replicas = None
        world.note(f"reassign {topic}-{index} to {replicas}")
        row = ReassignablePartition(partition_index=index, replicas=replicas)
        topics = [ReassignableTopic(name=topic, partitions=[row])]
        self._ask(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            AlterPartitionReassignmentsRequest(timeout_ms=1000, topics=topics),
        )

    def move(self) -> None:
        """Some replica to another log directory of its broker (KIP-113)."""
        random, world = self._random, self._world
        topic, index, image = random.choice(
            [each for each in world.partitions() if not each[0].startswith("__")]
        )
        broker_id = random.choice(image.replicas)
        machine = next(each for each in world.brokers if each.node_id == broker_id)
        path = random.choice(machine.config.log_dirs)
        world.note(f"move {topic}-{index} of {machine} to {path}")
        moved = AlterReplicaLogDirTopic(name=topic, partitions=[index])
        directory = AlterReplicaLogDir(path=path, topics=[moved])
        self._ask(ApiKey.ALTER_REPLICA_LOG_DIRS, AlterReplicaLogDirsRequest(dirs=[directory]), of=broker_id)

    def delete_records(self) -> None:
        """The beginning of some partition goes."""
        world = self._world
        wanted = [each for each in world.partitions() if (each[0], each[1]) in world.judge.deleted]
        if not wanted:
            return
        topic, index, image = self._random.choice(wanted)
        if image.leader is None:
            return
        end = world.judge.committed_end(topic, index)
        offset = self._random.choice((HIGH_WATERMARK, end, self._random.randint(0, end)))
        world.note(f"delete {topic}-{index} before {offset}")
        # The high watermark at that time is unknown.
        known = 2**62 if offset == HIGH_WATERMARK else offset
        world.judge.deleted[topic, index] = max(world.judge.deleted[topic, index], known)
        partition = DeleteRecordsPartition(partition_index=index, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic, partitions=[partition])], timeout_ms=1000
        )
        asked = world.judge.replicas_of(topic, index)

        def check(response: DeleteRecordsResponse) -> None:
            row = response.topics[0].partitions[0]
            if row.error_code == ErrorCode.none:
                world.judge.look_at_deletion(topic, index, offset, row.low_watermark, asked)

        self._ask(ApiKey.DELETE_RECORDS, request, of=image.leader, then=check)

    def min_isr(self) -> None:
        """min.insync.replicas of a topic becomes larger, or what it was."""
        topics = sorted({topic for topic, _ in self._partitions()})
        if topics:
            topic, value = self._random.choice(topics), self._random.choice(("2", "2", "3"))
            self._world.note(f"min.insync.replicas {topic} {value}")
            config = AlterableConfig(name="min.insync.replicas", config_operation=0, value=value)
            resource = AlterConfigsResource(resource_type=2, resource_name=topic, configs=[config])
            self._ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest(resources=[resource]))

    def topics(self) -> None:
        """An unused topic comes or goes."""
        name = f"passing-{self._random.randint(1, 3)}"
        if name in self._world.judge.image.topics_by_name:
            self._world.note(f"delete {name}")
            state = DeleteTopicState(name=name)
            self._ask(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topics=[state], timeout_ms=1000))
        else:
            self._world.note(f"create {name}")
            topic = CreatableTopic(
                name=name, num_partitions=2, replication_factor=min(3, len(self._world.brokers))
            )
            self._ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[topic], timeout_ms=1000))

    def switch_tiering(self) -> None:
        """Tiering is switched on for a topic, or off, with the deletion of its copies, where that is allowed."""
        topic, may_end = self._random.choice(sorted(self._world.switched.items()))
        is_on = not may_end or self._random.random() < 0.6
        self._world.note(f"tiering of {topic}: {is_on}")
        configs = [
            AlterableConfig(name=name, config_operation=0, value=value)
            for name, value in (
                ("remote.storage.enable", "true" if is_on else "false"),
                ("remote.log.delete.on.disable", "false" if is_on else "true"),
            )
        ]
        resource = AlterConfigsResource(resource_type=2, resource_name=topic, configs=configs)
        self._ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest(resources=[resource]))

    def crown(self, topic: str, index: int, broker_id: int) -> None:
        """That replica shall lead, if it may."""
        self._world.note(f"crown {broker_id} of {topic}-{index}")
        replicas = sorted(self._world.broker_ids, key=lambda each: (each != broker_id, each))
        row = ReassignablePartition(partition_index=index, replicas=replicas)
        order = AlterPartitionReassignmentsRequest(
            timeout_ms=1000, topics=[ReassignableTopic(name=topic, partitions=[row])]
        )
        wanted = [TopicPartitions(topic=topic, partitions=[index])]
        election = ElectLeadersRequest(topic_partitions=wanted, timeout_ms=1000)
        self._ask(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            order,
            then=lambda _: self._ask(ApiKey.ELECT_LEADERS, election),
        )

    def _ask(
        self,
        api_key: int,
        message: Any,
        *,
        of: int | None = None,
        then: Callable[[Any], None] = lambda response: None,
    ) -> None:
        """A request to one broker, which may answer or not."""
        if self._client is None:
            self._client = self._world.client("operator")
        client, broker_id = self._client, self._random.choice(self._world.broker_ids) if of is None else of

        async def ask() -> None:
            with suppress(*UNANSWERED):
                then(await client.request(broker_id, api_key, message))

        self._world.begin(ask())

"""A controller's state with brokers and topics, without a disk."""

from collections.abc import Iterable
from random import Random
from typing import Any
from uuid import UUID

from ottla.controller.partitions.topics import create_topics
from ottla.controller.result import Result
from ottla.controller.settings import ConfigValidators, ControllerSettings
from ottla.controller.state import ClusterState
from ottla.metadata.image import PartitionImage
from ottla.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    RegisterBrokerRecord,
)
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAw"
ELR = "eligible.leader.replicas.version"


def directory(broker_id: int) -> UUID:
    """The one log directory of a broker."""
    return UUID(int=1000 + broker_id)


class Machine:
    """The state machine by itself: decides, replays, and keeps what was replayed."""

    def __init__(
        self,
        *,
        brokers: Iterable[int] = (),
        elr: bool = True,
        metadata_version: int = 33,
        validators: ConfigValidators | None = None,
        **settings: Any,
    ) -> None:
        self.now_ms = 1_000_000
        self.state = ClusterState(
            settings=ControllerSettings(cluster_id=CLUSTER_ID, node_id=1, **settings),
            validators=validators or ConfigValidators(),
            random=Random(7),
        )
        self.log: list[MetadataRecord] = []
        self.replay(FeatureLevelRecord(name="metadata.version", feature_level=metadata_version))
        if elr:
            self.replay(FeatureLevelRecord(name=ELR, feature_level=1))
        for broker_id in brokers:
            self.add_broker(broker_id)

    def replay(self, *records: MetadataRecord) -> None:
        """Replay records, which are committed at once."""
        for record in records:
            self.state.replay([record], len(self.log))
            self.log.append(record)

    def do(self, result: Result[Any]) -> Any:
        """Carry out a decision, as the shell does."""
        self.replay(*result.records)
        if result.on_appended is not None:
            result.on_appended(len(self.log))
        return result.response

    def add_broker(self, broker_id: int, *, rack: str | None = None, fenced: bool = False) -> int:
        """Register a broker; its epoch."""
        epoch = len(self.log)
        self.replay(
            RegisterBrokerRecord(
                broker_id=broker_id,
                broker_epoch=epoch,
                incarnation_id=UUID(int=10**6 + epoch),
                rack=rack,
                log_dirs=[directory(broker_id)],
            )
        )
        self.state.sessions.register(broker_id, epoch)
        self.state.sessions.touch(broker_id, metadata_offset=epoch, is_fenced=fenced, now_ms=self.now_ms)
        if not fenced:
            self.replay(BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=epoch, fenced=-1))
        return epoch

    def set_config(self, name: str, value: str, *, topic: str | None = None) -> None:
        """Configure a topic, or all brokers."""
        self.replay(
            ConfigRecord(
                resource_type=4 if topic is None else 2, resource_name=topic or "", name=name, value=value
            )
        )

    def create(self, name: str, *replicas: list[int]) -> None:
        """A topic with one partition for each of these replica lists."""
        assignments = [
            CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in enumerate(replicas)
        ]
        topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments)
        response = self.do(create_topics(self.state, CreateTopicsRequest(topics=[topic])))
        assert response.topics[0].error_code == 0, response.topics[0].error_message

    def partition(self, topic: str, index: int = 0) -> PartitionImage:
        """The present state of the partition."""
        return self.state.image.topics_by_name[topic].partitions[index]

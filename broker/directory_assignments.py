"""Tells the controller in which log directory a replica lies, where it does not know, or knows otherwise (KIP-858).

    a partition is new or different --> the metadata names another directory than this broker --> to be told
    to be told --AssignReplicasToDirs, many in one request--> the metadata says so --> nothing left to tell
                  '-- refused or lost: again, after a pause that doubles --'

Whoever has one directory has nothing to tell: the controller fills it in by itself. Source: AssignmentsManager of
Kafka 4.3.1.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final
from uuid import UUID

from broker.channel import ControllerChannel
from broker.runtime import Runtime
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    DirectoryData,
    PartitionData,
    TopicData,
)
from protocol.metadata.features import DIRECTORIES_3_7_IV2
from protocol.metadata.image import MetadataDelta, MetadataImage
from protocol.types import TopicPartition

logger = logging.getLogger(__name__)

#: Replicas that one request tells of; Kafka's MAX_ASSIGNMENTS_PER_REQUEST.
MAX_PER_REQUEST: Final = 2250
FIRST_BACKOFF_S: Final = 0.1
MAX_BACKOFF_S: Final = 10.0
#: Pauses do not double more often: they are at the maximum long before, and a float would overflow some day.
_MAX_DOUBLINGS: Final = 30

#: (topic id, index).
Place = tuple[UUID, int]


def misplaced(
    image: MetadataImage,
    places: Iterable[Place],
    *,
    node_id: int,
    located: Callable[[TopicPartition], UUID | None],
) -> dict[Place, UUID]:
    """Those of the partitions with a replica here of which the metadata does not know the directory, and which it is.

    `located` finds the directory of a log; None: there is none, or it is offline.
    """
    if (image.metadata_version or 0) < DIRECTORIES_3_7_IV2:
        return {}
    found = {}
    for topic_id, index in places:
        topic = image.topics_by_id.get(topic_id)
        partition = topic.partitions.get(index) if topic is not None else None
        if topic is None or partition is None or node_id not in partition.replicas:
            continue
        directory = located(TopicPartition(topic.name, index))
        if directory is not None and partition.directories[partition.replicas.index(node_id)] != directory:
            found[topic_id, index] = directory
    return found


class DirectoryAssignments:
    """See the module."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        controller: ControllerChannel,
        node_id: int,
        broker_epoch: Callable[[], int],
        image: Callable[[], MetadataImage],
        located: Callable[[TopicPartition], UUID | None],
    ) -> None:
        self._runtime = runtime
        self._controller = controller
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._image = image
        self._located = located
        #: What may have to be told. In order, so that a simulation goes the same way twice.
        self._pending: dict[Place, None] = {}
        self._telling: asyncio.Task[None] | None = None
        self._failures = 0

    def look_at_all(self) -> None:
        """See to every replica that this broker has."""
        image = self._image()
        self._note(
            (topic_id, index) for topic_id, topic in image.topics_by_id.items() for index in topic.partitions
        )

    def look_at(self, delta: MetadataDelta) -> None:
        """See to what has changed; to everything, if directories have just become known to the metadata."""
        if "metadata.version" in delta.features_changed:
            self.look_at_all()
            return
        self._note(
            (topic_id, index)
            for topic_id in sorted(delta.partitions_changed)
            for index in sorted(delta.partitions_changed[topic_id])
        )

    def look_at_places(self, places: Iterable[Place]) -> None:
        """See to these replicas: they are, or will soon be, in a directory that is new to them."""
        self._note(places)

    def stop(self) -> None:
        """Tell nothing more."""
        if self._telling is not None:
            self._telling.cancel()

    def _note(self, places: Iterable[Place]) -> None:
        found = misplaced(self._image(), places, node_id=self._node_id, located=self._located)
        self._pending.update(dict.fromkeys(found))
        if self._pending and (self._telling is None or self._telling.done()):
            self._telling = self._runtime.supervise(self._tell, name="directory-assignments")

    async def _tell(self) -> None:
        while self._pending:
            asked = list(self._pending)[:MAX_PER_REQUEST]
            for place in asked:
                del self._pending[place]
            refused = asked
            try:
                # What has become true, or is gone, meanwhile need not be told.
                wrong = misplaced(self._image(), asked, node_id=self._node_id, located=self._located)
                refused = await self._request(wrong) if wrong else []
            finally:
                self._pending.update(dict.fromkeys(refused))
            self._failures = self._failures + 1 if refused else 0
            if refused:
                doublings = min(self._failures - 1, _MAX_DOUBLINGS)
                await asyncio.sleep(min(FIRST_BACKOFF_S * 2**doublings, MAX_BACKOFF_S))

    async def _request(self, wrong: dict[Place, UUID]) -> list[Place]:
        """Send; those that are to be told again."""
        request = AssignReplicasToDirsRequest(
            broker_id=self._node_id, broker_epoch=self._broker_epoch(), directories=_by_directory(wrong)
        )
        try:
            response: AssignReplicasToDirsResponse = await self._controller.request(
                ApiKey.ASSIGN_REPLICAS_TO_DIRS, request
            )
        except KafkaError as error:
            logger.warning("%d replicas' directories could not be told: %r", len(wrong), error)
            return list(wrong)
        if response.error_code != ErrorCode.none:
            logger.warning(
                "%d replicas' directories were refused: %s", len(wrong), ErrorCode(response.error_code).name
            )
            return list(wrong)
        answered = {
            (topic.topic_id, row.partition_index): row.error_code
            for directory in response.directories
            for topic in directory.topics
            for row in topic.partitions
        }
        return [
            place for place in wrong if answered.get(place, ErrorCode.unknown_server_error) != ErrorCode.none
        ]


def _by_directory(places: dict[Place, UUID]) -> list[DirectoryData]:
    directories: dict[UUID, dict[UUID, list[int]]] = {}
    for (topic_id, index), directory in places.items():
        directories.setdefault(directory, {}).setdefault(topic_id, []).append(index)
    return [
        DirectoryData(
            id_=directory,
            topics=[
                TopicData(
                    topic_id=topic_id, partitions=[PartitionData(partition_index=index) for index in indexes]
                )
                for topic_id, indexes in topics.items()
            ],
        )
        for directory, topics in directories.items()
    ]

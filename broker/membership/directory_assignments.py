"""Assignments of replicas to log directories, reported where the controller's metadata has another one (KIP-858).

    a partition is new or changed --> the metadata names another directory than this broker --> pending
    pending --AssignReplicasToDirs, many in one request--> the metadata names this directory --> done
               '-- refused or lost: retried after a pause that doubles --'

A broker with one directory reports nothing: the controller fills it in itself. Source: AssignmentsManager of
Kafka 4.3.1.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final
from uuid import UUID

from ottla.broker.membership.controller_channel import ControllerChannel
from ottla.metadata.features import DIRECTORIES_3_7_IV2
from ottla.metadata.image import MetadataDelta, MetadataImage
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    DirectoryData,
    PartitionData,
    TopicData,
)
from ottla.protocol.types import TopicPartition
from ottla.runtime import Runtime
from ottla.runtime.turns import in_turns

logger = logging.getLogger(__name__)

#: Maximum number of replicas in one request; Kafka's MAX_ASSIGNMENTS_PER_REQUEST.
MAX_PER_REQUEST: Final = 2250
FIRST_BACKOFF_S: Final = 0.1
MAX_BACKOFF_S: Final = 10.0
#: The number of replicas that are checked at once, at 4 us each; more are checked in turns of the loop,
#: `_STEP` in one step.
_AT_ONCE: Final = 100
_STEP: Final = 10
#: Maximum exponent of the backoff. The pause reaches its maximum long before; without it a float would overflow.
_MAX_DOUBLINGS: Final = 30

#: A partition: topic id and index.
TopicIdPartition = tuple[UUID, int]


def misplaced(
    image: MetadataImage,
    places: Iterable[TopicIdPartition],
    *,
    node_id: int,
    located: Callable[[TopicPartition], UUID | None],
) -> dict[TopicIdPartition, UUID]:
    """Return the partitions with a replica here whose directory in the metadata differs from the actual one.

    The value is the id of the actual directory.

    `located` returns the directory of a log; None if there is no log, or its directory is offline.
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
    """Reports to the controller the log directories of this broker's replicas (KIP-858)."""

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
        #: Replicas that may have to be reported, at most all that this broker has. Ordered, so that a simulation is
        #: reproducible.
        self._pending: dict[TopicIdPartition, None] = {}
        #: Replicas that are to be checked, ordered for the same reason.
        self._unchecked: dict[TopicIdPartition, None] = {}
        self._sending: asyncio.Task[None] | None = None
        self._failures = 0

    def check_all(self) -> None:
        """Check every replica that this broker has."""
        image = self._image()
        self._note(
            (topic_id, index) for topic_id, topic in image.topics_by_id.items() for index in topic.partitions
        )

    def check_delta(self, delta: MetadataDelta) -> None:
        """Check what has changed; all replicas if metadata.version has changed, since it may now have directories."""
        if "metadata.version" in delta.features_changed:
            self.check_all()
            return
        self._note(
            (topic_id, index)
            for topic_id in sorted(delta.partitions_changed)
            for index in sorted(delta.partitions_changed[topic_id])
        )

    def check_replicas(self, places: Iterable[TopicIdPartition]) -> None:
        """Check these replicas: they are, or will soon be, in another directory than before."""
        self._note(places)

    def stop(self) -> None:
        """Send no further requests."""
        if self._sending is not None:
            self._sending.cancel()

    def _note(self, places: Iterable[TopicIdPartition]) -> None:
        self._unchecked.update(dict.fromkeys(places))
        if len(self._unchecked) <= _AT_ONCE:
            for _ in self._check():
                pass
        if (self._unchecked or self._pending) and (self._sending is None or self._sending.done()):
            self._sending = self._runtime.supervise(self._send_pending, name="directory-assignments")

    def _check(self) -> Iterator[None]:
        """Find the misplaced replicas among the unchecked ones, a few in each step."""
        while self._unchecked:
            some = list(islice(self._unchecked, _STEP))
            for place in some:
                del self._unchecked[place]
            found = misplaced(self._image(), some, node_id=self._node_id, located=self._located)
            self._pending.update(dict.fromkeys(found))
            yield

    async def _send_pending(self) -> None:
        while self._unchecked or self._pending:
            await in_turns(self._runtime, self._check())
            asked = list(self._pending)[:MAX_PER_REQUEST]
            for place in asked:
                del self._pending[place]
            refused = asked
            try:
                # Checked again: meanwhile the metadata may name the right directory, or the replica may be removed.
                wrong = misplaced(self._image(), asked, node_id=self._node_id, located=self._located)
                refused = await self._request(wrong) if wrong else []
            finally:
                self._pending.update(dict.fromkeys(refused))
            self._failures = self._failures + 1 if refused else 0
            if refused:
                doublings = min(self._failures - 1, _MAX_DOUBLINGS)
                await asyncio.sleep(min(FIRST_BACKOFF_S * 2**doublings, MAX_BACKOFF_S))

    async def _request(self, wrong: dict[TopicIdPartition, UUID]) -> list[TopicIdPartition]:
        """Send one request; returns the replicas that have to be sent again."""
        request = AssignReplicasToDirsRequest(
            broker_id=self._node_id, broker_epoch=self._broker_epoch(), directories=_by_directory(wrong)
        )
        try:
            response: AssignReplicasToDirsResponse = await self._controller.request(
                ApiKey.ASSIGN_REPLICAS_TO_DIRS, request
            )
        except KafkaError as error:
            logger.warning(
                "the log directories of %d replicas could not be reported to the controller: %r",
                len(wrong),
                error,
            )
            return list(wrong)
        if response.error_code != ErrorCode.none:
            logger.warning(
                "the controller refuses the log directories of %d replicas: %s",
                len(wrong),
                ErrorCode(response.error_code).name,
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


def _by_directory(places: dict[TopicIdPartition, UUID]) -> list[DirectoryData]:
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

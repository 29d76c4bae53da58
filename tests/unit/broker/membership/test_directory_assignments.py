"""AssignReplicasToDirs: which assignments a broker sends, and that it repeats them until they are accepted.

About KIP-858.
"""

import asyncio
from itertools import pairwise
from uuid import UUID

import pytest

from ottla.broker.membership.directory_assignments import MAX_PER_REQUEST, DirectoryAssignments, misplaced
from ottla.metadata.image import MetadataImage
from ottla.metadata.records import FeatureLevelRecord, PartitionRecord, TopicRecord
from ottla.protocol.errors import ErrorCode, RequestTimedOut
from ottla.protocol.messages import assign_replicas_to_dirs as api
from ottla.runtime.simulated import SimulatedRuntime

ME = 1
A, B, UNKNOWN = UUID(int=1001), UUID(int=1002), UUID(int=0)
TOPIC = UUID(int=7)


def image(*directories, version=30):
    """A topic with a partition for each; its replicas are on brokers 2 and 1, in this directory here."""
    made = MetadataImage()
    made.replay_all(
        [
            FeatureLevelRecord(name="metadata.version", feature_level=version),
            TopicRecord(name="t", topic_id=TOPIC),
            *(
                PartitionRecord(
                    partition_id=index,
                    topic_id=TOPIC,
                    replicas=[2, ME],
                    isr=[2, ME],
                    leader=2,
                    directories=[UNKNOWN, directory],
                )
                for index, directory in enumerate(directories)
            ),
        ]
    )
    return made


class World:
    """A broker that sends assignments, and a controller whose answers the test sets."""

    def __init__(self, *known, here=A, version=30):
        self.image = image(*known, version=version)
        self.here = here
        self.runtime = SimulatedRuntime(seed=1)
        self.requests = []
        self.answers = []
        self.assignments = DirectoryAssignments(
            runtime=self.runtime,
            controller=self,
            node_id=ME,
            broker_epoch=lambda: 5,
            image=lambda: self.image,
            located=lambda _: self.here,
        )

    async def request(self, api_key, message, context=None):
        assert (api_key, message.broker_id, message.broker_epoch) == (73, ME, 5)
        reported = {
            (directory.id_, row.partition_index)
            for directory in message.directories
            for topic in directory.topics
            for row in topic.partitions
        }
        self.requests.append((self.runtime.monotonic(), reported))
        answer = self.answers.pop(0) if self.answers else ErrorCode.none
        if isinstance(answer, Exception):
            raise answer
        error, rows = answer if isinstance(answer, tuple) else (answer, {})
        return api.AssignReplicasToDirsResponse(
            error_code=error,
            directories=[
                api.DirectoryDataResponse(
                    id_=directory.id_,
                    topics=[
                        api.TopicDataResponse(
                            topic_id=topic.topic_id,
                            partitions=[
                                api.PartitionDataResponse(
                                    partition_index=row.partition_index,
                                    error_code=rows.get(row.partition_index, 0),
                                )
                                for row in topic.partitions
                            ],
                        )
                        for topic in directory.topics
                    ],
                )
                for directory in message.directories
            ],
        )

    def live(self, seconds=60.0):
        async def scenario():
            self.assignments.check_all()
            await asyncio.sleep(seconds)

        self.runtime.run(scenario())
        self.runtime.simulation.close()
        return [reported for _, reported in self.requests]


@pytest.mark.parametrize(("known", "here", "version", "reported"), [
    # the metadata, this broker, metadata.version
    (UNKNOWN, A,    30, {(TOPIC, 0): A}),
    (B,       A,    30, {(TOPIC, 0): A}),
    (A,       A,    30, {}),
    (UNKNOWN, None, 30, {}),                 # offline, or not made yet
    (UNKNOWN, A,    16, {}),                 # directories are not in the metadata yet
])  # fmt: skip
def test_which_assignments_are_to_be_sent(known, here, version, reported):
    found = misplaced(image(known, version=version), [(TOPIC, 0)], node_id=ME, located=lambda _: here)
    assert found == reported


def test_a_broker_without_a_replica_has_nothing_to_send():
    places = [(TOPIC, 0), (TOPIC, 9), (UUID(int=8), 0)]
    assert misplaced(image(UNKNOWN), places, node_id=3, located=lambda _: A) == {}


def test_all_at_once_and_once():
    world = World(UNKNOWN, A, B)
    assert world.live() == [{(A, 0), (A, 2)}]


def test_many_go_in_several_requests():
    world = World(*[UNKNOWN] * (MAX_PER_REQUEST + 1))
    assert [len(reported) for reported in world.live()] == [MAX_PER_REQUEST, 1]


@pytest.mark.parametrize(
    "answer", [RequestTimedOut(), ErrorCode.stale_broker_epoch], ids=["no answer", "refused"]
)
@pytest.mark.logs(
    "replicas could not be reported to the controller", "the controller refuses the log directories of"
)
def test_again_after_a_pause_that_doubles(answer):
    world = World(UNKNOWN)
    world.answers = [answer] * 4
    assert world.live() == [{(A, 0)}] * 5
    at = [moment for moment, _ in world.requests]
    pauses = [later - earlier for earlier, later in pairwise(at)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8], abs=0.01)


@pytest.mark.logs("the controller refuses the log directories of")
def test_a_controller_that_refuses_for_hours_is_asked_on():
    world = World(UNKNOWN)
    world.answers = [ErrorCode.stale_broker_epoch] * 1100
    assert len(world.live(seconds=12_000)) == 1101


def test_what_was_refused_alone_is_sent_again_alone():
    world = World(UNKNOWN, UNKNOWN)
    world.answers = [(ErrorCode.none, {1: ErrorCode.unknown_topic_or_partition})]
    assert world.live() == [{(A, 0), (A, 1)}, {(A, 1)}]


@pytest.mark.logs("replicas could not be reported to the controller")
def test_an_assignment_that_the_image_has_is_not_sent_again():
    world = World(UNKNOWN)
    world.answers = [RequestTimedOut()]

    async def scenario():
        world.assignments.check_all()
        await asyncio.sleep(0.05)
        world.image = image(A)
        await asyncio.sleep(10)

    world.runtime.run(scenario())
    world.runtime.simulation.close()
    assert len(world.requests) == 1

"""Metadata managers that share a topic in memory, on virtual time."""

from dataclasses import replace

from remote_support import PARTITION, copy_of, to

from ottla.protocol.remote.records import RemoteLogSegmentState as State
from ottla.protocol.types import TopicPartition
from ottla.remote.segment_metadata import RemoteLogSegmentId, TopicIdPartition
from ottla.remote.topic_metadata.manager import TopicBasedRemoteLogMetadataManager
from ottla.remote.topic_metadata.topic import MetadataTopic
from ottla.runtime.simulated import SimulatedRuntime
from tests.harness.memory_topic import MemoryTopic
from tests.harness.waiting import until


def partition(number):
    return TopicIdPartition(PARTITION.topic_id, TopicPartition("t", number))


def of(user_partition, change):
    return replace(change, segment_id=RemoteLogSegmentId(user_partition, change.segment_id.id))


class Brokers:
    """Managers that share one topic."""

    def __init__(self, runtime, folder, *, partition_count=1, **settings):
        self.runtime = runtime
        self.folder = folder
        self.topic = MemoryTopic(runtime, partition_count=partition_count)
        self.settings = {
            "remote.log.metadata.topic.num.partitions": partition_count,
            "remote.log.metadata.consume.wait.ms": 5000,
            **settings,
        }
        self.managers = []

    def start(self, *partitions, is_ready=True, folder=None):
        topic: MetadataTopic = MemoryTopic(self.runtime, shared=self.topic)
        number = len(self.managers) if folder is None else folder
        log_dir = self.folder / str(number)
        for each in partitions:
            (log_dir / str(each.topic_partition)).mkdir(parents=True, exist_ok=True)
        manager = TopicBasedRemoteLogMetadataManager(
            runtime=self.runtime,
            topic=topic,
            log_directory=lambda each: log_dir / str(each.topic_partition),
        )
        manager.configure({**self.settings, "log.dir": log_dir, "broker.id": number})
        manager.on_partition_leadership_changes(leaders=partitions, followers=[])
        if is_ready:
            manager.on_broker_ready()
        self.managers.append(manager)
        return manager, topic

    async def ready(self, *partitions, folder=None):
        """Start one, and wait until it has read what the topic has of these partitions."""
        manager, topic = self.start(*partitions, folder=folder)
        await until_ready(manager, *partitions)
        return manager, topic

    async def stop(self):
        for manager in self.managers:
            if not manager._is_closed:
                await manager.close()


async def until_ready(manager, *partitions, timeout_s=60):
    await until(
        lambda: all(manager.is_ready(each) for each in partitions or [PARTITION]),
        within_s=timeout_s, pause_s=0.01,
    )  # fmt: skip


def scene_of(folder):
    """Run `story(brokers)` on virtual time."""

    def run(story, *, seed=1, **settings):
        runtime = SimulatedRuntime(seed=seed)

        async def main():
            brokers = Brokers(runtime, folder, **settings)
            try:
                return await story(brokers)
            finally:
                await brokers.stop()
                await runtime.close()

        with runtime.simulation:
            return runtime.run(main())

    return run


async def copied(manager, number, start, end, *, user_partition=PARTITION):
    await manager.add_remote_log_segment_metadata(of(user_partition, copy_of(number, start, end)))
    await manager.update_remote_log_segment_metadata(
        of(user_partition, to(number, State.COPY_SEGMENT_FINISHED))
    )


async def copied_in_a_row(manager, count, *, user_partition=PARTITION):
    """So many copies of one record each, from offset 0 on."""
    for number in range(count):
        await copied(manager, number + 1, number, number + 1, user_partition=user_partition)


def ends(manager, user_partition=PARTITION):
    return [each.end_offset for each in manager.list_remote_log_segments(user_partition)]

"""The end of a story: everything is healed, and then the expected state is reached,
and all expected records are there.
"""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from cluster_consumer import Consumer
from cluster_ledger import Batch, Committed, batches_of, is_lost, records_in
from cluster_local_logs import unreported
from cluster_violated import Violated
from cluster_voters import all_joined

from ottla.metadata.image import ConfigResource, ConfigResourceType, MetadataImage, PartitionImage
from ottla.storage.log import Log
from tests.harness.history import History, Poll

if TYPE_CHECKING:
    from cluster_world import World

#: How long the cluster may take to recover when nothing fails any more.
HEALING_S = 40.0
#: The same for the remote tier: copies that are not finished are deleted after the deadlines of those who made them.
SETTLING_S = 60.0
#: Longer than fetch and election timeouts of the quorum.
_CALM_S = 2.0


class Ending:
    """The end of one world's story: recovery, and the final state. Both steps raise Violated."""

    def __init__(self, world: "World") -> None:
        self._world = world

    async def heal(self) -> None:
        """Nothing fails any more: all nodes are restarted, and the clients end."""
        self._world.note("healing")
        network = self._world.simulation.network
        network.conditions.delays_s.clear()
        network.conditions.window_bytes = 256 * 1024
        self._world.bucket.weather.clear()
        for machine in self._world.machines:
            for other in self._world.machines:
                network.heal(machine.host, other.host)
        for machine in self._world.machines:
            machine.files.faults.clear()
            machine.resume()
            if machine.runtime is not None:
                machine.runtime.interleaving.operation_s = None
                for pool in machine.runtime.pools.values():
                    pool.blocking_s = None

        def all_serve() -> bool:
            for machine in self._world.machines:
                machine.files.faults.clear()
                machine.log_dirs.restore()
                machine.start()
                if machine.has_offline_directory or machine.log_dirs.away:
                    machine.stop()
            return all(machine.is_serving for machine in self._world.machines)

        await self._world.until("EventuallyRuns", all_serve)
        await self._world.until("EventuallyUnfenced", self._all_unfenced)
        self._world.is_stopping = True
        deadline = self._world.now + HEALING_S
        while waiting := [task for task in self._world.tasks if not task.done()]:
            # Some begin others.
            if self._world.now >= deadline:
                open_sends = [send for send in self._world.history.sends if send.ended_s is None]
                raise Violated(f"EventuallyWriteIsAcceptedOrRejected: {open_sends}")
            await asyncio.wait(waiting, timeout=deadline - self._world.now)
        for task in self._world.tasks:
            task.result()
        await self._world.until("EventuallyReassignmentCompletes", self._no_reassignment)
        await self._world.until("AlterPartitionEpochEventuallyReachedOrZero", self._isrs_are_decided)
        await self._world.until("EventuallyAcknowledgedValueFullyReplicated", self._isrs_are_full)
        await self._world.until("EventuallyDirectoriesAreKnown", self._directories_are_known)
        await self._world.until("EventuallyMetadataConverges", self._metadata_is_one)
        await self._settle_tiers()
        await self._settle_voters()

    async def _settle_voters(self) -> None:
        """Controllers that join by themselves are voters, and the others, who were removed, depose no leader."""
        world = self._world
        if not world.is_dynamic:
            return
        await world.until("EventuallyVotersJoin", lambda: all_joined(world))
        leaders = world.judge.quorum_leaders
        await asyncio.sleep(_CALM_S)
        if (now := world.judge.quorum_leaders) != leaders:
            raise Violated(f"NoLeaderIsDeposed: {leaders}, then {now}")

    async def _settle_tiers(self) -> None:
        """The remote tier has what it is to have, and nothing else, and the controllers know what is left locally."""
        world = self._world

        def unsettled() -> str | None:
            image = world.judge.image
            return world.tiers.unsettled(world.brokers, image) or unreported(
                world.brokers, image, world.switched
            )

        deadline = world.now + SETTLING_S
        while (text := unsettled()) is not None:
            if world.now > deadline:
                raise Violated(f"{text}: not within {SETTLING_S} s")
            await asyncio.sleep(0.2)

    def _all_unfenced(self) -> bool:
        brokers = self._world.judge.image.brokers
        return all(id in brokers and not brokers[id].is_fenced for id in self._world.broker_ids)

    def _no_reassignment(self) -> bool:
        return not any(
            each.adding_replicas or each.removing_replicas for _, _, each in self._world.partitions()
        )

    def _isrs_are_decided(self) -> bool:
        """No leader waits for the controller's decision on an ISR."""
        return not any(
            partition.leader is not None and partition.leader.state.proposed_isr is not None
            for machine in self._world.brokers
            if machine.broker is not None
            for partition in machine.broker.replicas.partitions()
        )

    def _isrs_are_full(self) -> bool:
        return all(
            set(each.isr) == set(each.replicas) and each.leader is not None
            for _, _, each in self._world.partitions()
        ) and all(self._is_replicated(name, index, each) for name, index, each in self._world.partitions())

    def _is_replicated(self, topic: str, index: int, image: PartitionImage) -> bool:
        """All logs end at one offset, and all know that everything before it is committed."""
        ends = {self._ends(topic, index, broker_id) for broker_id in image.replicas}
        end = ends.pop()
        return not ends and end is not None and end[0] == end[1]

    def _ends(self, topic: str, index: int, broker_id: int) -> tuple[int, int] | None:
        """(log end, high watermark) of a replica."""
        broker = next(machine for machine in self._world.machines if machine.node_id == broker_id).broker
        partition = None if broker is None else broker.replicas.hosted.get((topic, index))
        return None if partition is None else (partition.log.log_end_offset, partition.log.high_watermark)

    def _directories_are_known(self) -> bool:
        """Each replica is in the directory that the controllers have recorded,
        and no assignment is pending (KIP-858).
        """
        for machine in self._world.brokers:
            assert machine.broker is not None
            logs = machine.broker.replicas.logs
            if logs.future_logs:
                return False
            for name, index, image in self._world.partitions():
                if machine.node_id in image.replicas:
                    place = image.directories[image.replicas.index(machine.node_id)]
                    log = machine.broker.replicas.hosted.by_key[name, index].log
                    if logs.directory_ids[log.directory.parent] != place:
                        return False
        return True

    def _metadata_is_one(self) -> bool:
        images = [machine.metadata for machine in self._world.machines]
        offsets = {None if image is None else image.last_applied_offset for image in images}
        if len(offsets) > 1:
            return False
        first = images[0]
        assert first is not None
        for image in images[1:]:
            assert image is not None
            if image.image != first.image:
                raise Violated("MetadataLogMatching: images of the same offset differ")
        return True

    async def look(self) -> None:
        """Replicas are equal, byte for byte, and everything that was acknowledged can be read."""
        await self._world.until("EventuallyRecordsAreDeleted", self._deletions_are_everywhere)
        # Settling the tiers has written metadata of copies.
        await self._world.until("EventuallyAcknowledgedValueFullyReplicated", self._isrs_are_full)
        for name, index, image in self._world.partitions():
            logs = [
                machine.broker.replicas.hosted.by_key[name, index].log
                for machine in self._world.brokers
                if machine.node_id in image.replicas and machine.broker is not None
            ]
            start = max(log.local_log_start_offset for log in logs)
            if name in self._world.history.compacted:
                contents = [_last_values(log) for log in logs]
            else:
                lost = self._world.judge.differing(name, index, is_read_committed=False)
                contents = [_content(log, start, lost) for log in logs]
            if any(content != contents[0] for content in contents):
                raise Violated(f"LogMatching: {name}-{index} differs: {contents}")
        everything = History(
            unclean=self._world.history.unclean,
            trimmed=self._world.history.trimmed,
            on_poll=self._world.history.on_poll,
        )
        written = {(send.topic, send.partition) for send in self._world.history.sends}
        for topic, partition in sorted(written):
            if topic not in self._world.judge.image.topics_by_name:
                continue
            image = self._world.judge.image.topics_by_name[topic].partitions[partition]
            ends = self._ends(topic, partition, image.replicas[0])
            assert ends is not None
            reader = self._world.consumer(f"final-{topic}-{partition}", topic, partition, everything)
            await self._read_until(reader, ends[1])
            if _is_tiered(self._world.judge.image, topic):
                await self._read_replicas(topic, partition, image, everything, ends[1])
            if topic in self._world.history.unclean:
                await self._compare_views(reader)
            if topic in self._world.history.compacted:
                self._compare_last_values(reader)
        self._world.judge.look_at_acknowledged(self._world.history.sends)
        self._world.final = [
            kept for poll in everything.polls if (kept := self._without_differing(poll)).found
        ]
        self._world.history.errors += everything.errors
        if self._world.history.errors:
            raise Violated(f"clients got: {self._world.history.errors[:3]}")

    def _without_differing(self, poll: Poll) -> Poll:
        """The poll without the records that replicas may show or not, since an unclean election has lost them."""
        differing = self._world.judge.differing(
            poll.topic, poll.partition, is_read_committed=poll.is_read_committed
        )
        return replace(
            poll, found=[(offset, value) for offset, value in poll.found if offset not in differing]
        )

    async def _read_until(self, reader: Consumer, end: int) -> None:
        """Read until the consumer has all that the leader has."""
        reader.agreed_epoch = -1
        try:
            await asyncio.wait_for(
                reader.consume(is_over=lambda position: position >= end and reader.agreed_epoch >= 0),
                HEALING_S,
            )
        except TimeoutError:
            text = f"{reader.topic}-{reader.partition} cannot be read by {reader.name}: at {reader.position} of {end}"
            raise Violated(text) from None

    async def _read_replicas(
        self, topic: str, partition: int, image: PartitionImage, history: History, end: int
    ) -> None:
        """All offsets are read from each replica, in both isolation levels; what they have to get, the judge knows."""
        for broker_id in image.replicas:
            for is_read_committed in (False, True):
                reader = self._world.consumer(
                    f"final-{topic}-{partition}-{broker_id}-{is_read_committed}",
                    topic,
                    partition,
                    history,
                    is_read_committed=is_read_committed,
                    replica=broker_id,
                )
                await self._read_until(reader, end)

    async def _compare_views(self, reader: Consumer) -> None:
        """A consumer that learned of all truncations has what a reader finds that was there for none (KIP-320).

        A gap is no truncation: no response reports what a crash took from the middle of the unclean leader's log.
        """
        gaps = self._world.judge.gaps(reader.topic, reader.partition)
        for consumer in self._world.consumers:
            # A marker that is lost, and decided otherwise afterwards, is behind what the other level has read.
            is_comparable = not consumer.is_read_committed
            if is_comparable and (consumer.topic, consumer.partition) == (reader.topic, reader.partition):
                await self._read_until(consumer, reader.position)
                view = [read for read in consumer.view if read.offset not in gaps or read in reader.view]
                if view != reader.view:
                    raise Violated(f"TruncationDetected: {consumer.name} has {view}, not {reader.view}")

    def _compare_last_values(self, reader: Consumer) -> None:
        """A consumer that has read, a little late or all at the end, knows each key's last value."""
        end, last = self._world.judge.last_values(reader.topic, reader.partition)
        for consumer in (reader, *self._world.consumers):
            if (consumer.topic, consumer.partition) == (reader.topic, reader.partition):
                known = {each.key: (each.offset, each.value) for each in consumer.view}
                if consumer.position >= end and known != last:
                    raise Violated(f"LastValuesAreKept: {consumer.name} has {known}, committed is {last}")

    def _deletions_are_everywhere(self) -> bool:
        """Followers begin where their leader does, or behind that."""
        start = self._world.judge.log_start_offset
        return all(
            start(name, index, replica) >= start(name, index, image.leader)
            for name, index, image in self._world.partitions()
            if image.leader is not None and (name, index) in self._world.judge.deleted
            for replica in image.replicas
        )


def _is_tiered(image: MetadataImage, topic: str) -> bool:
    return (
        image.config(ConfigResource(ConfigResourceType.TOPIC, topic)).get("remote.storage.enable") == "true"
    )


def _content(log: Log, start: int, lost: set[int]) -> tuple[int, list[tuple[Batch, bytes]]]:
    """A replica: where it ends, and its bytes from `start` on that no unclean election has lost."""
    end = log.log_end_offset
    batches = batches_of(log, start, end)
    return end, [
        (batch, bytes(data))
        for batch, (_, data) in zip(
            batches, log.reader.records_since(start) if start < end else (), strict=True
        )
        if not is_lost(batch, lost)
    ]


def _last_values(log: Log) -> dict[bytes | None, tuple[int, Committed]]:
    """The last value of each key, as a reader of the whole log has it in the end."""
    records = records_in(log, log.log_start_offset, log.log_end_offset)
    return {record.key: (offset, record) for offset, record in records.items()}

"""A branch of a tiered log that is copied and given up: its leader goes on alone, and another one is elected uncleanly.

    leader      0 ........ 40 ........... 80     others stopped at 40; 40 to 60 is copied
    elected     0 ........ 40 ....... 70         without what is behind 40
    leader      0 ........ 40 ....... 70         back as a follower: truncated; and perhaps leads again

Either the leader dies, or it cannot reach the controller: then the same process, with a copy under way perhaps,
truncates its log, and leads again.

Or the branch returns: the leader that is elected copies the same offsets, and goes down with the other
followers; the first one comes back with its branch, and is elected uncleanly in its turn.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from cluster_machine import Machine
from cluster_operator import Operator
from cluster_violated import Violated
from cluster_world import World

from ottla.metadata.image import PartitionImage

_PATIENCE_S = 4.0


async def give_up_a_branch(world: World, topic: str) -> None:
    """Have a branch given up once; it may come to nothing where other faults prevent it."""
    with suppress(_NotNow):
        await _Branch(world, topic).give_up()


async def return_to_a_branch(world: World, topic: str) -> None:
    """Have a leader return to its branch once; it may come to nothing where other faults prevent it."""
    with suppress(_NotNow):
        await _Branch(world, topic).return_to_it()


class _NotNow(Exception):
    """An expected state is not reached in time."""


class _Branch:
    def __init__(self, world: World, topic: str) -> None:
        self._world = world
        self._random = world.random
        self._topic = topic

    async def give_up(self) -> None:
        """Have a branch of the log copied, and then given up by an unclean election."""
        world = self._world
        leader, others = await self._go_on_alone()
        world.bucket.weather.delay_s = self._random.choice((0.0, 0.3, 1.0))
        await asyncio.sleep(self._random.uniform(0, 0.6))
        if self._random.random() < 0.4:
            leader.kill()
            world.note(f"kill {leader}")
        else:
            world.note(f"depose {leader}")
            self._reach(leader, is_possible=False)
        for machine in others:
            machine.start()
        try:
            await self._until(lambda: self._image.leader not in (None, leader.node_id))
            await asyncio.sleep(self._random.choice((0.0, 0.3, 1.0)))
        finally:
            self._reach(leader, is_possible=True)
            leader.start()
        with suppress(_NotNow):
            await self._until(lambda: leader.node_id in self._image.isr)
            if self._random.random() < 0.7:
                Operator(world).crown(self._topic, 0, leader.node_id)
            await asyncio.sleep(self._random.uniform(0.3, 1.0))
        world.bucket.weather.delay_s = 0.0

    async def return_to_it(self) -> None:
        """Have the leader of a branch that was given up lead again, after another one has copied the same
        offsets."""
        world = self._world
        leader, others = await self._go_on_alone()
        await asyncio.sleep(self._random.uniform(0.5, 1.5))
        lost_end = self._copied_end()
        leader.kill()
        world.note(f"kill {leader}: its branch is copied up to {lost_end}")
        for machine in others:
            machine.start()
        try:
            await self._until(lambda: self._image.leader not in (None, leader.node_id))
            branch = self._image.leader_epoch
            with suppress(_NotNow):
                await self._until(lambda: self._copied_end(since_epoch=branch) >= lost_end)
            await asyncio.sleep(self._random.uniform(0.5, 1.5))
            for machine in others:
                machine.kill()
        finally:
            world.note(f"{leader} returns")
            leader.start()
        with suppress(_NotNow):
            await self._until(lambda: self._image.leader == leader.node_id)
            await asyncio.sleep(self._random.uniform(0.3, 1.0))
        for machine in others:
            machine.start()

    async def _go_on_alone(self) -> tuple[Machine, list[Machine]]:
        """The leader, which has copied a part of its branch perhaps, and its followers, which are down."""
        world = self._world
        await self._until(lambda: self._image.leader is not None and len(self._image.isr) == 3)
        [leader] = [each for each in world.brokers if each.node_id == self._image.leader]
        others = [
            each for each in world.brokers if each.node_id in self._image.replicas and each is not leader
        ]
        world.note(f"{leader} goes on alone")
        for machine in others:
            machine.stop()
        await self._until(lambda: self._image.isr == (leader.node_id,) and not any(o.is_up for o in others))
        alone_from = world.judge.committed_end(self._topic, 0)
        with suppress(_NotNow):
            await self._until(lambda: self._copied_end() > alone_from)
        return leader, others

    @property
    def _image(self) -> PartitionImage:
        return self._world.judge.image.topics_by_name[self._topic].partitions[0]

    def _copied_end(self, *, since_epoch: int = 0) -> int:
        """The end of what leaders have copied of epochs from this one on."""
        copies = self._world.tiers.copies[self._world.judge.image.topics_by_name[self._topic].topic_id, 0]
        return max(
            (copy.end_offset for copy in copies.finished() if copy.leader_epochs[-1].epoch >= since_epoch),
            default=0,
        )

    def _reach(self, leader: Machine, *, is_possible: bool) -> None:
        """Whether it reaches the controller."""
        for machine in self._world.machines:
            if machine.is_controller:
                change = (
                    self._world.simulation.network.heal if is_possible else self._world.simulation.network.cut
                )
                change(leader.host, machine.host)

    async def _until(self, holds: Callable[[], bool]) -> None:
        try:
            await self._world.until("a branch", holds, within_s=_PATIENCE_S)
        except Violated:
            raise _NotNow from None

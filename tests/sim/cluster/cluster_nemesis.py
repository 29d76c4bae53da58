"""Faults of a cluster, one after the other, drawn from the seed.

Power losses take what was not flushed, and Kafka flushes nothing: a record lives as long as one member of the ISR that
has it does, and is believed to. So a machine loses power only while all other members of each of its ISRs are
alive, and have not lost power since they joined. Until the controllers know of it no other node is killed or
stopped: to them a kill looks the same as a power loss, and in the end they would have the last known leader
lead, which may be the one with the loss (KIP-966). Until it is back in the ISR, the last member that has
everything is neither killed nor stopped. Where min.insync.replicas is 1, no in-sync replica loses power:
fences alone may make the ISR that member's.
"""

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path

from cluster_log_dirs import CHANGES, hand_over
from cluster_machine import Machine
from cluster_operator import Operator
from cluster_store_faults import StoreFaults
from cluster_voters import VoterChanges
from cluster_world import World

from ottla.runtime import Pool
from ottla.storage.manager import meta_properties
from ottla.stories.partition.faulty_files import Loss

_LOSSES = (Loss.SUFFIX, Loss.PAGES, Loss.ANYTHING, Loss.EVERYTHING)


class Nemesis:
    """Draws faults from the seed, and injects and repairs them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random
        self._operator = Operator(world)
        self._operator.is_whole = self._is_whole
        self._store = StoreFaults(world)
        self._voters = VoterChanges(world)
        #: After how many seconds things are healed, more or less.
        self._delays_s: tuple[float, ...] = ()
        #: (replica, topic, partition) that have lost power -> the broker epoch in which they did; until they are in the
        #: ISR in a newer one.
        self._damaged: dict[tuple[int, str, int], int] = {}

    async def rage(self, *, for_s: float, kinds: Sequence[str], is_hasty: bool = False) -> None:
        """Faults of these kinds at random intervals; each is healed later, or soon if `is_hasty`."""
        world = self._world
        self._delays_s = (0.02, 0.1, 0.5, 1.7) if is_hasty else (0.05, 0.5, 1, 2, 4)
        deadline = world.now + for_s
        while True:
            await asyncio.sleep(self._random.uniform(0.05, 1.0))
            if world.now > deadline:
                return
            kind = self._random.choice(list(kinds))
            victim = self._victim()
            if kind.startswith("store_"):
                getattr(self._store, kind.removeprefix("store_"))()
            elif kind.startswith("voter_"):
                getattr(self._voters, kind.removeprefix("voter_"))()
            elif hasattr(self._operator, kind):
                getattr(self._operator, kind)()
            else:
                getattr(self, f"_{kind}")(victim)

    def _victim(self) -> Machine:
        """Any node; often a leader."""
        random, world = self._random, self._world
        leaders = [
            machine
            for machine in world.machines
            if machine.is_active_controller
            or any(each.leader == machine.node_id for _, _, each in world.partitions())
        ]
        if leaders and random.random() < 0.5:
            return random.choice(leaders)
        return random.choice(world.machines)

    def _later(self, what: str, machine: Machine) -> None:
        delay_s = self._random.choice(self._delays_s) * self._random.uniform(0.5, 1.5)
        self._world.simulation.loop.call_later(delay_s, self._heal, what, machine)

    def _heal(self, what: str, machine: Machine) -> None:
        network = self._world.simulation.network
        match what:
            case "start":
                if not machine.is_up:
                    self._world.note(f"start {machine}")
                    machine.start()
            case "resume":
                machine.resume()
            case "disk":
                machine.files.faults.clear()
                machine.start()
            case "directory":
                machine.files.faults.clear()
                if machine.has_offline_directory:
                    self._stop(machine)
            case "fast" if machine.runtime is not None:
                machine.runtime.interleaving.operation_s = None
            case "heal":
                for other in self._world.machines:
                    network.heal(machine.host, other.host)
            case "hurry":
                for other in self._world.machines:
                    network.conditions.delays_s.pop((machine.host, other.host), None)

    # -- kinds -----------------------------------------------------------------------------------------

    def _kill(self, machine: Machine) -> None:
        if machine.is_up and self._spares(machine, has_power=True):
            self._world.note(f"kill {machine}")
            machine.kill()
            self._later("start", machine)

    def _power(self, machine: Machine) -> None:
        if machine.is_up and self._spares(machine, has_power=False) and not _lacks_metadata(machine):
            loss = self._random.choice(_LOSSES)
            self._loses_pages(machine)
            self._world.note(f"power {machine} {loss.name}")
            machine.lose_power(loss)
            self._later("start", machine)

    def _new_disk(self, machine: Machine) -> None:
        """It loses its disk, and comes back with an empty one, of another directory id."""
        if machine.is_up and self._spares(machine, has_power=False) and self._spares_vote(machine):
            self._loses_pages(machine)
            self._world.note(f"new disk {machine}")
            machine.lose_disk()
            self._later("start", machine)

    def _blackout(self, machine: Machine) -> None:
        """A broker loses power for a moment; not a controller, of which there may be but one."""
        if machine.is_broker:
            self._power(machine)

    def _stop(self, machine: Machine) -> None:
        if machine.is_serving and self._spares(machine, has_power=True):
            self._world.note(f"stop {machine}")
            machine.stop()
            self._later("start", machine)

    def _log_dirs(self, machine: Machine) -> None:
        """A broker is stopped, and starts with other log directories: they are only away, so nothing is lost."""
        if machine.is_broker and machine.is_serving and self._spares(machine, has_power=True):
            machine.log_dirs.planned = self._random.choice(CHANGES)
            self._world.note(f"stop {machine}")
            machine.stop()
            self._start_with_other_log_dirs(machine)

    def _port(self, machine: Machine) -> None:
        """A controller is stopped, and starts with another port."""
        may_move = machine.is_controller and machine.is_serving and self._voters.spares_one()
        if may_move and self._spares(machine, has_power=True):
            self._world.note(f"stop {machine}, another port")
            machine.stop()
            machine.change_controller_port()
            self._later("start", machine)

    def _start_with_other_log_dirs(self, machine: Machine) -> None:
        """Soon, or as soon as it has stopped."""
        delay_s = self._random.choice(self._delays_s) * self._random.uniform(0.5, 1.5)
        self._world.simulation.loop.call_later(delay_s, self._change_log_dirs, machine)

    def _change_log_dirs(self, machine: Machine) -> None:
        if machine.is_up:
            if not machine.is_serving:
                self._start_with_other_log_dirs(machine)
            return
        what = self._take_over(machine) if machine.log_dirs.planned == "handed" else machine.log_dirs.change()
        if what is not None:
            self._world.note(f"log dirs {machine} {what}")
        machine.start()

    def _take_over(self, machine: Machine) -> str | None:
        """A directory that another broker has been started without, and that no partition needs,
        is put into this one.
        """
        machine.log_dirs.planned = None
        for giver in self._world.brokers:
            known = self._world.judge.image.brokers.get(giver.node_id)
            for path in giver.log_dirs.away if giver is not machine else ():
                properties = meta_properties.read(Path(path), giver.files)
                if (
                    known is not None
                    and properties is not None
                    and properties.directory_id not in known.log_dirs
                    and all(
                        image.leader is not None and set(image.isr) - {giver.node_id}
                        for _, _, image in self._world.partitions()
                        if giver.node_id in image.replicas
                    )
                ):
                    hand_over(giver, path, machine)
                    return f"{path} of {giver}"
        return None

    def _orphan(self, machine: Machine) -> None:
        """All that are in sync with a partition go, where others are left that are not, and may lead (KIP-101, A)."""
        world = self._world
        behind = [
            image
            for topic, _, image in world.partitions()
            if topic in world.history.unclean and len(image.isr + image.elr) < len(image.replicas)
        ]
        if behind:
            image = self._random.choice(behind)
            for each in world.brokers:
                if each.node_id in image.isr + image.elr:
                    self._random.choice((self._kill, self._power))(each)

    def _loses_pages(self, machine: Machine) -> None:
        for topic, index, each in self._world.partitions():
            if machine.node_id in each.replicas:
                self._damaged[machine.node_id, topic, index] = self._epoch_of(machine.node_id)

    def _is_whole(self, topic: str, index: int) -> bool:
        """Whether no replica of the partition has lost anything, and is not back in the ISR."""
        return not any((each[1], each[2]) == (topic, index) for each in self._damaged)

    def _epoch_of(self, broker_id: int) -> int:
        """The broker epoch that the controllers know."""
        known = self._world.judge.image.brokers.get(broker_id)
        return -1 if known is None else known.epoch

    def _torn(self, machine: Machine) -> None:
        """The process dies in the middle of one of its next writes."""
        if machine.is_up and self._spares(machine, has_power=True):
            self._world.note(f"torn write {machine}")
            machine.files.fail(None, nth=self._random.randint(1, 6), errno=None)
            self._later("start", machine)

    def _disk(self, machine: Machine) -> None:
        """The disk refuses writes for a while: a node that cannot write ends."""
        if machine.is_up and self._spares(machine, has_power=False):
            operation = self._random.choice(("write", "fsync", "create"))
            self._world.note(f"disk {machine} {operation}")
            self._loses_pages(machine)  # those that a failed fsync should have written are gone
            machine.files.fail(operation, nth=self._random.randint(1, 5), errno=errno.EIO, is_lasting=True)
            self._later("disk", machine)

    def _directory(self, machine: Machine) -> None:
        """One of several disks refuses writes: its partitions are led elsewhere until a new one is there,
        and a restart.
        """
        directories = machine.config.log_dirs[1:]  # the first has the metadata log
        if (
            machine.is_serving
            and machine.is_broker
            and directories
            and self._spares(machine, has_power=False)
        ):
            directory = self._random.choice(directories)
            operation = self._random.choice(("write", "fsync", "create"))
            self._world.note(f"directory {machine} {directory} {operation}")
            self._loses_pages(machine)
            machine.files.fail(operation, errno=errno.EIO, under=Path(directory), is_lasting=True)
            self._later("directory", machine)

    def _slow(self, machine: Machine) -> None:
        """Each operation of its disk takes a while: threads are at work over many turns of the loop,
        and work waits for them.
        """
        if machine.runtime is not None and machine.is_up:
            draw = machine.runtime.interleaving.random
            longest_s = self._random.choice((0.005, 0.05, 0.3))
            self._world.note(f"slow disk {machine} {longest_s}")
            machine.runtime.interleaving.operation_s = lambda *_: (
                draw.choice((0, 0, 0.02, 0.2, 1)) * longest_s
            )
            self._later("fast", machine)

    def busy(self, machine: Machine) -> None:
        """Its threads that read and validate for clients take their time from now on."""
        if machine.runtime is not None:
            draw = machine.runtime.interleaving.random
            longest_s = self._random.choice((0.0, 0.1, 0.5, 1.0))
            for pool in (Pool.READS, Pool.VALIDATION):
                machine.runtime.pools[pool].blocking_s = lambda: draw.choice((0, 0.2, 1)) * longest_s

    def _pause(self, machine: Machine) -> None:
        """SIGSTOP, and after a while SIGCONT."""
        if machine.is_up and not machine.is_paused:
            self._world.note(f"pause {machine}")
            machine.pause()
            self._later("resume", machine)

    def _clock(self, machine: Machine) -> None:
        """Set the clock of a machine wrong."""
        error_ms = self._random.choice((-3_600_000, -5_000, 0, 2_000, 3_600_000))
        self._world.note(f"clock {machine} {error_ms}")
        machine.clock_error_ms = error_ms
        if machine.runtime is not None:
            machine.runtime.clock_error_ms = error_ms

    # -- network -----------------------------------------------------------------------------------------

    def _cut(self, machine: Machine) -> None:
        """Two cannot reach each other; or one of them cannot reach the other."""
        other = self._random.choice([each for each in self._world.machines if each is not machine])
        self._cut_between(machine, [other])

    def _isolate(self, machine: Machine) -> None:
        """Its messages are lost, or those to it, or both."""
        self._cut_between(machine, [each for each in self._world.machines if each is not machine])

    def _cut_between(self, machine: Machine, others: Sequence[Machine]) -> None:
        network = self._world.simulation.network
        way = self._random.choice(("both", "out", "in"))
        self._world.note(f"cut {way} {machine} {others}")
        for other in others:
            if way == "both":
                network.cut(machine.host, other.host)
            elif way == "out":
                network.cut_one_way(machine.host, other.host)
            else:
                network.cut_one_way(other.host, machine.host)
        self._later("heal", machine)

    def _delay(self, machine: Machine) -> None:
        """Delay the messages that a node sends to some others."""
        for other in self._world.machines:
            if other is not machine and self._random.random() < 0.7:
                delay_s = self._random.choice((0.02, 0.2, 0.7))
                self._world.simulation.network.conditions.delays_s[machine.host, other.host] = delay_s
        self._world.note(f"delay {machine}")
        self._later("hurry", machine)

    # -- what must not be lost ---------------------------------------------------------------------------

    def _spares(self, victim: Machine, *, has_power: bool) -> bool:
        """Whether nothing is lost with the victim, whatever the controllers learn first; see the module."""
        world, victim_id = self._world, victim.node_id
        self._forget_the_healed()
        sound = {
            machine.node_id
            for machine in world.brokers
            if machine is not victim
            and machine.is_serving
            and not machine.files.faults  # one of its next writes will be its last
            and not machine.has_offline_directory
            and machine.broker is not None
            and self._epoch_of(machine.node_id) == machine.broker.lifecycle.broker_epoch
        }
        for topic, index, each in world.partitions():
            if topic in world.history.unclean or victim_id not in each.replicas:
                continue  # it may lose what it has; it has none of it
            damaged = {replica for replica in each.replicas if (replica, topic, index) in self._damaged}
            others = set(each.isr) - {victim_id}
            if has_power:
                is_unknown = any(
                    self._epoch_of(replica) == self._damaged[replica, topic, index]
                    for replica in damaged.intersection(each.isr + each.elr)
                )
                is_spared = not is_unknown and (not damaged or others & (sound - damaged))
            else:
                is_alone = victim_id in each.isr and world.judge.min_isr(topic) == 1
                is_spared = not is_alone and others and others <= sound - damaged
            if not is_spared:
                return False
        return True

    def _spares_vote(self, victim: Machine) -> bool:
        """Whether the quorum can do without what the victim has written and whom it has voted for.

        Static voters (kraft.version 0) that come back empty vote again, as in Kafka. So all others
        have to have everything that it has and may have returned, committed or not, and to follow one leader in an
        epoch that it cannot have voted beyond: no election of that epoch is left to vote in.
        """
        if not victim.is_controller:
            return True
        if self._world.is_dynamic and not self._voters.spares_one():
            return False
        voters = [machine for machine in self._world.machines if machine.is_controller]
        quorums = [machine.quorum for machine in voters if machine.is_serving]
        mine = victim.quorum
        if len(quorums) < len(voters) or mine is None or len(voters) == 1:
            return False
        epoch = mine._raft.role.epoch
        return all(
            each is not None
            and each._raft.role.epoch == epoch
            and each.leader.leader_id not in (None, victim.node_id)
            and each.end_offset >= mine.end_offset
            for each in quorums
        )

    def _forget_the_healed(self) -> None:
        """A replica that is in the ISR in a newer epoch has everything again."""
        for topic, index, each in self._world.partitions():
            for replica in each.isr:
                lost_in = self._damaged.get((replica, topic, index))
                if lost_in is not None and self._epoch_of(replica) != lost_in:
                    del self._damaged[replica, topic, index]


def _lacks_metadata(voter: Machine) -> bool:
    """Whether an fsync of this voter's metadata log has failed, so that the page cache shows what the disk lacks.

    The node that stopped and was started again counts these records, as Kafka's does:
    a majority with them is none after the power is lost.
    """
    directory = Path(voter.config.metadata_log_dir) / "__cluster_metadata-0"
    return voter.is_controller and directory in voter.files.directories_with_lost_pages

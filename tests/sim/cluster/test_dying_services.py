"""Services that fail with an unexpected exception: each of them comes back, and the cluster becomes whole again."""

import asyncio
import re
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from cluster_machine import Machine
from cluster_nemesis import Nemesis
from cluster_services import Injected, Interruptible
from cluster_stories import slow_ways
from cluster_violated import Violated
from cluster_world import World

from ottla import broker
from ottla.runtime.supervision import Supervisor

pytestmark = pytest.mark.timeout(300)

SEEDS = range(6)
#: Makes no more than sixteen logs at once here, which it does on the loop:
#: see tests/unit/broker/replicas/test_log_creator.py.
NEEDS_NO_THREAD = {"log-creator"}
#: Runs only with a remote tier, which these clusters do not have.
NEEDS_A_REMOTE_TIER = {"partition-removers", "remote-store-checks"}

_SETTINGS = {
    "log.dirs": "/disk/a,/disk/b",
    "log.initial.task.delay.ms": 100,
    "log.retention.check.interval.ms": 500,
    "log.cleaner.backoff.ms": 400,
}


def failures(world: World) -> Counter[str]:
    """The number of failures of each service; those of a broker's fetchers count as one."""
    total: Counter[str] = Counter()
    for machine in world.machines:
        if machine.runtime is not None:
            for name, count in machine.runtime.task_failures.items():
                total[re.sub(r"-\d+$", "", name)] += count
    return total


def interrupt(machine: Machine, name: str, service: Interruptible) -> None:
    """The service fails. Not beside a thread, which goes on with what it does; and not if it has ended."""
    runtime = machine.runtime
    if runtime is not None and not runtime.threads_count and not machine.is_paused and service.is_running:
        service.fail(Injected(name))


def interrupt_early(world: World, machine: Machine, name: str, service: Interruptible) -> None:
    """Half of the runs fail soon: some services run only as long as a request takes."""
    if world.random.random() < 0.5:
        delay_s = world.random.uniform(0.0, 0.05)
        world.simulation.loop.call_later(delay_s, interrupt, machine, name, service)


async def dying_services(world: World) -> None:
    """Services of all nodes fail, while ISRs, leaders and directories change."""
    for machine in world.machines:
        assert machine.runtime is not None
        machine.runtime.on_service = partial(interrupt_early, world, machine)
    await world.create_topic("t", partitions=4)
    for partition in range(2):
        world.produce("t", partition)
        world.consume("t", partition)
    slow_ways(world, (0.0, 0.02, 0.05))
    kinds = ("pause", "pause", "isolate", "isolate", "isolate", "elect", "move", "move", "move")
    raging = asyncio.ensure_future(Nemesis(world).rage(for_s=5, kinds=kinds))
    while not raging.done():
        await asyncio.sleep(world.random.uniform(0.1, 0.5))
        machine = world.random.choice(world.machines)
        assert machine.runtime is not None
        name = world.random.choice(sorted(machine.runtime.services))
        interrupt(machine, name, machine.runtime.services[name])
    await raging
    for machine in world.machines:
        assert machine.runtime is not None
        machine.runtime.on_service = lambda name, service: None


def played(seed: int) -> World:
    with World(seed, settings=_SETTINGS) as world:
        world.run(dying_services)
        assert not world.given_up, world.given_up
    errors = world.checked()
    assert not errors, errors
    return world


@pytest.mark.logs("a heartbeat to the controller failed", "failed; it is started again in")
def test_each_service_comes_back():
    failed: Counter[str] = Counter()
    for seed in SEEDS:
        failed += failures(played(seed))
    source = "".join(path.read_text() for path in sorted(Path(broker.__path__[0]).rglob("*.py")))
    names = {name.rstrip("-") for name in re.findall(r'\.supervise\([^)]*name=f?"([\w-]+)', source)}
    assert len(names) >= 8
    assert failed.keys() >= names - NEEDS_NO_THREAD - NEEDS_A_REMOTE_TIER


@pytest.mark.logs("a heartbeat to the controller failed", "background task")
def test_services_that_stay_dead_are_found(monkeypatch):
    async def once(self, run, name):
        await run()

    monkeypatch.setattr(Supervisor, "_keep_running", once)
    with pytest.raises(Violated):
        played(0)

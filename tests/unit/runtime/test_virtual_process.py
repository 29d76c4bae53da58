"""Processes of a simulation: killed, they do nothing any more; paused, they do it later; and the network's
part in it.
"""

import asyncio

import pytest

from ottla.runtime import Pool
from ottla.runtime.simulated import Simulation
from ottla.runtime.virtual_loop import Process


@pytest.fixture
def simulation():
    with Simulation(seed=5) as simulation:
        yield simulation


async def tick(events, name):
    """Append to the list once a second."""
    try:
        while True:
            await asyncio.sleep(1)
            events.append(name)
    finally:
        events.append(f"{name} ends")


async def start(simulation, events):
    """A process with a task and a timer of that task's."""

    async def main():
        asyncio.get_running_loop().call_later(2.5, events.append, "timer")
        await asyncio.gather(tick(events, "a"), tick(events, "b"))

    process = Process("p")
    process.create_task(simulation.loop, main())
    await asyncio.sleep(1.5)
    assert events == ["a", "b"]
    return process


def test_nothing_of_a_killed_process_runs_any_more(simulation):
    events = []

    async def scenario():
        simulation.loop.kill(await start(simulation, events))
        events.clear()
        await asyncio.sleep(100)
        assert not events

    simulation.run(scenario())


def test_a_paused_process_does_later_what_came_due_meanwhile(simulation):
    events = []

    async def scenario():
        process = await start(simulation, events)
        process.pause()
        events.clear()
        await asyncio.sleep(10)
        assert not events
        simulation.loop.resume(process)
        await asyncio.sleep(0.1)
        assert sorted(events) == ["a", "b", "timer"]
        await asyncio.sleep(1)
        assert sorted(events) == ["a", "a", "b", "b", "timer"]

    simulation.run(scenario())


def test_what_is_cancelled_while_it_is_held_does_not_run(simulation):
    events = []

    async def scenario():
        process = Process("p")
        loop = simulation.loop

        async def main():
            later = loop.call_later(2, events.append, "cancelled")
            loop.call_later(1, later.cancel)

        process.create_task(loop, main())
        await asyncio.sleep(0.5)
        process.pause()
        await asyncio.sleep(10)
        loop.resume(process)
        await asyncio.sleep(1)
        assert not events

    simulation.run(scenario())


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


async def served(simulation):
    """A process that listens at p:1, a connection to it, and what comes back."""
    process, received = Process("p"), []

    async def serve():
        await simulation.runtime("p").listen("p", 1, Echo)

    await process.create_task(simulation.loop, serve())

    class Client(asyncio.Protocol):
        def data_received(self, data):
            received.append(data)

        def connection_lost(self, error):
            received.append(error)

    transport, _ = await simulation.runtime("c").connect("p", 1, Client)
    return process, transport, received


def test_connections_are_served_in_the_process_that_listens(simulation):
    async def scenario():
        process, transport, received = await served(simulation)
        process.pause()
        transport.write(b"one")
        await asyncio.sleep(5)
        assert not received
        simulation.loop.resume(process)
        await asyncio.sleep(1)
        assert received == [b"one"]
        simulation.loop.kill(process)
        transport.write(b"two")
        await asyncio.sleep(5)
        assert received == [b"one"]
        simulation.network.crash("p")
        await asyncio.sleep(1)
        assert isinstance(received[1], ConnectionResetError)

    simulation.run(scenario())


@pytest.mark.parametrize(("source", "target", "arrives"), [("p", "c", True), ("c", "p", False)])
def test_a_cut_of_one_direction(simulation, source, target, arrives):
    async def scenario():
        process, transport, received = await served(simulation)
        simulation.network.cut_one_way(source, target)
        transport.write(b"one")
        await asyncio.sleep(5)
        assert not received
        process.pause()  # what has got there by now is in its hands; it does not answer before the way is free
        simulation.network.heal(source, target)
        await asyncio.sleep(1)
        assert bool(received) is arrives
        simulation.loop.resume(process)
        await asyncio.sleep(1)
        assert received == [b"one"]

    simulation.run(scenario())


def test_a_host_that_loses_power_sends_nothing_and_has_no_connections_afterwards(simulation):
    async def scenario():
        process, transport, received = await served(simulation)
        simulation.loop.kill(process)
        simulation.network.unplug("p")
        transport.write(b"one")
        await asyncio.sleep(60)
        assert not received
        simulation.network.plug_in("p")
        await asyncio.sleep(1)
        assert [type(each) for each in received] == [ConnectionResetError]

    simulation.run(scenario())


def test_a_slow_way(simulation):
    async def scenario():
        _, transport, received = await served(simulation)
        simulation.network.conditions.delays_s["c", "p"] = 3
        transport.write(b"one")
        await asyncio.sleep(2.9)
        assert not received
        await asyncio.sleep(0.2)
        assert received == [b"one"]

    simulation.run(scenario())


def test_blocking_work_may_take_time(simulation):
    async def scenario():
        runtime = simulation.runtime("p")
        runtime.blocking_s = lambda: 2.0
        done = []
        task = asyncio.ensure_future(runtime.run_blocking(done.append, 1, pool=Pool.READS))
        await asyncio.sleep(1.5)
        assert not done
        await asyncio.sleep(1)
        assert done
        assert not task.done()
        await asyncio.sleep(2)
        assert task.done()

    simulation.run(scenario())

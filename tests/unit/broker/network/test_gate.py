"""Requests that come too early wait, and are answered in their order."""

import asyncio

import pytest
from network_support import Client, Handler, frame

from ottla.broker.network import NetworkServer
from ottla.broker.network.gate import Gate
from ottla.runtime.simulated import Simulation

PORT = 9092


@pytest.fixture
def simulation():
    with Simulation(seed=5) as simulation:
        yield simulation


async def serve(simulation):
    runtime = simulation.runtime("server")
    gate = Gate(runtime)
    server = NetworkServer(runtime, gate)
    port = (await server.listen("PLAINTEXT", "server", PORT)).port
    _, client = await simulation.runtime("client").connect("server", port, Client)
    return gate, server, client, Handler(runtime)


def test_what_came_early_is_answered_first(simulation):
    async def scenario():
        gate, server, client, handler = await serve(simulation)
        client.send(b"one", b"two")
        await asyncio.sleep(10)
        assert client.replies == []
        gate.open(handler)
        client.send(b"three")
        await asyncio.sleep(1)
        assert client.replies == [b"one", b"two", b"three"]
        (connection,) = server.connections
        assert connection.dispatch is handler  # the gate is passed once
        await server.stop()

    simulation.run(scenario())


def test_delayed_responses_and_errors_are_unchanged(simulation):
    async def scenario():
        gate, server, client, handler = await serve(simulation)
        client.send(b"park x")
        await asyncio.sleep(1)
        gate.open(handler)
        await asyncio.sleep(1)
        handler.release(b"x")
        await asyncio.sleep(1)
        assert client.replies == [b"released x"]
        await server.stop()

    simulation.run(scenario())


def test_a_held_request_whose_delayed_reply_is_another_one(simulation):
    """A Fetch of many rows that has waited is an example. Both are given up with the connection."""

    async def scenario():
        gate, server, client, handler = await serve(simulation)
        _, second = await simulation.runtime("client").connect("server", PORT, Client)
        client.send(b"park x", b"next")
        second.send(b"park y")
        await asyncio.sleep(1)
        gate.open(handler)
        await asyncio.sleep(1)
        futures = [simulation.loop.create_future() for _ in range(2)]
        handler.release(b"x", futures[0])
        await asyncio.sleep(1)
        futures[0].set_result(futures[1])
        await asyncio.sleep(1)
        assert client.replies == []
        futures[1].set_result([b"at last"])
        parked = handler.parked[b"y"]
        second.transport.abort()
        await asyncio.sleep(1)
        assert client.replies == [b"at last", b"next"]
        assert parked.is_done
        await server.stop()

    simulation.run(scenario())


def test_who_has_gone_is_not_answered(simulation):
    async def scenario():
        gate, server, client, handler = await serve(simulation)
        client.transport.write(frame(b"early"))
        await asyncio.sleep(1)
        client.transport.abort()
        await asyncio.sleep(1)
        gate.open(handler)
        await asyncio.sleep(1)
        assert handler.seen == []
        await server.stop()

    simulation.run(scenario())


def test_the_end_of_a_node_does_not_wait_for_its_beginning(simulation):
    async def scenario():
        _, server, client, _ = await serve(simulation)
        client.send(b"one")
        await asyncio.sleep(1)
        await server.stop(grace_s=2)
        assert client.replies == []

    simulation.run(scenario())

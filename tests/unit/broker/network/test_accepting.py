"""Connections are accepted, or closed for others, in a simulated network."""

import asyncio
from dataclasses import replace

import pytest
from network_support import Client

from ottla.broker.network.settings import ListenerLimits

pytestmark = [
    pytest.mark.filterwarnings("error"),
    pytest.mark.logs("new connections wait until others are closed"),
]


class Two:
    """A server with the listeners INSIDE, which other brokers use, and OUTSIDE."""

    def __init__(self, world, **settings):
        world.server.settings = replace(world.settings, inter_broker_listener="INSIDE", **settings)
        self.world = world
        self.ports = {}

    async def connect(self, listener, host="client"):
        """A client that has sent something, a second later."""
        world = self.world
        if listener not in self.ports:
            self.ports[listener] = (await world.server.listen(listener, "server", 0)).port
        _, client = await world.simulation.runtime(host).connect("server", self.ports[listener], Client)
        client.send(b"x")
        await asyncio.sleep(1)
        return client

    def alter(self, **settings):
        self.world.server.settings = replace(self.world.server.settings, **settings)


def is_served(client):
    return client.replies != [] and not client.lost.done()


def test_connections_of_an_address_over_its_limit_are_closed(world):
    world.settings.max_connections_per_ip = 2
    world.settings.max_connections_per_ip_overrides = {"vip": 3, "banned": 0}

    async def admitted(host):
        client = await world.connect(host)
        client.send(b"x")
        await asyncio.sleep(1)
        assert client.lost.done() == (client.replies == [])
        return client if client.replies == [b"x"] else None

    async def scenario():
        assert await admitted("banned") is None
        _, second = await admitted("a"), await admitted("a")
        assert await admitted("a") is None
        assert await admitted("b")
        second.transport.close()
        await asyncio.sleep(1)
        assert await admitted("a")
        for _ in range(3):
            assert await admitted("vip")
        assert await admitted("vip") is None
        world.server.settings = replace(world.settings, max_connections_per_ip_overrides={})
        assert await admitted("banned")
        assert world.server.limits.total == len(world.server.connections) == 7

    world.run(scenario())


def test_a_connection_beyond_the_limit_waits_until_another_one_is_closed(world):
    world.settings.max_connections = 2

    async def scenario():
        first, second, third, fourth = [await world.connect() for _ in range(4)]
        for client in (first, second, third, fourth):
            client.send(b"x")
        await asyncio.sleep(60)
        assert [is_served(client) for client in (first, second, third, fourth)] == [True, True, False, False]
        assert not third.lost.done()
        first.transport.close()
        await asyncio.sleep(1)
        assert [is_served(client) for client in (third, fourth)] == [True, False]
        world.server.settings = replace(world.settings, max_connections=3)  # altered while it runs
        await asyncio.sleep(1)
        assert is_served(fourth)
        assert world.server.limits.total == 3

    world.run(scenario())


def test_other_brokers_get_in_when_clients_have_taken_all(world):
    """The least recently used connection of a client is closed for each of them."""

    async def scenario():
        two = Two(world, max_connections=3)
        own = await two.connect("INSIDE", "broker-2")
        oldest, busy = await two.connect("OUTSIDE"), await two.connect("OUTSIDE")
        await asyncio.sleep(5)
        oldest.send(b"y")
        await asyncio.sleep(5)
        waiting = await two.connect("OUTSIDE")
        assert not waiting.replies
        for host, gone in (("broker-3", busy), ("broker-4", oldest)):
            other = await two.connect("INSIDE", host)
            assert is_served(other)
            assert gone.lost.done()
        assert is_served(own)
        assert not waiting.lost.done()
        assert not waiting.replies
        assert world.server.limits.total == 3
        # The limit of a listener without one of its own is the node's.
        assert not is_served(await two.connect("INSIDE", "broker-5"))

    world.run(scenario())


def test_who_is_used_after_others_came_is_not_the_least_recently_used(world):
    """The order is exact within a second, too, which is what a sweep of all connections takes note of."""

    async def scenario():
        two = Two(world, max_connections=5)
        await two.connect("INSIDE", "broker-1")
        busy = await two.connect("OUTSIDE")
        others = [
            await world.simulation.runtime("c").connect("server", two.ports["OUTSIDE"], Client) for _ in "abc"
        ]
        busy.send(b"y")
        await asyncio.sleep(0.01)
        for number in range(2):
            other, _ = await asyncio.gather(two.connect("INSIDE", f"broker-{number}"), asyncio.sleep(0.05))
            assert is_served(other)
            busy.send(b"y")
        await asyncio.sleep(0.1)
        assert is_served(busy)
        assert [client.lost.done() for _, client in others] == [True, True, False]

    world.run(scenario())


def test_a_connection_with_a_request_that_is_being_answered_is_closed_last(world):
    async def scenario():
        two = Two(world, max_connections=2)
        at_work = await two.connect("OUTSIDE")
        at_work.send(b"park a")
        await asyncio.sleep(1)
        idle = await two.connect("OUTSIDE")
        two.alter(listener_limits={"INSIDE": ListenerLimits(max_connections=9, max_creation_rate=9)})
        await two.connect("INSIDE", "broker-2")
        assert idle.lost.done()
        assert is_served(at_work)
        await two.connect("INSIDE", "broker-3")
        assert at_work.lost.done()

    world.run(scenario())


def test_a_lower_limit_closes_what_is_too_many(world):
    async def scenario():
        two = Two(world, max_connections=100)
        clients = [await two.connect("OUTSIDE") for _ in range(5)]
        others = [await two.connect("INSIDE", f"broker-{number}") for number in range(2)]
        two.alter(max_connections=4)
        await asyncio.sleep(1)
        assert [is_served(client) for client in clients] == [False, False, False, True, True]
        assert all(map(is_served, others))
        assert world.server.limits.total == 4

    world.run(scenario())


def test_only_one_listener_protects_no_other(world):
    async def scenario():
        two = Two(world, max_connections=1)
        first = await two.connect("INSIDE", "broker-1")
        second = await two.connect("INSIDE", "broker-2")
        assert is_served(first)
        assert not is_served(second)
        assert not second.lost.done()

    world.run(scenario())


def test_listeners_have_limits_of_their_own(world):
    async def scenario():
        limits = ListenerLimits(max_connections=1, max_creation_rate=100)
        two = Two(world, listener_limits={"OUTSIDE": limits})
        first, second = await two.connect("OUTSIDE"), await two.connect("OUTSIDE")
        assert [is_served(client) for client in (first, second)] == [True, False]
        assert is_served(await two.connect("INSIDE"))
        first.transport.close()
        await asyncio.sleep(1)
        assert is_served(second)

    world.run(scenario())


def test_slots_are_given_to_listeners_in_turn(world):
    async def scenario():
        two = Two(world, max_connections=1)
        first = await two.connect("A")
        order = {}
        for number in range(3):
            for listener in "AB":
                order[listener, number] = await two.connect(listener)
        served = []
        for _ in range(6):
            first.transport.close()
            await asyncio.sleep(1)
            ((key, first),) = [(key, client) for key, client in order.items() if is_served(client)]
            served.append(key)
            del order[key]
        assert served == [("A", 0), ("B", 0), ("A", 1), ("B", 1), ("A", 2), ("B", 2)]

    world.run(scenario())


def test_new_connections_come_no_faster_than_the_rate(world):
    """Ten at once, since ten seconds are looked back at; then one a second."""
    world.settings.max_creation_rate = 1

    async def scenario():
        clients = []
        for _ in range(15):
            clients.append(await world.connect())
            clients[-1].send(b"x")
        began = world.runtime.monotonic()
        counts = []
        for second in range(6):
            await asyncio.sleep(began + second + 0.5 - world.runtime.monotonic())
            counts.append(sum(map(is_served, clients)))
        assert counts == [10, 11, 12, 13, 14, 15]

    world.run(scenario())


def test_a_backlog_has_an_end_and_those_in_it_are_reset_when_the_server_stops(world):
    world.settings.max_connections = 1
    world.settings.backlog = 3

    async def scenario():
        first = await world.connect()
        inside = [await world.connect() for _ in range(4)]  # one is held, three are behind it
        outside = asyncio.ensure_future(world.connect())
        await asyncio.sleep(30)
        assert not outside.done()
        first.transport.close()
        await asyncio.sleep(2)
        assert outside.done()
        await world.server.stop()
        await asyncio.sleep(1)
        for client in (*inside, outside.result()):
            assert client.lost.done()

    world.run(scenario())


def test_a_full_listener_is_logged_now_and_then(world, caplog):
    world.settings.max_connections = 1

    async def scenario():
        before = await world.connect()
        for _ in range(50):
            client = await world.connect()
            await asyncio.sleep(0.1)
            before.transport.close()
            await asyncio.sleep(0.1)
            before = client

    world.run(scenario())
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 1
    assert lines[0].startswith("listener PLAINTEXT: new connections wait until others are closed")

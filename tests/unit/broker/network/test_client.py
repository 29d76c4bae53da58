"""Requests to other nodes: negotiation, order, bounds, and every way in which a connection can end."""

import asyncio
import socket
from itertools import pairwise

import pytest
from client_support import Node, World

from ottla.broker.api.k18_api_versions import is_plausible
from ottla.broker.network.client import ClientSettings, Disconnected, NodeClient
from ottla.config.load import load_config
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.codec import encode_request
from ottla.protocol.errors import MalformedMessage, UnsupportedVersion
from ottla.protocol.messages import api_versions, describe_log_dirs, fetch, heartbeat
from ottla.runtime.production import run
from ottla.runtime.simulated import Simulation

HEARTBEAT = heartbeat.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


@pytest.fixture
def world():
    with Simulation(seed=7) as simulation:
        yield World(simulation)


def test_the_highest_version_that_both_know(world):
    async def scenario(client):
        assert await world.beat(client, 42) == 42
        assert await world.beat(client, 43) == 43
        message = heartbeat.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        await client.request(world.address, 12, message, timeout_s=1, versions=range(1, 3))
        # Asked once for its versions; Heartbeat is served up to v3 there, v4 here.
        assert world.node.seen == [(18, 5), (12, 3), (12, 3), (12, 2)]
        assert (await client.served(world.address, timeout_s=1))[1] == range(4, 19)

    world.run(scenario)


def test_every_api_versions_request_names_the_client_software(world):
    """Kafka and we refuse a request that does not name its software."""

    async def scenario(client):
        message = api_versions.ApiVersionsRequest()
        await client.request(world.address, ApiKey.API_VERSIONS, message, timeout_s=1)
        assert len(world.node.introductions) == 2
        assert all(is_plausible(introduction) for introduction in world.node.introductions)

    world.run(scenario)


def test_an_old_node_names_its_version_of_api_versions(world):
    world.node.served[18] = (0, 2)

    async def scenario(client):
        assert await world.beat(client) == 1
        assert world.node.seen == [(18, 5), (18, 2), (12, 3)]

    world.run(scenario)


@pytest.mark.parametrize("served", [None, (5, 6)])
def test_no_version_in_common(world, served):
    if served:
        world.node.served[12] = served
    else:
        del world.node.served[12]

    async def scenario(client):
        with pytest.raises(UnsupportedVersion, match="HEARTBEAT"):
            await world.beat(client)
        assert await world.fetch(client, 10) == b"r" * 10  # the connection is as good as before

    world.run(scenario)


def test_many_at_the_same_time_are_answered_in_order(world):
    async def scenario(client):
        world.node.is_holding = True
        asked = [asyncio.ensure_future(world.beat(client, each)) for each in range(500)]
        await asyncio.sleep(1)
        assert len(world.node.held) == 1  # one at a time there; 199 more wait in its buffers
        world.node.release()
        assert await asyncio.gather(*asked) == list(range(500))
        assert len(world.node.connections) == 1

    world.run(scenario)


@pytest.mark.parametrize("max_read_bytes", [None, 1, 7, 5000])
def test_responses_of_any_size_in_any_pieces(world, max_read_bytes):
    world.simulation.network.conditions.max_read_bytes = max_read_bytes
    sizes = [0, 1, 100, 3000] if max_read_bytes and max_read_bytes < 10 else [1, 65_500, 70_000, 2_000_000, 5]

    async def scenario(client):
        both = await asyncio.gather(*(world.fetch(client, size) for size in sizes + sizes))
        assert [len(records) for records in both] == sizes + sizes
        assert all(bytes(records) == b"r" * len(records) for records in both)

    world.run(scenario)


def test_records_stay_as_they_are_while_others_arrive(world):
    async def scenario(client):
        kept = [await world.fetch(client, size) for size in (10, 100_000, 10)]
        await asyncio.gather(*(world.beat(client, each) for each in range(100)))
        assert [bytes(records) for records in kept] == [b"r" * 10, b"r" * 100_000, b"r" * 10]

    world.run(scenario)


def test_raw_bodies_are_slices_of_the_buffer_that_was_read_into(world):
    async def scenario(client):
        message = fetch.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=3_000_000, topics=[])
        version, body = await client.request_encoded(
            world.address,
            1,
            lambda version: encode_request(1, version, message),
            lambda *raw: raw,
            timeout_s=30,
        )
        assert version == 18
        assert isinstance(body.obj, bytearray)
        assert len(body) > 3_000_000

    world.run(scenario)


def test_a_response_that_its_caller_cannot_read_ends_the_connection(world):
    def decode(version, body):
        raise MalformedMessage("a row without end")

    async def scenario(client):
        message = fetch.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=10, topics=[])
        with pytest.raises(Disconnected, match="a row without end"):
            await client.request_encoded(
                world.address, 1, lambda version: encode_request(1, version, message), decode, timeout_s=30
            )
        assert len(await world.fetch(client, 10)) == 10
        assert len(world.node.connections) == 2

    world.run(scenario)


def test_a_response_beyond_the_bound_ends_the_connection(world):
    async def scenario(client):
        with pytest.raises(Disconnected, match="at most 50000"):
            await world.fetch(client, 100_000)
        assert len(await world.fetch(client, 10)) == 10
        assert len(world.node.connections) == 2

    world.run(scenario, response_max_bytes=50_000)


def test_a_peer_that_closes_before_it_has_introduced_itself_is_named_once(world):
    def closes(header):
        raise MalformedMessage("not served")

    async def scenario(client):
        world.node.api_versions = closes
        with pytest.raises(Disconnected, match=r"^other:9092: the peer has closed the connection$"):
            await world.beat(client)

    world.run(scenario)


@pytest.mark.parametrize(
    ("garble", "says"),
    [
        (lambda reply: [b"\0\0\0\7" + reply[0][4:], reply[1]], "response 7"),
        (lambda reply: [reply[0], b""], "end within"),
        (lambda reply: [b"\0"], "1 bytes"),
    ],
    ids=["another correlation id", "cut short", "no header"],
)
def test_a_response_that_makes_no_sense(world, garble, says):
    async def scenario(client):
        world.node.garble = garble
        with pytest.raises(Disconnected, match=says):
            await world.beat(client)
        world.node.garble = None
        assert await world.beat(client, 9) == 9

    world.run(scenario)


def test_who_is_not_answered_in_time_takes_the_connection_with_it(world):
    async def scenario(client):
        world.node.is_holding = True
        patient = asyncio.ensure_future(world.beat(client, timeout_s=100))
        with pytest.raises(TimeoutError, match="HEARTBEAT got no response within 2 s"):
            await world.beat(client, timeout_s=2)
        with pytest.raises(Disconnected, match="no response to HEARTBEAT in time"):
            await patient
        world.node.is_holding = False
        assert await world.beat(client, 3) == 3

    world.run(scenario)


def test_each_deadline_is_kept_whatever_was_answered_before(world):
    """One timer watches over all requests of a connection."""

    async def scenario(client):
        assert await world.beat(client, timeout_s=3) == 1
        world.node.is_holding = True
        began = world.simulation.loop.time()
        answered = asyncio.ensure_future(world.beat(client, 2, timeout_s=5))
        await asyncio.sleep(1)
        world.node.release()
        assert await answered == 2
        world.node.is_holding = True
        with pytest.raises(TimeoutError, match="HEARTBEAT got no response within 20 s"):
            await world.beat(client, 3, timeout_s=20)
        assert world.simulation.loop.time() - began == pytest.approx(21, abs=0.1)

    world.run(scenario)


def test_who_finds_no_room_waits_no_longer_than_wanted(world):
    """The peer has two hundred requests and answers none; others wait for it longer."""

    async def scenario(client):
        world.node.is_holding = True
        asked = [asyncio.ensure_future(world.beat(client, each, timeout_s=100)) for each in range(200)]
        await asyncio.sleep(1)
        with pytest.raises(TimeoutError, match="within 2 s"):
            await world.beat(client, timeout_s=2)
        world.node.release()
        world.node.is_holding = False
        assert await asyncio.gather(*asked) == list(range(200))

    world.run(scenario)


def test_who_gives_up_leaves_the_others_alone(world):
    async def scenario(client):
        world.node.is_holding = True
        one, other = (asyncio.ensure_future(world.beat(client, each)) for each in (1, 2))
        await asyncio.sleep(1)
        one.cancel()
        await asyncio.sleep(1)
        world.node.release()
        assert await other == 2
        with pytest.raises(asyncio.CancelledError):
            await one

    world.run(scenario)


def test_a_peer_that_crashes_and_comes_back(world):
    async def scenario(client):
        assert await world.beat(client) == 1
        world.node.is_holding = True
        waiting = [asyncio.ensure_future(world.beat(client, each)) for each in range(3)]
        await asyncio.sleep(1)
        world.simulation.network.crash("other")
        for each in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(each, Disconnected)
        with pytest.raises(Disconnected, match="no listener"):
            await world.beat(client)
        world.node.is_holding = False
        world.node.server.connections.clear()
        await world.listen()
        assert await world.beat(client, 5) == 5

    world.run(scenario)


def test_reconnecting_backs_off(world):
    async def scenario(client):
        world.listening.close()
        attempts = []
        began = world.runtime.monotonic()
        while len(attempts) < 8:
            with pytest.raises(Disconnected):
                await world.beat(client)
            attempts.append(world.runtime.monotonic() - began)
        pauses = [later - earlier for earlier, later in pairwise(attempts)]
        for pause, expected in zip(pauses, (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0), strict=True):
            assert 0.8 * expected <= pause <= 1.2 * expected + 0.002

    world.run(scenario)


def test_a_request_to_an_unavailable_peer_fails_at_once_if_others_can_be_asked(world):
    async def scenario(client):
        world.listening.close()
        with pytest.raises(Disconnected, match="no listener"):
            await world.beat(client)
        began = world.runtime.monotonic()
        with pytest.raises(Disconnected, match=r"^other:9092: .*no listener at .*; not retried for"):
            await world.beat(client)
        assert world.runtime.monotonic() == began
        await world.listen()
        await asyncio.sleep(0.1)
        assert await world.beat(client, 4) == 4

    world.run(scenario, waits_for_reconnect=False)


def test_a_request_over_a_cut_network_times_out(world):
    async def scenario(client):
        world.simulation.network.cut("here", "other")
        with pytest.raises(TimeoutError):
            await world.beat(client, timeout_s=1)
        with pytest.raises(Disconnected, match="no connection within"):
            await world.beat(client, timeout_s=10)
        world.simulation.network.heal("here", "other")
        assert await world.beat(client, 4) == 4

    world.run(scenario, connect_timeout_ms=2_000)


def test_each_attempt_to_connect_may_take_twice_as_long_as_the_one_before(world):
    """The timeout has a jitter of a fifth, and a maximum."""

    async def scenario(client):
        world.simulation.network.cut("here", "other")
        took = []
        for _ in range(6):
            began = world.runtime.monotonic()
            with pytest.raises(Disconnected, match="no connection within"):
                await world.beat(client, timeout_s=100)
            took.append(world.runtime.monotonic() - began)
        assert took[0] == pytest.approx(1, abs=0.01)
        for found, expected in zip(took[1:], (2, 4, 8, 10, 10), strict=True):
            assert 0.8 * expected <= found <= min(1.2 * expected, 10) + 1.21  # the backoff before it
        world.simulation.network.heal("here", "other")
        assert await world.beat(client, 4, timeout_s=30) == 4

    world.run(scenario, connect_timeout_ms=1_000, connect_timeout_max_ms=10_000)


def test_a_request_waits_for_a_connection_only_so_long(world):
    async def scenario(client):
        world.simulation.network.cut("here", "other")
        with pytest.raises(Disconnected, match="no connection within 3000 ms"):
            await world.beat(client, timeout_s=30)
        assert world.runtime.monotonic() == pytest.approx(3, abs=0.01)
        with pytest.raises(TimeoutError, match="within 2 s"):
            await world.beat(client, timeout_s=2)
        world.simulation.network.heal("here", "other")
        world.node.is_holding = True
        world.runtime.call_later(20, world.node.release)
        assert await world.beat(client, 5, timeout_s=30) == 5

    world.run(scenario, ready_timeout_ms=3_000)


def test_settings_are_those_of_the_configuration():
    config = load_config(
        overrides=[
            "socket.connection.setup.timeout.ms=1",
            "socket.connection.setup.timeout.max.ms=2",
            "connections.max.idle.ms=300",
            "socket.request.max.bytes=400",
        ]
    )
    assert ClientSettings.from_config(config) == ClientSettings(
        connect_timeout_ms=1, connect_timeout_max_ms=2, max_idle_ms=300, response_max_bytes=400
    )


def test_the_receive_buffer_of_a_connection_is_set():
    async def main(runtime):
        node = Node(runtime)
        listening = await node.server.listen("PLAINTEXT", "127.0.0.1", 0)
        sizes = []
        for receive_buffer_bytes in (20_000, None):
            settings = ClientSettings(receive_buffer_bytes=receive_buffer_bytes)
            client = NodeClient(runtime, client_id="me", settings=settings)
            await client.served(("127.0.0.1", listening.port), timeout_s=30)
            (peer,) = client._peers.values()
            inner = peer.connection._transport.get_extra_info("socket")
            sizes.append(inner.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))
            await client.close()
        await node.server.stop()
        assert sizes[0] == 2 * 20_000  # Linux doubles it, for its own bookkeeping
        assert sizes[1] > 2 * 20_000
        client = NodeClient(runtime, client_id="me", settings=ClientSettings(receive_buffer_bytes=20_000))
        with pytest.raises(Disconnected, match=r"refused|Connect call failed"):
            await client.served(("127.0.0.1", listening.port), timeout_s=30)
        await client.close()

    run(main)


def test_an_idle_connection_is_closed_and_opened_again(world):
    async def scenario(client):
        await world.beat(client)
        await asyncio.sleep(2)
        assert world.node.server.connections == {}
        assert await world.beat(client, 8) == 8
        world.node.is_holding = True
        slow = asyncio.ensure_future(world.beat(client, 9))
        await asyncio.sleep(3)
        world.node.release()
        assert await slow == 9  # a connection that waits for a response is not idle

    world.run(scenario, max_idle_ms=1_000)


def test_closing_fails_the_requests_that_wait(world):
    async def scenario(client):
        world.node.is_holding = True
        waiting = asyncio.ensure_future(world.beat(client))
        await asyncio.sleep(1)
        await client.close()
        with pytest.raises(Disconnected, match="this node closes"):
            await waiting
        with pytest.raises(Disconnected, match="this node closes"):
            await world.beat(client)
        world.node.release()

    world.run(scenario)


def test_closing_while_connecting(world):
    async def scenario(client):
        world.simulation.network.cut("here", "other")
        waiting = asyncio.ensure_future(world.beat(client))
        await asyncio.sleep(1)
        await client.close()
        with pytest.raises(Disconnected):
            await waiting
        world.simulation.network.heal("here", "other")

    world.run(scenario)


def test_real_sockets():
    async def main(runtime):
        node = Node(runtime)
        listening = await node.server.listen("PLAINTEXT", "127.0.0.1", 0)
        client = NodeClient(runtime, client_id="me")
        address = ("127.0.0.1", listening.port)
        try:
            for size in (10, 20_000_000, 100):
                message = fetch.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=size, topics=[])
                response = await client.request(address, 1, message, timeout_s=30)
                assert len(response.responses[0].partitions[0].records) == size
            beats = [
                client.request(
                    address,
                    12,
                    heartbeat.HeartbeatRequest(group_id="g", generation_id=each, member_id="m"),
                    timeout_s=30,
                )
                for each in range(1000)
            ]
            answers = await asyncio.gather(*beats)
            assert [answer.throttle_time_ms for answer in answers] == list(range(1000))
        finally:
            await node.server.stop()
        for _ in range(3):
            with pytest.raises(Disconnected):
                await client.request(address, 12, HEARTBEAT, timeout_s=5)
        await asyncio.wait_for(client.close(), 5)  # also after connections that never came to be
        with pytest.raises(Disconnected):
            await NodeClient(runtime, client_id="me").request(
                address, 35, describe_log_dirs.DescribeLogDirsRequest(), timeout_s=5
            )

    run(main)

"""The in-memory network keeps what asyncio's transports promise."""

import asyncio

import pytest

from ottla.runtime.simulated import Simulation


@pytest.fixture
def simulation():
    with Simulation(seed=11) as simulation:
        yield simulation


class Recorder(asyncio.Protocol):
    """Writes down what happens to it."""

    def __init__(self):
        self.received = bytearray()
        self.events = []

    def connection_made(self, transport):
        self.transport = transport
        self.events.append("made")

    def data_received(self, data):
        self.received += data

    def eof_received(self):
        self.events.append("eof")

    def pause_writing(self):
        self.events.append("pause")

    def resume_writing(self):
        self.events.append("resume")

    def connection_lost(self, error):
        self.events.append(("lost", type(error).__name__ if error else None))


class Buffered(asyncio.BufferedProtocol):
    def __init__(self, size):
        self.buffer = bytearray(size)
        self.reads = []

    def get_buffer(self, hint):
        return self.buffer

    def buffer_updated(self, count):
        self.reads.append(bytes(self.buffer[:count]))


async def pair(simulation, served=Recorder, client=Recorder):
    """(client, server) protocols of one new connection."""
    runtime = simulation.runtime("client-host")
    accepted = []

    def factory():
        accepted.append(served())
        return accepted[-1]

    listening = simulation.network.listen("server", 0, factory)
    _, protocol = await runtime.connect("server", listening.port, client)
    listening.close()
    return protocol, accepted[0]


def test_bytes_arrive_in_order_after_a_latency(simulation):
    async def scenario():
        client, server = await pair(simulation)
        for number in range(100):
            client.transport.write(bytes([number]))
        assert not server.received
        await asyncio.sleep(1)
        assert server.received == bytes(range(100))
        assert client.transport.get_extra_info("peername")[0] == "server"
        assert server.transport.get_extra_info("peername")[0] == "client-host"

    simulation.run(scenario())


def test_random_reads_split_anything(simulation):
    simulation.network.conditions.max_read_bytes = 7

    async def scenario():
        client, server = await pair(simulation, served=lambda: Buffered(5))
        client.transport.write(bytes(range(200)))
        await asyncio.sleep(1)
        assert b"".join(server.reads) == bytes(range(200))
        assert max(map(len, server.reads)) <= 5
        assert len(set(map(len, server.reads))) > 2

    simulation.run(scenario())


def test_a_paused_reader_fills_the_senders_buffer(simulation):
    simulation.network.conditions.window_bytes = 1000

    async def scenario():
        client, server = await pair(simulation)
        server.transport.pause_reading()
        client.transport.set_write_buffer_limits(high=4000, low=1000)
        client.transport.write(bytes(6000))
        await asyncio.sleep(1)
        assert (client.transport.get_write_buffer_size(), client.events) == (5000, ["made", "pause"])
        server.transport.resume_reading()
        await asyncio.sleep(1)
        assert (len(server.received), client.events) == (6000, ["made", "pause", "resume"])

    simulation.run(scenario())


def test_close_sends_what_is_buffered_and_the_peer_sees_the_end(simulation):
    simulation.network.conditions.window_bytes = 100

    async def scenario():
        client, server = await pair(simulation)
        client.transport.write(bytes(1000))
        client.transport.close()
        client.transport.write(b"ignored")
        assert client.transport.is_closing()
        await asyncio.sleep(1)
        assert len(server.received) == 1000
        assert server.events == ["made", "eof", ("lost", None)]
        assert client.events[-1] == ("lost", None)

    simulation.run(scenario())


def test_abort_drops_what_is_buffered_and_resets_the_peer(simulation):
    async def scenario():
        client, server = await pair(simulation)
        client.transport.write(b"never sent")
        client.transport.abort()
        await asyncio.sleep(1)
        assert not server.received
        assert server.events == ["made", ("lost", "ConnectionResetError")]
        assert client.events == ["made", ("lost", None)]

    simulation.run(scenario())


def test_half_close_leaves_the_other_direction_open(simulation):
    class Keeps(Recorder):
        def eof_received(self):
            super().eof_received()
            return True

    async def scenario():
        client, server = await pair(simulation, served=Keeps)
        client.transport.write_eof()
        await asyncio.sleep(1)
        server.transport.write(b"answer")
        server.transport.close()
        await asyncio.sleep(1)
        assert client.received == b"answer"
        assert server.events == ["made", "eof", ("lost", None)]

    simulation.run(scenario())


def test_a_reset_is_not_seen_by_an_end_that_does_not_read(simulation):
    async def scenario():
        client, server = await pair(simulation)
        server.transport.pause_reading()
        client.transport.abort()
        await asyncio.sleep(1)
        assert server.events == ["made"]
        server.transport.write(b"into the void")
        await asyncio.sleep(1)
        assert server.events == ["made", ("lost", "BrokenPipeError")]

    simulation.run(scenario())


def test_a_buffer_reused_before_it_left_shows(simulation):
    """uvloop sends at the end of the loop's turn; a protocol must not change a buffer that it has passed on."""

    async def scenario():
        client, server = await pair(simulation)
        data = bytearray(b"right")
        client.transport.write(memoryview(data))
        data[:] = b"wrong"
        await asyncio.sleep(1)
        assert server.received == b"wrong"

    simulation.run(scenario())


def test_cut_holds_bytes_back_until_healed(simulation):
    async def scenario():
        client, server = await pair(simulation)
        simulation.network.cut("client-host", "server")
        client.transport.write(b"patience")
        await asyncio.sleep(3600)
        assert not server.received
        simulation.network.heal("server", "client-host")
        await asyncio.sleep(1)
        assert server.received == b"patience"

    simulation.run(scenario())


def test_connecting_across_a_cut_waits(simulation):
    simulation.network.listen("server", 9092, Recorder)
    simulation.network.cut("client-host", "server")
    runtime = simulation.runtime("client-host")

    async def scenario():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await runtime.connect("server", 9092, Recorder)

    simulation.run(scenario())


def test_crash_resets_peers_and_silences_the_host(simulation):
    async def scenario():
        client, server = await pair(simulation)
        simulation.network.listen("server", 5, Recorder)
        simulation.network.crash("server")
        await asyncio.sleep(1)
        assert client.events == ["made", ("lost", "ConnectionResetError")]
        assert server.events == ["made"]
        with pytest.raises(ConnectionRefusedError):
            await simulation.runtime("client-host").connect("server", 5, Recorder)

    simulation.run(scenario())


def test_ports(simulation):
    async def scenario():
        runtime = simulation.runtime("server")
        first = await runtime.listen("", 0, Recorder)
        second = await runtime.listen(None, 0, Recorder)
        assert first.host == "server"
        assert first.port != second.port
        with pytest.raises(OSError, match="in use"):
            await runtime.listen("server", first.port, Recorder)
        first.close()
        with pytest.raises(ConnectionRefusedError):
            await runtime.connect("server", first.port, Recorder)

    simulation.run(scenario())


def test_a_protocol_that_raises_loses_its_connection_only(simulation):
    class Fails(Recorder):
        def data_received(self, data):
            raise ValueError("a bug")

    async def scenario():
        client, server = await pair(simulation, served=Fails)
        client.transport.write(b"x")
        await asyncio.sleep(1)
        assert server.events == ["made", ("lost", "ValueError")]
        assert client.events[-1][0] == "lost"

    with pytest.raises(BaseExceptionGroup):
        simulation.run(scenario())

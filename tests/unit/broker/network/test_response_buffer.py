"""The memory of large responses is used again only when nothing of the last one is in use."""

import asyncio
from types import SimpleNamespace

import pytest
from client_support import Node, World

from ottla.broker.network import outgoing, response_buffer
from ottla.broker.network.client import Disconnected, NodeClient
from ottla.broker.network.response_buffer import IDLE_RELEASES, MAX_FREE_BYTES, UNIT_BYTES, ResponseBuffer
from ottla.protocol.codec import decode_response, encode_request
from ottla.protocol.messages import fetch
from ottla.runtime.production import run
from ottla.runtime.simulated import Simulation

LARGE = 300_000


@pytest.fixture
def world():
    with Simulation(seed=7) as simulation:
        yield World(simulation)


@pytest.fixture
def buffer():
    return ResponseBuffer()


def used(buffer, size=LARGE):
    """The memory of a response that has been processed."""
    view = buffer.lease(size, allocated_bytes=size)
    memory = view.obj
    del view
    buffer.release()
    return memory


# -- alone -------------------------------------------------------------------------------------------------


def test_a_released_buffer_is_leased_again(buffer):
    memory = used(buffer)
    assert len(memory) == buffer.free_bytes == 2 * UNIT_BYTES
    for size in (1, LARGE, 2 * UNIT_BYTES):
        view = buffer.lease(size, allocated_bytes=size)
        assert view.obj is memory
        assert len(view) == size
        assert buffer.free_bytes == 0
        del view
        buffer.release()


def test_the_free_buffer_may_be_larger_than_what_would_be_allocated(buffer):
    """A new buffer is bounded by what has arrived; memory that exists already is not."""
    assert len(buffer.lease(10 * UNIT_BYTES, allocated_bytes=UNIT_BYTES)) == UNIT_BYTES
    memory = used(buffer, 20 * UNIT_BYTES)
    assert buffer.lease(10 * UNIT_BYTES, allocated_bytes=UNIT_BYTES).obj is memory


def test_a_buffer_that_is_too_small_is_replaced(buffer):
    small = used(buffer, 100)
    large = used(buffer, 10 * UNIT_BYTES)
    assert large is not small
    assert buffer.free_bytes == 10 * UNIT_BYTES


@pytest.mark.parametrize(
    "part", [lambda view: view, lambda view: view[5:9], lambda view: memoryview(view)[:0]], ids=["all", "slice", "none"]
)  # fmt: skip
def test_a_buffer_of_which_a_view_is_left_is_not_used_again(buffer, part):
    view = buffer.lease(LARGE, allocated_bytes=LARGE)
    view[:] = b"a" * LARGE
    kept = part(view)
    del view
    before = bytes(kept)
    buffer.release()
    assert buffer.free_bytes == 0
    other = buffer.lease(LARGE, allocated_bytes=LARGE)
    other[:] = b"b" * LARGE
    assert bytes(kept) == before


def test_a_view_that_was_released_raises_and_keeps_nothing(buffer):
    with buffer.lease(LARGE, allocated_bytes=LARGE) as view:
        pass
    buffer.release()
    assert buffer.free_bytes
    with pytest.raises(ValueError, match="released"):
        view[0]


def test_a_buffer_that_is_not_released_is_not_leased_again(buffer):
    first = buffer.lease(LARGE, allocated_bytes=LARGE)
    second = buffer.lease(LARGE, allocated_bytes=LARGE)
    assert first.obj is not second.obj
    del first, second
    buffer.release()
    assert buffer.free_bytes == 2 * UNIT_BYTES


def test_the_memory_that_is_kept_is_bounded(buffer):
    used(buffer, MAX_FREE_BYTES)
    assert buffer.free_bytes == MAX_FREE_BYTES
    used(buffer, MAX_FREE_BYTES + 1)
    assert buffer.free_bytes == 0


def test_an_idle_caller_gives_the_memory_back(buffer):
    used(buffer)
    for _ in range(IDLE_RELEASES - 1):
        buffer.release()
    assert buffer.free_bytes
    used(buffer)
    for _ in range(IDLE_RELEASES - 1):
        buffer.release()
    assert buffer.free_bytes
    buffer.release()
    assert buffer.free_bytes == 0


def test_dropped_memory_is_not_leased_again(buffer):
    used(buffer)
    buffer.drop()
    assert buffer.free_bytes == 0
    view = buffer.lease(LARGE, allocated_bytes=LARGE)
    buffer.drop()
    buffer.release()
    assert buffer.free_bytes == 0
    assert len(view) == LARGE


@pytest.fixture
def leased(monkeypatch):
    """The sizes of all leases."""
    sizes = []
    lease = ResponseBuffer.lease

    def recorded(self, size_bytes, **options):
        sizes.append(size_bytes)
        return lease(self, size_bytes, **options)

    monkeypatch.setattr(ResponseBuffer, "lease", recorded)
    return sizes


# -- of a connection ---------------------------------------------------------------------------------------


async def fetched(world, client, size, buffer, timeout_s=30):
    message = fetch.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=size, topics=[])
    response = await client.request_encoded(
        world.address,
        1,
        lambda version: encode_request(1, version, message),
        lambda version, body: decode_response(1, version, body),
        timeout_s=timeout_s,
        buffer=buffer,
    )
    return response.responses[0].partitions[0].records


def test_large_responses_are_received_into_the_same_memory(world, buffer):
    async def scenario(client):
        memories = set()
        for size in (LARGE, 100_000, LARGE + 1000, 70_000, LARGE):
            records = await fetched(world, client, size, buffer)
            assert bytes(records) == b"r" * size
            memories.add(id(records.obj))
            del records
            buffer.release()
        assert len(memories) == 1
        assert buffer.free_bytes == 2 * UNIT_BYTES

    world.run(scenario)


def test_a_response_beyond_the_trusted_size_is_received_at_once_the_second_time(world, buffer, leased):
    size = 2 * outgoing.TRUSTED_BYTES + 1000

    async def scenario(client):
        for count in (2, 1):
            records = await fetched(world, client, size, buffer)
            assert bytes(records) == b"r" * size
            assert len(leased) == count
            leased.clear()
            del records
            buffer.release()
        assert size < buffer.free_bytes < size + 2 * UNIT_BYTES

    world.run(scenario)


def test_small_responses_and_those_of_other_requests_are_their_callers_own(world, buffer):
    async def scenario(client):
        for size, given in ((100, buffer), (LARGE, None)):
            records = await fetched(world, client, size, given)
            buffer.release()
            assert buffer.free_bytes == 0
            assert bytes(records) == b"r" * size
        # A request without a buffer between two with one, all in flight at the same time.
        first, own, last = await asyncio.gather(
            *(fetched(world, client, LARGE, given) for given in (buffer, None, buffer))
        )
        assert len({id(records.obj) for records in (first, own, last)}) == 3
        assert bytes(first) == bytes(own) == bytes(last) == b"r" * LARGE

    world.run(scenario)


def test_a_small_response_that_arrives_in_pieces_takes_no_large_buffer(world, buffer, leased):
    async def scenario(client):
        world.simulation.network.conditions.max_read_bytes = 5000
        for size in (60_000, 70_000):
            assert len(await fetched(world, client, size, buffer)) == size
        (leased_bytes,) = leased
        assert leased_bytes > 70_000

    world.run(scenario)


def test_a_caller_that_keeps_records_by_mistake_never_sees_another_response(world, buffer):
    async def scenario(client):
        world.node.partition = lambda size: fetch.PartitionData(records=b"abc"[size % 3 :][:1] * size)
        kept = []
        for size in (LARGE, LARGE + 1, LARGE + 2):
            kept.append((await fetched(world, client, size, buffer))[10:20])
            buffer.release()
        assert [bytes(records) for records in kept] == [b"a" * 10, b"b" * 10, b"c" * 10]

    world.run(scenario)


def test_a_cancelled_caller_does_not_disturb_the_response_that_arrives(world, buffer, monkeypatch):
    """The buffer is being filled when its owner gives it back; then the next response needs one."""

    async def scenario(client):
        world.node.partition = lambda size: fetch.PartitionData(records=b"abc"[size % 3 :][:1] * size)
        await fetched(world, client, LARGE, buffer)
        buffer.release()
        lease = ResponseBuffer.lease
        cancelled = asyncio.ensure_future(fetched(world, client, 20 * LARGE + 1, buffer))

        def cancelling(self, size_bytes, **options):
            asyncio.get_running_loop().call_soon(cancelled.cancel)
            return lease(self, size_bytes, **options)

        monkeypatch.setattr(ResponseBuffer, "lease", cancelling)
        await asyncio.wait([cancelled])
        monkeypatch.undo()
        assert cancelled.cancelled()
        buffer.release()
        assert buffer.free_bytes == 0
        records = await fetched(world, client, LARGE + 2, buffer)
        assert bytes(records) == b"c" * (LARGE + 2)
        assert len(world.node.connections) == 1

    world.run(scenario)


def test_a_lost_connection_leaves_the_buffer_to_the_next_one(world, buffer):
    async def scenario(client):
        await fetched(world, client, LARGE, buffer)
        buffer.release()
        world.node.garble = lambda reply: [b"\0\0\0\x63" + reply[0][4:], *reply[1:]]
        with pytest.raises(Disconnected):
            await fetched(world, client, LARGE, buffer)
        buffer.release()
        world.node.garble = None
        assert bytes(await fetched(world, client, LARGE, buffer)) == b"r" * LARGE

    world.run(scenario)


def test_the_bounds_are_sensible():
    assert outgoing.SHARED_BYTES < response_buffer.UNIT_BYTES <= outgoing.TRUSTED_BYTES
    assert outgoing.TRUSTED_BYTES < response_buffer.MAX_FREE_BYTES


def test_memory_is_used_again_with_real_sockets(buffer):
    """The production event loop has views of its own, which end before a response is processed."""

    async def main(runtime):
        node = Node(runtime)
        listening = await node.server.listen("PLAINTEXT", "127.0.0.1", 0)
        here = SimpleNamespace(address=("127.0.0.1", listening.port))
        client = NodeClient(runtime, client_id="me")
        memories = set()
        for size in (1_000_000, 5_000_000, 1_000_000, 100_000, 5_000_000):
            records = await fetched(here, client, size, buffer)
            assert bytes(records) == b"r" * size
            memories.add(id(records.obj))
            del records
            buffer.release()
            assert buffer.free_bytes >= size
        assert len(memories) <= 2
        await client.close()
        await node.server.stop()

    run(main)

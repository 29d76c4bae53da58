"""Legal requests of any length: the turns of the event loop are measured while each of them is handled.

All arrays of all APIs that are served have many elements, one array at a time. A node in virtual time handles
them, as a broker and as a controller that opens an envelope. A turn is judged by the thread's own processor
time, so that a busy machine does not matter. `OTTLA_HUGE_COUNT` is another number of elements: 200000 takes a
quarter of an hour.
"""

import asyncio
import gc
import os
import time
from dataclasses import replace
from itertools import product

import pytest
from huge import arrays, huge

from ottla.broker.api import modules
from ottla.broker.membership.envelope import FORWARDABLE, wrap_request
from ottla.broker.node import Node
from ottla.broker.request_context import RequestContext
from ottla.config.load import load_config
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.codec import encode_request
from ottla.protocol.framing import encode_request_header
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.steps import at_once
from ottla.runtime.garbage import collect_briefly
from ottla.runtime.simulated import SimulatedRuntime
from ottla.runtime.virtual_loop import VirtualLoop
from tests.harness.wire import WireClient

#: With five times as many elements turns are as long: what grows with them takes more than `BOUND_S` with so many.
COUNT = int(os.environ.get("OTTLA_HUGE_COUNT", "40000"))
#: The longest turn, in seconds of the thread's time: 2 ms, a step, and a collection of young objects.
BOUND_S = 0.02
#: Another process may slow down one turn; work that is not divided takes as long each time.
_ATTEMPTS = 3
#: They would end this node, or change the quorum.
_EXCLUDED = {ApiKey.UNREGISTER_BROKER, ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER}
SERVED = [(key, KAFKA_VERSIONS[ApiKey(key)][-1]) for key in sorted(modules().keys() - _EXCLUDED)]
FORWARDED = [(key, version) for key, version in SERVED if key in FORWARDABLE]
#: The last versions that name topics; they do not ask whether these exist.
SERVED += [(ApiKey.OFFSET_FETCH, 7), (ApiKey.OFFSET_FETCH, 9)]
#: A Fetch of an unknown session, one that opens a session, and one without any.
VARIANTS = {
    ApiKey.FETCH: [{}, {"session_id": 0, "session_epoch": 0}, {"session_id": 0, "session_epoch": -1}],
}


class MeasuredNode:
    """A broker and controller on virtual time, and the longest turn of its loop."""

    def __init__(self, folder, monkeypatch):
        self.longest_s = 0.0
        self.runtime = SimulatedRuntime(seed=1)
        # Virtual time stands still in a turn.
        monkeypatch.setattr(self.runtime.turns, "_monotonic", time.thread_time)
        real = VirtualLoop._run_once

        def run_once(loop):
            before = time.thread_time()
            real(loop)
            self.longest_s = max(self.longest_s, time.thread_time() - before)

        monkeypatch.setattr(VirtualLoop, "_run_once", run_once)
        self._folder = folder

    async def start(self):
        config = load_config(data_dir=self._folder, overrides=["offsets.topic.num.partitions=1"])
        self.node = await Node.start(self.runtime, config)
        self.address = self.node.listeners[0].host, self.node.listeners[0].port
        client = await WireClient.connect(*self.address)
        topics = [CreatableTopic(name="n0", num_partitions=1, replication_factor=1)]
        await client.request(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=topics, timeout_ms=1000))
        await client.request(ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(coordinator_keys=["n0"]))
        await client.close()
        await asyncio.sleep(1)

    async def longest_turn_s(self, address, frame):
        """While this request is handled, up to its response or the end of the connection."""
        reader, writer = await asyncio.open_connection(*address)
        writer.write(len(frame).to_bytes(4, "big") + frame)
        self.longest_s = 0.0
        try:
            await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        except asyncio.IncompleteReadError:
            pass  # malformed, or with an error for which the response has no field
        finally:
            writer.close()
        await asyncio.sleep(0.1)
        return self.longest_s


@pytest.fixture
def node(tmp_path, monkeypatch):
    measured = MeasuredNode(tmp_path / "data", monkeypatch)
    # As in the broker (`ottla.broker.cli.broker`): modules and caches are not searched for garbage again.
    gc.collect()
    gc.freeze()
    thresholds = gc.get_threshold()
    collect_briefly()
    yield measured
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    measured.runtime.simulation.close()


def in_envelope(frame):
    """The client's request in an envelope, as a broker forwards it."""
    context = RequestContext(ApiKey.DELETE_TOPICS, 6, 1, "huge", "127.0.0.1", "PLAINTEXT")
    envelope = replace(at_once(wrap_request(DeleteTopicsRequest(), context, [])), request_data=frame)
    version = KAFKA_VERSIONS[ApiKey.ENVELOPE][-1]
    return encode_request_header(ApiKey.ENVELOPE, version, 1, "broker") + encode_request(
        ApiKey.ENVELOPE, version, envelope
    )


@pytest.mark.logs("")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_enveloped", [False, True])
def test_no_turn_grows_with_a_request(node, is_enveloped):
    async def main():
        await node.start()
        address = node.address
        if is_enveloped:
            listener = node.node.controller_listeners[0]
            address = listener.host, listener.port
        found = {}
        for key, version in FORWARDED if is_enveloped else SERVED:
            for path, fields in product(arrays(key, version), VARIANTS.get(key, [{}])):
                # The first request of an API imports its handler, and compiles its codecs.
                for count in (1_000, *[COUNT] * _ATTEMPTS):
                    frame = huge(key, version, path, count, **fields)
                    turn_s = await node.longest_turn_s(address, in_envelope(frame) if is_enveloped else frame)
                    if count == COUNT and turn_s <= BOUND_S:
                        break
                if turn_s > BOUND_S:
                    found[ApiKey(key).name, version, ".".join(path), *fields.values()] = round(turn_s * 1000)
        await node.node.stop()
        return found

    assert node.runtime.run(main()) == {}

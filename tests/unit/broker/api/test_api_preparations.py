"""The APIs that clients use most are ready before their first request."""

import subprocess
import sys

_SCRIPT = """
import sys
import ottla.broker.node  # a started node has imported what that needs
from ottla.broker.api import api, modules, preparations
from ottla.protocol import codec
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.messages import request_class, response_class

started = set(sys.modules)
steps, largest, before = [], 0, len(sys.modules)
for step in preparations():
    steps.append(step)
    largest, before = max(largest, len(sys.modules) - before), len(sys.modules)
assert largest <= 8, f"a step imports {largest} modules: other requests wait meanwhile"
prepared = [key for key, name in modules().items() if name in sys.modules and name not in started]
assert {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.JOIN_GROUP} <= set(prepared), prepared
assert ApiKey.CREATE_ACLS not in prepared, "it is loaded when it is asked for"
assert len(steps) > len(prepared), "imports and codecs are steps of their own"
compiled = codec._decoder.cache_info().misses, codec._encoder.cache_info().misses
for key in prepared:
    if api(key).handle is not None:
        codec.decoder(request_class(key), KAFKA_VERSIONS[ApiKey(key)][-1])
        codec.encoder(response_class(key), KAFKA_VERSIONS[ApiKey(key)][-1])
assert compiled == (codec._decoder.cache_info().misses, codec._encoder.cache_info().misses)
"""


def test_a_request_of_a_frequent_api_compiles_nothing():
    """The broker runs in a process of its own, since this one has imported all messages."""
    subprocess.run([sys.executable, "-c", _SCRIPT], check=True)


_FIRST_REQUESTS = """
import asyncio, sys
from pathlib import Path
from ottla.config.load import load_config
from ottla.broker.node import Node
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchRequest
from ottla.runtime.production import run
from tests.harness.wire import WireClient

largest = 0

def watch(loop, before):
    global largest
    largest = max(largest, len(sys.modules) - before)
    loop.call_soon(watch, loop, len(sys.modules))

async def main(runtime):
    node = await Node.start(runtime, load_config(port=0, data_dir=Path(sys.argv[1])))
    clients = [await WireClient.connect("127.0.0.1", node.listeners[0].port) for _ in range(2)]
    watch(runtime.loop, len(sys.modules))
    request = FetchRequest(session_id=1, session_epoch=1)
    for version in (17, 17, 12):
        responses = await asyncio.gather(*[client.request(ApiKey.FETCH, version, request) for client in clients])
        assert [each.error_code for each in responses] == [ErrorCode.fetch_session_id_not_found] * 2, responses
    await node.stop()

run(main)
assert "ottla.broker.api.k01_fetch" in sys.modules
assert largest <= 8, f"a turn of the loop imports {largest} modules: other requests wait meanwhile"
"""


def test_a_first_fetch_that_arrives_early_waits_for_its_imports_in_turns(tmp_path):
    """Two at once, and nothing is prepared."""
    subprocess.run([sys.executable, "-c", _FIRST_REQUESTS, str(tmp_path)], check=True, timeout=60)

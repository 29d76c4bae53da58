"""The usual APIs are ready before their first request."""

import subprocess
import sys

_SCRIPT = """
import sys
import broker.node  # a started node has imported what that needs
from broker.api import api, modules, preparations
from protocol import codec
from protocol.api_keys import KAFKA_VERSIONS, ApiKey
from protocol.messages import request_class, response_class

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


def test_a_request_of_a_usual_api_compiles_nothing():
    """In a process of its own: this one has imported all of them."""
    subprocess.run([sys.executable, "-c", _SCRIPT], check=True)

"""Parts that the network tests share: an echo of frames, and a client that records events."""

import asyncio
from struct import Struct

from ottla.broker.replicas.waiting.delayed_response import DelayedResponse
from ottla.protocol.errors import MalformedMessage

PREFIX = Struct(">i")


def frame(body):
    return PREFIX.pack(len(body)) + body


class Client(asyncio.Protocol):
    """Collects replies; `lost` is done when the connection ends."""

    def __init__(self):
        self.data = bytearray()
        self.lost = asyncio.get_running_loop().create_future()
        self.arrived = asyncio.Event()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.data += data
        self.arrived.set()

    def connection_lost(self, error):
        self.lost.set_result(error)

    def send(self, *bodies):
        self.transport.write(b"".join(map(frame, bodies)))

    @property
    def replies(self):
        """The complete replies that have arrived so far."""
        found, position = [], 0
        while len(self.data) - position >= 4:
            (length,) = PREFIX.unpack_from(self.data, position)
            if len(self.data) - position - 4 < length:
                break
            found.append(bytes(self.data[position + 4 : position + 4 + length]))
            position += 4 + length
        return found


class Parked(DelayedResponse):
    """A reply that the test completes."""

    _reply = None

    def can_complete(self):
        return False

    def respond(self):
        if isinstance(self._reply, Exception):
            raise self._reply
        return self._reply

    def complete(self, reply):
        self._reply = reply
        self.force_complete()


class Handler:
    """Answers a frame with itself, unless its first bytes ask for something else.

    `none` no reply, `park NAME` wait for `release(NAME)` as delayed responses do, `work NAME` the same in a
    coroutine, `big N` N bytes, `raise`, `bad`, `task` (a coroutine that sleeps a second), `later-raise`,
    `close`.
    """

    def __init__(self, runtime):
        self.runtime = runtime
        self.seen = []
        self.parked = {}
        self.connections = []

    def __call__(self, view, connection):
        body = bytes(view)
        self.seen.append(body)
        if connection not in self.connections:
            self.connections.append(connection)
        match body.split(b" ", 1):
            case [b"none"]:
                return None
            case [b"park", name]:
                self.parked[name] = Parked(self.runtime.loop)
                return self.parked[name]
            case [b"work", name]:
                self.parked[name] = self.runtime.loop.create_future()
                return self.work(self.parked[name])
            case [b"big", size]:
                return [b"head", memoryview(bytes(int(size) - 4))]
            case [b"raise"]:
                raise ValueError("a bug")
            case [b"bad"]:
                raise MalformedMessage("nonsense")
            case [b"task"]:
                return self.later([body])
            case [b"later-raise"]:
                return self.later(ValueError("a late bug"))
            case [b"close"]:
                connection.close()
        return [body[:1], memoryview(body)[1:]]

    async def work(self, future):
        return await future

    async def later(self, reply):
        await asyncio.sleep(1)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def release(self, name, reply=None):
        self.parked.pop(name).complete([b"released ", name] if reply is None else reply)

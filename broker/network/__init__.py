"""Listeners and connections: length-prefixed frames in, replies out, in order.

    server = NetworkServer(runtime, dispatch, settings)
    listening = await server.listen("PLAINTEXT", "127.0.0.1", 9092)
    ...
    await server.stop()

The contents of frames are not parsed here: `dispatch(frame, connection)` does that. It returns

- a list of buffers: the reply without its length prefix; sent with the other replies of this read;
- None: no reply is due (Produce with acks=0); the next request is dispatched;
- a delayed response, a future, or a coroutine (which is run as a task) of one of the two: the request is
  parked. The connection's later requests wait until it is done, since replies are sent in the order of
  requests. When the peer disconnects, a delayed response or a future is cancelled, since it only waits; a
  task runs to its end.

If `dispatch` or the awaitable raises, the connection is closed: a `KafkaError` is the peer's fault (a
malformed request) and is noted, any other exception is a bug and is logged with its traceback.

`frame` is a view of a receive buffer that is reused: **it and slices of it are valid only until
`dispatch` returns**. A parked request must copy what it needs later; a Produce that was appended
before it was parked needs nothing. Reply buffers are not copied either: they must not change until
they are sent (without a notification), so a reply consists of bytes, or of views of immutable memory.

The bytes that one peer can make the node hold are bounded: one frame (`socket.request.max.bytes`, and
at most twice the bytes of it that have arrived) and a copy of it (`ReplyInTurns`), `PIPELINED_BYTES` of
further requests while one is parked, and `WRITE_HIGH_WATER_BYTES` plus one reply that it does not read.
Beyond that its socket is not read. Source: SocketServer, Processor and Selector of Kafka 4.3.1.
"""

from ottla.broker.network.connection import Buffers, Connection, Dispatch, Reply, ReplyInTurns, ReplyOfReads
from ottla.broker.network.server import NetworkServer
from ottla.broker.network.settings import NetworkSettings

__all__ = [
    "Buffers",
    "Connection",
    "Dispatch",
    "NetworkServer",
    "NetworkSettings",
    "Reply",
    "ReplyInTurns",
    "ReplyOfReads",
]

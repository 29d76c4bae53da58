"""Listeners and connections: length-prefixed frames in, replies out, in order.

    server = NetworkServer(runtime, dispatch, settings)
    listening = await server.listen("PLAINTEXT", "127.0.0.1", 9092)
    ...
    await server.stop()

What a frame holds is nobody's business here: `dispatch(frame, connection)` decides. Its answer is

- a list of buffers: the reply without its length prefix; sent with the other replies of this read;
- None: no reply is due (Produce with acks=0); the next request is looked at;
- an awaitable of one of the two: the request is parked. The connection's later requests wait until
  it is done, since replies leave in the order of requests. When the peer goes a future that is no task
  is cancelled, since it only waits; a coroutine or task goes on to its end.

If it raises, or the awaitable does, the connection is closed: a `KafkaError` is the peer's fault (a
malformed request) and is noted, anything else is a bug of ours and is logged with its traceback.

`frame` is a view of a receive buffer that is used again: **it and slices of it are valid only until
`dispatch` returns**. What a parked request needs later it must copy; a Produce that was appended
before it was parked needs nothing. Reply buffers are not copied either: they must not change until
they have left (which nobody is told), so a reply is made of bytes, or of views of what never changes.

A peer can make us hold, in bytes: one frame (`socket.request.max.bytes`, and at most four times what
has arrived of it), `PIPELINED_BYTES` of further requests while one is parked, and
`WRITE_HIGH_WATER_BYTES` plus one reply that it does not read. Beyond these its socket is not read.
"""

from broker.network.connection import Buffers, Connection, Dispatch, Reply
from broker.network.server import NetworkServer
from broker.network.settings import NetworkSettings

__all__ = ["Buffers", "Connection", "Dispatch", "NetworkServer", "NetworkSettings", "Reply"]

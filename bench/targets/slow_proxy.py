"""A TCP proxy in front of a server, in a process of its own, that delays the server's answers and bounds its rate.

python -m ottla.bench.targets.slow_proxy HOST:PORT

It prints its port. Each line that it reads, `DELAY_S BYTES_PER_S`, is in force from then on and is answered
by `ok`; it ends with its standard input.

An answer is what the server sends after the client has sent something: its first bytes are delayed. The rate
is one for all connections together, in each direction.
"""

import asyncio
import subprocess
import sys
import time
from contextlib import suppress
from typing import Final

from ottla.bench.environment import REPOSITORY

#: The size of the pieces that are passed on: small enough for a bounded rate to be an even one.
_CHUNK_BYTES: Final = 64 << 10
#: The seconds of traffic that a bounded rate lets through at once.
_BURST_S: Final = 0.05


class SlowProxy:
    """The process of the proxy, as the bench sees it."""

    def __init__(self, target: str) -> None:
        """Start the proxy in front of `target`, which need not listen yet."""
        command = [sys.executable, "-m", "ottla.bench.targets.slow_proxy", target]
        # As brokers and stores, it is not ended by Ctrl-C: what was measured until then is still read.
        self._process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.address = f"127.0.0.1:{int(self._read_line())}"

    def slow_down(self, *, delay_s: float, bytes_per_s: float) -> None:
        """Delay each answer, and bound the rate; 0 is no bound. In force when this returns."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{delay_s!r} {bytes_per_s!r}\n")
        self._process.stdin.flush()
        assert self._read_line() == "ok"

    def stop(self) -> None:
        """End the process of the proxy."""
        self._process.kill()
        self._process.communicate()

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise OSError(f"the proxy of the store has ended with {self._process.wait()}")
        return line.strip()


class Slowness:
    """The delay and the bound of the rate in force, which all connections share."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self._bytes_per_s = 0.0
        #: The time at which the next bytes may be sent, for each direction.
        self._next_s = {"in": 0.0, "out": 0.0}

    def set(self, *, delay_s: float, bytes_per_s: float) -> None:
        """Set the delay and the rate that are in force from now on."""
        self.delay_s = delay_s
        self._bytes_per_s = bytes_per_s
        self._next_s = dict.fromkeys(self._next_s, 0.0)

    def wait_s(self, direction: str, size_bytes: int, *, now_s: float) -> float:
        """Return the seconds that these bytes have to wait until they may be sent."""
        if not self._bytes_per_s:
            return 0.0
        begin_s = max(self._next_s[direction], now_s - _BURST_S)
        self._next_s[direction] = begin_s + size_bytes / self._bytes_per_s
        return max(0.0, self._next_s[direction] - now_s)


class _Connection:
    """A connection of a client, and the one to the server to which its bytes are passed on."""

    def __init__(self, slowness: Slowness) -> None:
        self._slowness = slowness
        self._is_asked = False

    async def requests(self, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while data := await client.read(_CHUNK_BYTES):
            self._is_asked = True
            await self._pass_on(data, server, "in")

    async def answers(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while data := await server.read(_CHUNK_BYTES):
            if self._is_asked:
                self._is_asked = False
                await asyncio.sleep(self._slowness.delay_s)
            await self._pass_on(data, client, "out")

    async def _pass_on(self, data: bytes, to: asyncio.StreamWriter, direction: str) -> None:
        if wait_s := self._slowness.wait_s(direction, len(data), now_s=time.monotonic()):
            await asyncio.sleep(wait_s)
        to.write(data)
        await to.drain()


async def _relay(
    slowness: Slowness, target: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Pass bytes on until either side ends its connection; then the other one is ended, too."""
    with suppress(OSError):
        there = await asyncio.open_connection(*target, limit=_CHUNK_BYTES)
        connection = _Connection(slowness)
        halves = [
            asyncio.ensure_future(connection.requests(reader, there[1])),
            asyncio.ensure_future(connection.answers(there[0], writer)),
        ]
        try:
            await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for half in halves:
                half.cancel()
            await asyncio.gather(*halves, return_exceptions=True)
            there[1].close()
    writer.close()


async def serve(target: str) -> None:
    """Run the proxy until the standard input ends."""
    host, _, port = target.rpartition(":")
    slowness = Slowness()
    server = await asyncio.start_server(
        lambda reader, writer: _relay(slowness, (host, int(port)), reader, writer),
        "127.0.0.1",
        0,
        limit=_CHUNK_BYTES,
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        delay_s, bytes_per_s = map(float, line.split())
        slowness.set(delay_s=delay_s, bytes_per_s=bytes_per_s)
        print("ok", flush=True)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))

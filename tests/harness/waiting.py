"""Waiting for a condition that no event announces, on virtual or real time."""

import asyncio
from collections.abc import Awaitable, Callable


async def until(is_so: Callable[[], object], *, within_s: float = 60, pause_s: float = 0.005) -> None:
    """Wait until the condition holds, and look again after each pause. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while not is_so():  # noqa: ASYNC110 (no event announces what a test waits for)
            await asyncio.sleep(pause_s)


async def until_answered(ask: Callable[[], Awaitable[object]], *, within_s: float, pause_s: float) -> None:
    """Ask until the answer is true, with a pause between two questions. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while not await ask():  # noqa: ASYNC110 (as above)
            await asyncio.sleep(pause_s)

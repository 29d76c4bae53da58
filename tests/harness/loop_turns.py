"""Turns of the running loop for code under test that takes a fake runtime."""

import asyncio
from collections.abc import Callable
from typing import Any

from ottla.runtime.turns import LoopTurns


class OneTurn:
    """The budget of a turn that does not end, for code that is given one; `steps` are those that were charged."""

    def __init__(self, *, is_spent: bool = False) -> None:
        self.is_spent = is_spent
        self.steps = 0

    def charge(self, steps: int) -> None:
        self.steps += steps


class _Clock:
    """The part of a runtime that turns need. The loop is that of the moment: some fakes are made before it runs."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self.loop: Any = self

    def call_soon(self, callback: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_soon(callback)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> None:
        asyncio.get_running_loop().call_soon_threadsafe(callback, *args)

    def create_future(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise context["exception"]


def loop_turns(monotonic: Callable[[], float] = lambda: 0.0) -> LoopTurns:
    """The turns of one fake runtime; where `monotonic` stands still, only the number of steps ends a turn."""
    return LoopTurns(_Clock(monotonic))

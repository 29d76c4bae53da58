"""The methods of a broker or cluster as awaitables, with the signatures that editors and type checkers show.

    class Awaitables(AwaitableMethods):
        values = AwaitableOf(ClusterMethods.values)     # await broker.aio.values("orders") -> list[bytes | None]

Each call runs in a thread, so that the caller's loop goes on: asyncio's, or trio's with anyio. A test holds these
classes equal to the plain methods.
"""

import asyncio
import importlib
from collections.abc import Callable, Coroutine
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_a_thread(work: Callable[[], T]) -> T:
    """Call a function in a thread, while the caller's loop goes on: that of asyncio, or of trio."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # a loop that is not asyncio's
        found: T = await importlib.import_module("trio").to_thread.run_sync(work)
        return found
    return await asyncio.to_thread(work)


class AwaitableMethods:
    """The object that `aio` returns: the methods of a broker, node or cluster that wait for something."""

    def __init__(self, methods: object) -> None:
        #: The broker, node or cluster.
        self.methods = methods

    if not TYPE_CHECKING:  # a name that is not there is an error for them

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError, as the broker does for a name that it has not, or because it waits for nothing."""
            if not name.startswith("_"):
                getattr(self.methods, name)
                raise AttributeError(f"{name} waits for nothing, and is not in aio: use it without.")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class AwaitableOf(Generic[P, T]):
    """A method as a coroutine function with the same parameters; the object may override the method."""

    def __init__(self, method: Callable[Concatenate[Any, P], T]) -> None:
        self.__doc__ = method.__doc__
        self._name = method.__name__

    def __get__(
        self, aio: AwaitableMethods, owner: type[AwaitableMethods]
    ) -> Callable[P, Coroutine[Any, Any, T]]:
        method: Callable[P, T] = getattr(aio.methods, self._name)

        async def awaited(*args: P.args, **named: P.kwargs) -> T:
            return await in_a_thread(partial(method, *args, **named))

        return update_wrapper(awaited, method)

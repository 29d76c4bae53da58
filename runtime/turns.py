"""Divides long work on the event loop into turns: between two of them all other ready callbacks run.

All that is long shares one budget of the loop, `LoopTurns`: `TURN_S` of each turn, however many requests,
connections and background tasks have long work at the same time. Work that is put off continues in the order of
its arrival:

    work --the turn has room, and nothing waits--> runs
         --else--> waits in line --its turn, for as long as there is room--> runs --not done--> at the end of the line

Work of the metadata log `goes_first`: Raft, heartbeats and roles do not wait for requests, and requests do not
starve, as one of them runs in each turn. A short request, such as a Produce, Fetch or Vote of few
rows, neither waits nor is counted.

A thread is no alternative for Python code: the loop would wait for the interpreter's lock, up to
`sys.getswitchinterval()` (5 ms) at each of its system calls. Threads are for work that waits for a disk or runs in C.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from sys import getrefcount
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from ottla.runtime.garbage import collect_young

R = TypeVar("R")

#: The maximum duration of the long work of one turn, seconds; requests that arrive meanwhile wait for its end.
#: A switch to the loop and back costs some 30 µs.
TURN_S: Final = 0.002
#: The maximum number of steps of a turn: divides long work also on virtual time, where a turn takes no time.
MAX_STEPS: Final = 100
#: Of any number of objects: `FreedInTurns` empties it.
Container: TypeAlias = list[Any] | dict[Any, Any] | set[Any]
#: What it takes to free so many objects of `FreedInTurns`, in steps: 20 to 60 us.
_STEPS_OF_FREEING: Final = 3
_OBJECTS_OF_STEP: Final = 100
#: The garbage collector counts new objects less freed ones: while many old objects are freed, it does not begin, and in
#: the end visits 100,000 new ones at once, in 20 to 40 ms. So it is started after so many that are freed.
_OBJECTS_OF_COLLECTION: Final = 10_000
_PARTS: Final[list[Container]] = [[]]
#: Of a part to which nothing but the list of parts refers.
_REFERENCES_OF_PART: Final = getrefcount(_PARTS[-1])


class ClockAndLoop(Protocol):
    """The part of a Runtime on which its turns are based."""

    def monotonic(self) -> float:
        """Seconds on a monotonic clock."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the node."""


class HasTurns(Protocol):
    """The part of a Runtime that long work needs."""

    @property
    def turns(self) -> "LoopTurns":
        """The turns of the node's event loop."""


class LoopTurns:
    """The turns of one loop: how much of the present one long work has taken, and the work that waits.

    Cost: 3 us once in a turn with long work, 0.2 us for each question in it, and nothing in other turns.
    """

    __slots__ = (
        "_end",
        "_first",
        "_freed",
        "_is_scheduled",
        "_loop",
        "_monotonic",
        "_steps_left",
        "_waiting",
    )

    def __init__(self, runtime: ClockAndLoop) -> None:
        self._monotonic = runtime.monotonic
        self._loop = runtime.loop
        #: When the long work of the present turn has to end; None while it has had none.
        self._end: float | None = None
        self._steps_left = MAX_STEPS
        self._is_scheduled = False
        #: Objects that were freed since the last collection of young objects that this has started.
        self._freed = 0
        #: Called in later turns; at most one for each task of the metadata log.
        self._first: deque[Callable[[], object]] = deque()
        #: At most one for each connection, purgatory and other task.
        self._waiting: deque[Callable[[], object]] = deque()

    def charge(self, steps: int = 1) -> None:
        """Long work is about to take some steps of this turn: some 20 us each."""
        if self._end is None:
            self._end, self._steps_left = self._monotonic() + TURN_S, MAX_STEPS
            self._schedule()
        self._steps_left -= steps

    @property
    def is_spent(self) -> bool:
        """Whether long work has to be put off. Cost: 0.05 us in a turn without long work."""
        return self._end is not None and (self._steps_left <= 0 or self._monotonic() >= self._end)

    @property
    def is_free(self) -> bool:
        """Whether long work may run at once: the turn has room, and nothing waits for the next one."""
        return not (self._waiting or self._first or self.is_spent)

    def later(self, work: Callable[[], object], *, goes_first: bool = False) -> None:
        """Call `work` in a later turn, behind what waits already.

        It must not raise, and takes no longer than the turn's rest.
        """
        (self._first if goes_first else self._waiting).append(work)
        self._schedule()

    def run(self, steps: Iterator[object]) -> None:
        """Run the steps: those for which this turn has no room in later turns. They must not raise."""
        for _ in steps:
            self.charge()
            if self.is_spent:
                self.later(partial(self.run, steps))
                return

    async def share(self, *, steps: int = MAX_STEPS, goes_first: bool = False) -> None:
        """Wait for a later turn that has room.

        What the caller does next counts as so many steps of that turn, by default as all.
        """
        ready: asyncio.Future[None] = self._loop.create_future()

        def begin() -> None:
            if not ready.done():
                self.charge(steps)
                ready.set_result(None)

        self.later(begin, goes_first=goes_first)
        await ready

    def free(self, parts: list[Container]) -> None:
        """Free these in later turns; those to which another object still refers keep their objects. [any thread]"""
        # Of a closed loop, at the end of a process or a simulation, they are freed at once.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._free, parts, [])

    def _free(self, parts: list[Container], shared: list[Container] | None) -> None:
        """Free the parts in steps, then `shared`, long ones to which other objects refer; None: it frees those."""
        # One step in any case: this may be called when the turn is spent.
        left = _OBJECTS_OF_STEP
        while parts or shared:
            if not parts:
                assert shared is not None
                parts, shared = shared, None
            count = len(parts[-1])
            if count <= left:
                parts.pop()
            elif getrefcount(parts[-1]) == _REFERENCES_OF_PART:
                count = left
                _take(parts[-1], count)
            else:
                count = 0
                part = parts.pop()
                if shared is not None:
                    shared.append(part)
                del part
            left -= count + 1
            if left <= 0:
                self._freed += _OBJECTS_OF_STEP
                left = _OBJECTS_OF_STEP
                self.charge(_STEPS_OF_FREEING)
                if self._freed >= _OBJECTS_OF_COLLECTION:
                    self._freed = 0
                    collect_young()
                if self.is_spent and (parts or shared):
                    self.later(partial(self._free, parts, shared))
                    return

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Begin the next turn: run the work that waits, `_first` first, as long as there is room.

        One of `_waiting` is run in any case.
        """
        self._is_scheduled = False
        self._end = None
        # What is put off meanwhile waits for the turn after this one.
        self._run(self._first, len(self._first))
        if count := len(self._waiting):
            self._run_one(self._waiting)
            self._run(self._waiting, count - 1)
        if self._first or self._waiting:
            self._schedule()

    def _run(self, queue: deque[Callable[[], object]], count: int) -> None:
        while count and not self.is_spent:
            self._run_one(queue)
            count -= 1

    def _run_one(self, queue: deque[Callable[[], object]]) -> None:
        self.charge()
        work = queue.popleft()
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a bug of one does not stop the others
            self._loop.call_exception_handler({"message": f"{work!r} failed", "exception": error})


def _take(large: Container, count: int) -> None:
    """Remove and free up to this number of the container's objects."""
    if isinstance(large, list):
        del large[-count:]
    elif isinstance(large, dict):
        for _ in range(count):
            large.popitem()
    else:
        for _ in range(count):
            large.pop()


class FreedInTurns(list[Container]):
    """Parts of something large, a message of many rows mostly: freed in later turns once nothing refers to this list.

    With the last reference to 200,000 rows all of them would be freed, at once, in 20 to 60 ms, and a dictionary of
    rows that others refer to, too, in 5 to 20 ms. A part is a container of any size. It is emptied in steps, unless
    another object than the other parts still refers to it. This is held for as long as the parts are used; it does not
    matter in which order other references to their objects are gone, nor whether by a return, an error or a
    cancellation.
    """

    __slots__ = ("_held", "_turns")

    def __init__(self, runtime: HasTurns) -> None:
        super().__init__()
        self._turns = runtime.turns
        self._held: list[object] | None = None

    def hold(self, one: object) -> None:
        """Add one small object, which is freed later in turns."""
        if self._held is None or len(self._held) >= _OBJECTS_OF_STEP:
            self._held = []
            self.append(self._held)
        self._held.append(one)

    def __del__(self) -> None:
        if len(self) > 1 or (self and len(self[0]) > _OBJECTS_OF_STEP):  # else it is one step's work
            self._turns.free([*self])


async def in_turns(
    runtime: HasTurns, steps: Iterable[object], *, max_steps: int | None = None, goes_first: bool = False
) -> None:
    """Iterate over `steps`: in each turn of the loop as many as it has room for, at most `max_steps`.

    The default is `MAX_STEPS`. One step runs in one turn: other code never sees it half done. A step should take less
    than a millisecond. Raises what a step raises. If this is cancelled, no further step runs.
    """
    assert max_steps is None or 1 <= max_steps <= MAX_STEPS, max_steps  # above, a step would cost nothing
    turns = runtime.turns
    cost = 1 if max_steps is None else MAX_STEPS // max_steps
    left = iter(steps)
    done: asyncio.Future[None] | None = None

    def some() -> bool:
        """Run the steps that the turn has room for; returns whether all steps are done."""
        for _ in left:
            turns.charge(cost)
            if turns.is_spent:
                return False
        return True

    def continued() -> None:
        assert done is not None
        if done.done():
            return  # cancelled
        try:
            is_done = some()
        except BaseException as error:  # noqa: BLE001 - raised where this is awaited
            done.set_exception(error)
        else:
            if is_done:
                done.set_result(None)
            else:
                turns.later(continued, goes_first=goes_first)

    if turns.is_free:
        turns.charge(0)
        if some():
            return
    done = asyncio.get_running_loop().create_future()
    turns.later(continued, goes_first=goes_first)
    await done


async def result_in_turns(
    work: Generator[None, None, R], runtime: HasTurns, *, is_begun_at_once: bool = False
) -> R:
    """Do all steps of `work` in turns of the loop, and return its result. Raises the exception of a step.

    `is_begun_at_once`: the first step, which mostly is the only one, waits for no turn: messages between nodes
    are not delayed.
    """
    results: list[R] = []

    def steps() -> Iterator[None]:
        results.append((yield from work))

    if is_begun_at_once:
        try:
            next(work)
        except StopIteration as done:
            result: R = done.value
            return result
    await in_turns(runtime, steps())
    return results[0]

"""Worker: work in a process of its own, which does not take the interpreter's lock from the event loop.

Both sides talk in a conversation for each call, over a socket of its own:

    caller's thread                          a thread of the worker
        request         ───────────────▶     handle(request, ask)
        answer(question)  ◀─────────────     ask(question): waits
                          ─────────────▶     its value; or, if `answer` raised, CallCancelled
        result          ◀───────────────     what `handle` returns

A worker is started by the first call, and again by the first call after its end. It ends with the node, also
when that is killed: it reads the end of a socket that only the node has.

A call that is silent for too long fails alone. What it waits for occupies a thread of the process, so that
process gets no new calls any more, and is killed when the other ones that it has have ended.

`ottla.runtime.spawned_worker` has the node's side, `ottla.runtime.worker_main` the worker's.
"""

from collections.abc import Callable
from typing import Any, Protocol

#: Puts a question to the caller, and waits for its answer. Raises CallCancelled.
Ask = Callable[[Any], Any]
#: What a worker does with a request.
Handler = Callable[[Any, Ask], Any]


class WorkerFailed(Exception):
    """The worker has ended, or the call was silent for too long: what the call has done is unknown."""


class CallCancelled(Exception):
    """Raised in the worker: the caller does not need the result any more."""


class Worker(Protocol):
    """Work in a process of its own, which does not take the interpreter's lock from the event loop.

    Its methods wait: they are called in threads of `Runtime.run_blocking`.
    """

    def call(self, request: object, *, answer: Callable[[Any], object], silence_s: float) -> Any:  # noqa: ANN401
        """Have a request handled; `answer` is called, in this thread, for each question. Several threads may call.

        Values of both directions are pickled: both ends are this program. What `answer` raises cancels the call, and is
        raised when the worker has ended it. A call that neither asks nor returns for `silence_s` seconds has failed.
        Raises WorkerFailed.
        """

    def close(self) -> None:
        """End the worker; calls under way raise WorkerFailed."""

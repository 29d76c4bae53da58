"""A worker of the tests of `ottla.runtime.workers`: `python -m tests.harness.worker_module`."""

import sys
import threading
from collections.abc import Callable

from ottla.runtime.worker_main import serve
from ottla.runtime.workers import Handler


def make_handler(setup: object) -> Handler:
    """Handles "double": asks for a number; "hang": asks, and never returns; "leave": ends its thread; else an error."""

    def handle(request: object, ask: Callable[[object], int]) -> object:
        match request:
            case "double":
                return f"{setup} {2 * ask('which?')}"
            case "hang":
                ask("running")
                threading.Event().wait()
            case "leave":
                sys.exit(3)
        raise ValueError("no such request")

    return handle


if __name__ == "__main__":
    serve(make_handler)

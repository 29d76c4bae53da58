"""A worker of the tests of `runtime.workers`: `python -m tests.harness.worker_module`."""

import threading

from runtime.worker_main import serve


def make_handler(setup):
    """Handles "double": asks for a number; "hang": asks, and never returns; "fail": an exception."""

    def handle(request, ask):
        match request:
            case "double":
                return f"{setup} {2 * ask('which?')}"
            case "hang":
                ask("running")
                threading.Event().wait()
        raise ValueError("no such request")

    return handle


if __name__ == "__main__":
    serve(make_handler)

"""The worker's side of `ottla.runtime.workers`: the main function of a process that handles calls of its parent.

The main thread receives one socket for each call, and ends the process when the parent's end is closed: with
the parent, however that ends. Each call has a thread; their number is that of the parent's threads which wait for them.
"""

import logging
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, Final, NoReturn

from ottla.runtime.workers import CallCancelled, Handler

_LOG: Final = logging.getLogger(__name__)

#: What the messages of a conversation begin with: from the worker...
ASK: Final = "ask"
RESULT: Final = "result"
FAILED: Final = "failed"
#: ... and from the caller.
ANSWER: Final = "answer"
CANCEL: Final = "cancel"


def serve(make_handler: Callable[[Any], Handler]) -> None:
    """Handle the calls of the parent, until it ends. The first conversation has what `make_handler` gets.

    The command line has the descriptor of the socket that receives the sockets, and the priority (see nice(2)).
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s worker: %(message)s")
    descriptor, niceness = map(int, sys.argv[1:3])
    os.nice(niceness)
    with socket.socket(fileno=descriptor) as control:
        handle: Handler | None = None
        while (conversation := _receive(control)) is not None:
            if handle is None:
                handle = _set_up(conversation, make_handler)
            else:
                Thread(target=_converse, args=(conversation, handle), daemon=True).start()
    # Not by the main thread's return: that would wait for threads of libraries.
    os._exit(0)


def _set_up(conversation: Connection, make_handler: Callable[[Any], Handler]) -> Handler:
    """The handler; if it cannot be made, one that gives the reason to each caller."""
    with conversation:
        try:
            return make_handler(conversation.recv())
        except BaseException as error:  # noqa: BLE001 (raised by each caller; a plugin may end its process)
            reason = f"{type(error).__name__}: {error}"
            _LOG.exception("the worker cannot be set up")

    def fail(request: object, ask: object) -> NoReturn:
        raise RuntimeError(f"it cannot be set up: {reason}")

    return fail


def _receive(control: socket.socket) -> Connection | None:
    """The socket of the next call; None: the parent has ended."""
    try:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    except ConnectionError:
        return None
    return Connection(descriptors[0]) if data else None


def _converse(conversation: Connection, handle: Handler) -> None:
    def ask(question: object) -> object:
        try:
            conversation.send((ASK, question))
            kind, value = conversation.recv()
        except (EOFError, OSError):
            raise CallCancelled from None
        if kind == CANCEL:
            raise CallCancelled
        return value

    # EOFError, OSError: the caller does not wait any more.
    with conversation, suppress(EOFError, OSError):
        request = conversation.recv()
        try:
            message = (RESULT, handle(request, ask))
        except CallCancelled:
            message = (RESULT, None)
        except BaseException as error:  # noqa: BLE001 (raised by the caller)
            _LOG.exception("a call has failed")
            message = (FAILED, f"{type(error).__name__}: {error}")
        conversation.send(message)

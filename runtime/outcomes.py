"""Outcomes: the exception of a function that runs elsewhere becomes an error that its caller can handle.

A future, and the coroutine that awaits it, take some exceptions for their own signals: CancelledError for the end of
the task, StopIteration for a result, SystemExit and KeyboardInterrupt for the end of the loop. Code of others, as a
library of an object store, may raise any of them in a thread or in another process, where they mean nothing of
that. So they become a `WorkFailed` where they leave the thread; only the cancellation of the caller itself is one.
"""

from concurrent.futures import CancelledError


class ProcessKilled(BaseException):
    """The process that would do this was killed by a test. No error: nothing handles, logs or answers it."""


class WorkFailed(Exception):
    """A function has raised an exception that asyncio or Python uses as a signal; that is the cause of this one."""


def as_error(raised: BaseException) -> Exception | ProcessKilled:
    """The exception itself, or a WorkFailed because of it.

    >>> as_error(ValueError("x"))
    ValueError('x')
    >>> as_error(SystemExit(2))
    WorkFailed('SystemExit: 2')
    """
    if isinstance(raised, ProcessKilled):
        return raised
    if isinstance(raised, Exception) and not isinstance(raised, StopIteration | CancelledError):
        return raised
    failed = WorkFailed(f"{type(raised).__name__}: {raised}")
    failed.__cause__ = raised
    return failed

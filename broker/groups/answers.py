"""Responses that are available at once, or as a future: most are available at once, and then cost no task."""

from asyncio import AbstractEventLoop, CancelledError, Future
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from ottla.protocol.errors import KafkaError, NotCoordinator, UnknownServerError

A = TypeVar("A")
B = TypeVar("B")

#: The response, or a future of it.
Answer: TypeAlias = A | Future[A]


def after(answer: "Answer[A]", convert: Callable[[A], B]) -> "Answer[B]":
    """Convert the response when it is available. `convert` must not raise: errors are responses, too."""
    if not isinstance(answer, Future):
        return convert(answer)
    if answer.done():
        return convert(answer.result())
    converted: Future[B] = answer.get_loop().create_future()

    answer.add_done_callback(lambda done: _complete(converted, lambda: convert(done.result())))
    return converted


def later(
    loop: AbstractEventLoop, when: Callable[[Callable[[], None]], None], make: "Callable[[], Answer[A]]"
) -> "Future[A]":
    """Make the response when `when` calls back; return its future, which also gets an error that `make` raises.

    `make` is not called if the future is cancelled before.

    What is called back never raises: others wait behind it.
    """
    made: Future[A] = loop.create_future()

    def wake() -> None:
        if made.done():
            return
        try:
            answer = make()
        except Exception as error:  # noqa: BLE001 - raised where the response is awaited
            made.set_exception(error)
            return
        if isinstance(answer, Future):
            answer.add_done_callback(lambda done: _complete(made, done.result))
        else:
            made.set_result(answer)

    when(wake)
    return made


def after_all(answers: "Sequence[Answer[A]]", convert: Callable[[list[A]], B]) -> "Answer[B]":
    """Convert all responses, in their order, when the last of them is available."""
    waiting = [answer for answer in answers if isinstance(answer, Future) and not answer.done()]

    def collect() -> B:
        return convert([answer.result() if isinstance(answer, Future) else answer for answer in answers])

    if not waiting:
        return collect()
    converted: Future[B] = waiting[0].get_loop().create_future()

    left = len(waiting)

    def count(_: "Future[A]") -> None:
        nonlocal left
        left -= 1
        if not left:
            _complete(converted, collect)

    for answer in waiting:
        answer.add_done_callback(count)
    return converted


def _complete(response: "Future[B]", make: Callable[[], B]) -> None:
    """Set the response to the result of `make`, to its error, or cancel it; nothing if the response is not awaited.

    A response is not awaited any more when its connection is closed.

    Called by what completes a future, so it never raises: the response would never be set, and others wait behind it.
    """
    if response.done():
        return
    try:
        response.set_result(make())
    except CancelledError:
        response.cancel()
    except Exception as error:  # noqa: BLE001 - raised where the response is awaited
        response.set_exception(error)


def error_of(done: "Future[None]") -> KafkaError | None:
    """Return the reason why an append was not committed; None if it was."""
    if done.cancelled():
        return NotCoordinator("the broker is stopping")
    error = done.exception()
    if error is None or isinstance(error, KafkaError):
        return error
    return UnknownServerError(repr(error))

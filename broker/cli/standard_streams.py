"""The standard streams of a command: closed ones are opened, and an output that is full ends it with a sentence."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click


def open_standard_streams() -> None:
    """Open the standard streams that the parent of this process has closed, as an empty file.

    Otherwise the next file or socket has their number: libuv aborts, and log lines go into a log's segment.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, this one
    # None where Python has found the number closed.
    sys.stdin = sys.stdin or os.fdopen(0, "r", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


@contextmanager
def full_output_is_named() -> Iterator[None]:
    """Raise ClickException, a sentence, if the disk of the standard output is full."""
    try:
        yield
    except OSError as error:
        # One of a file that a command reads or writes has a name.
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        raise click.ClickException(f"The output cannot be written: {error.strerror}.") from error

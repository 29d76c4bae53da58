"""Progress of long work on the terminal: bars on the standard error output, and nothing where that is no terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click

#: Steps of a bar whose measure is not a whole number.
_STEPS: Final = 1000
#: Objects between two updates of a count.
_COUNTED_AT_ONCE: Final = 500


class Progress:
    """Shows the progress of long work on the terminal, as a bar or a number."""

    def __init__(self, *, is_shown: bool | None = None) -> None:
        self._is_hidden = not (sys.stderr.isatty() if is_shown is None else is_shown)

    @contextmanager
    def measuring(self, label: str, total: float) -> Iterator[Callable[[float], None]]:
        """Show a progress bar; the callable is called with the part of `total` that is done so far."""
        with click.progressbar(
            length=_STEPS, label=label, file=sys.stderr, hidden=self._is_hidden
        ) as progress:
            shown = 0

            def done(amount: float) -> None:
                nonlocal shown
                step = round(_STEPS * amount / total) if total else _STEPS
                if step > shown:
                    progress.update(step - shown)
                    shown = step

            yield done
            done(total)

    @contextmanager
    def counting(self, label: str) -> Iterator[Callable[[], None]]:
        """A number that grows with each call of the callable; its end is not known."""
        count = 0

        def one_more() -> None:
            nonlocal count
            count += 1
            if not self._is_hidden and count % _COUNTED_AT_ONCE == 0:
                click.echo(f"\r{label}: {count}", nl=False, err=True)

        yield one_more
        if not self._is_hidden:
            click.echo(f"\r{label}: {count}", err=True)

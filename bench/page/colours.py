"""A colour and a name for each target, the same in all pictures, distinct for the colour-blind, in light and dark."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ottla.bench.figures import KAFKA, OTTLA
from ottla.bench.page.markup import Markup


@dataclass(frozen=True, slots=True)
class Colour:
    """A colour, on a light and on a dark ground."""

    light: str
    dark: str


_OWN: Final = {OTTLA: Colour("#0b6fc2", "#5cb3ff"), KAFKA: Colour("#c2570c", "#ff9f57")}
_OTHERS: Final = (
    Colour("#0a7a50", "#4fd1a1"),
    Colour("#a3348f", "#ec8bd9"),
    Colour("#6b6b6b", "#b9b9b9"),
    Colour("#8a6d00", "#e3c648"),
)


def colours(targets: Sequence[str]) -> dict[str, Colour]:
    """Return target -> colour; with more targets than colours they repeat.

    >>> [colour.light for colour in colours(["ottla", "other"]).values()]
    ['#0b6fc2', '#0a7a50']
    """
    others = [target for target in targets if target not in _OWN]
    free = {target: _OTHERS[at % len(_OTHERS)] for at, target in enumerate(others)}
    return {target: _OWN.get(target) or free[target] for target in targets}


@dataclass(frozen=True, slots=True)
class Palette:
    """The targets of a page, as classes of its style: names of targets may have any characters."""

    targets: Sequence[str]

    def css_class(self, target: str) -> str:
        """Return the class of the elements that belong to a target."""
        return f"t{self.targets.index(target)}"

    def style(self) -> Markup:
        """Return the style element with the rules of these classes."""
        found = colours(self.targets)

        def rules(is_dark: bool) -> str:
            return "".join(
                f".{self.css_class(target)}{{--own:{colour.dark if is_dark else colour.light}}}"
                for target, colour in found.items()
            )

        return Markup(f"{rules(False)}@media (prefers-color-scheme:dark){{{rules(True)}}}")

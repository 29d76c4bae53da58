"""Arrangement of a phase's pictures, on the page and in its PNG: in columns of about the same height."""

from collections.abc import Sequence
from typing import Final

from ottla.bench.page.charts import Chart
from ottla.bench.page.percentiles import Percentiles

_MOST: Final = 3
Piece = Chart | Percentiles


def strip_count(piece: Piece) -> int:
    """Return the number of strips that are as high as the picture, but for its title."""
    return len(piece.strips) if isinstance(piece, Chart) else 2


def columns(charts: Sequence[Chart], percentiles: Sequence[Percentiles]) -> list[list[Piece]]:
    """Arrange the pictures in columns: the first charts have a column each.

    Further charts and percentiles follow where there is the most room.
    """
    found: list[list[Piece]] = [[chart] for chart in charts[:_MOST]]
    others: list[Piece] = [*charts[_MOST:], *percentiles]
    for piece in others:
        # A title is about half a strip.
        min(found, key=lambda column: sum(strip_count(each) + 0.5 for each in column)).append(piece)
    return found

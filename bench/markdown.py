"""Tables in Markdown whose columns are aligned in the source, too."""

from collections.abc import Iterator, Sequence


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table; the first row is its head.

    >>> list(aligned([["load", "MB/s"], ["a", "1"]]))
    ['| load | MB/s |', '|------|------|', '| a    | 1    |']
    """
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for number, row in enumerate(rows):
        yield "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        if number == 0:
            yield "|" + "|".join("-" * (width + 2) for width in widths) + "|"

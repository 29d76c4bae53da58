"""All figures of a table: medians, the range of the runs, ratios and goals. On a phone each row is a block."""

from collections.abc import Sequence

from ottla.bench.figures import Row, Table, Unit, name_of
from ottla.bench.page.colours import Palette
from ottla.bench.page.markup import Markup, tag
from ottla.bench.page.ratios import ratio_words
from ottla.bench.page.verdicts import verdict_html

#: The widths of the first column and of each other one.
_FIRST_PX, _OTHER_PX = 260, 185


def table_html(table: Table, palette: Palette) -> Markup:
    """Return a table with a row for each figure."""
    targets = [target for target in palette.targets if table.samples.get(target)]
    rows = [row for row in table.rows() if any(row.values(target) for target in targets)]
    if not rows:
        return tag("p", "Not measured.")
    has_goals = any(row.figure.goal is not None for row in rows)
    others = targets[1:]
    ratios = [f"{name_of(target)} / {name_of(targets[0])}" for target in others]
    head = [
        ("figure", None),
        *((name_of(target), palette.css_class(target)) for target in targets),
        *((words, None) for words in ratios),
        *([("goal", None)] if has_goals else []),
    ]
    return tag(
        "table",
        tag(
            "thead",
            tag(
                "tr",
                *(tag("th", words, scope="col", role="columnheader", class_=name) for words, name in head),
                role="row",
            ),
            role="rowgroup",
        ),
        tag(
            "tbody",
            *(_row_html(row, targets, ratios, has_goals=has_goals) for row in rows),
            role="rowgroup",
        ),
        role="table",
        # No wider than its columns need: eyes lose the row in between.
        style=f"width:{_FIRST_PX + _OTHER_PX * (len(head) - 1)}px",
    )


def _row_html(row: Row, targets: Sequence[str], ratios: Sequence[str], *, has_goals: bool) -> Markup:
    figure = row.figure
    values = [
        _cell(name_of(target), figure.unit.shown(row.median(target)), _range(row.values(target), figure.unit))
        for target in targets
    ]
    compared = [
        _cell(words, ratio_words(row.ratio_of(target, targets[0])))
        for words, target in zip(ratios, targets[1:], strict=True)
    ]
    goal = tag("td", verdict_html(row), data_label="goal" if figure.goal is not None else None, role="cell")
    return tag(
        "tr",
        tag("th", f"{figure.title} ", tag("small", figure.unit.name), scope="row", role="rowheader"),
        *values,
        *compared,
        *([goal] if has_goals else []),
        role="row",
    )


def _cell(label: str, words: str, range_words: str = "") -> Markup:
    return tag(
        "td", words, *([tag("small", range_words)] if range_words else []), data_label=label, role="cell"
    )


def _range(values: Sequence[float], unit: Unit) -> str:
    """Return the range of the runs; empty for a single one, and where they are all shown alike."""
    least, most = unit.shown(min(values, default=None)), unit.shown(max(values, default=None))
    return f"{least} \N{EN DASH} {most}" if least != most else ""

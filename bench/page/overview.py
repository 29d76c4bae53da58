"""The first thing on the page: goals, and the ratios of the rows that matter, on one axis."""

from typing import Final

from ottla.bench.figures import name_of
from ottla.bench.page.colours import Palette
from ottla.bench.page.markup import Markup, join, tag
from ottla.bench.page.ratios import (
    RatioAxis,
    RatioRow,
    is_more_better,
    ratio_rows,
    ratio_tick,
    ratio_words,
    with_unit,
)
from ottla.bench.page.verdicts import delivery_html, goals_html, verdict_html
from ottla.bench.report import Report, Section

_SIDES: Final = {True: "more", False: "less", None: "neutral"}


def overview_html(report: Report, section: Section, palette: Palette) -> Markup:
    """Return the goals of a section in words, and its ratios as a picture."""
    rows = ratio_rows(section, report.headlines, palette.targets)
    said = join(delivery_html(section, palette.targets), goals_html(section, palette.targets, rows))
    if not rows:
        return said
    axis = RatioAxis.of(rows)
    baseline = name_of(rows[0].baseline)
    ticks = tag(
        "div",
        *(tag("span", ratio_tick(tick), style=f"left:{axis.part(tick):.2%}") for tick in axis.ticks()),
        class_="time",
        aria_hidden="true",
    )
    return tag(
        "div",
        said,
        tag(
            "figure",
            tag(
                "figcaption",
                tag("b", f"Compared with {baseline}"),
                " ",
                tag("span", "ratio of the medians, log; shaded: better; black: goal; thin: runs"),
            ),
            *(_row_html(row, axis, palette) for row in rows),
            tag("div", tag("span"), ticks, tag("span"), class_="ratio axis"),
            class_="ratios",
        ),
    )


def _row_html(row: RatioRow, axis: RatioAxis, palette: Palette) -> Markup:
    figure = row.row.figure
    values = " · ".join(
        f"{name_of(target)} {with_unit(row.row.median(target), figure.unit)}"
        for target in (row.baseline, *row.ratios)
    )
    runs = [
        tag("s", class_=palette.css_class(target), style=f"left:{axis.part(ratio):.2%}")
        for target in row.ratios
        for ratio in row.of_runs(target)
    ]
    dots = [
        tag("i", class_=palette.css_class(target), style=f"left:{axis.part(ratio):.2%}")
        for target, ratio in row.ratios.items()
    ]
    goal = (
        [tag("u", style=f"left:{axis.part(row.goal):.2%}", title=f"goal: {figure.goal.words(figure.unit)}")]
        if row.goal is not None and figure.goal is not None
        else []
    )
    words = [
        tag("b", ratio_words(ratio), class_=palette.css_class(target)) for target, ratio in row.ratios.items()
    ]
    return tag(
        "div",
        tag("span", row.row.table.title, ": ", tag("b", figure.title), tag("small", values)),
        tag("div", *goal, *runs, *dots, class_=f"track {_SIDES[is_more_better(row.row)]}"),
        tag("span", *words, verdict_html(row.row)),
        class_="ratio",
    )

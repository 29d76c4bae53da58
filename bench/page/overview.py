"""The first thing on the page: goals, and the ratios of the rows that matter, on one axis."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.figures import Row, Verdict, name_of, tally, worst
from bench.page.colours import Palette
from bench.page.markup import Markup, tag
from bench.page.ratios import VERDICT_SIGNS, RatioAxis, is_more_better, ratio_tick, ratio_words, with_unit
from bench.report import Report, Section

#: Of results without headlines; more are not read.
_MOST_ROWS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioRow:
    """One figure of the picture."""

    row: Row
    baseline: str
    #: Target -> ratio to the baseline, of those that have one.
    ratios: dict[str, float]

    @property
    def goal(self) -> float | None:
        """The bound, where it is one of the ratio."""
        goal = self.row.figure.goal
        if goal is None or goal.is_absolute:
            return None
        return goal.at_least if goal.at_least is not None else goal.at_most


def ratio_rows(
    section: Section, headlines: Sequence[tuple[str, str]], targets: Sequence[str]
) -> list[RatioRow]:
    """The headlines of a section that have a ratio; without headlines, its first rows with a goal, or its first rows."""
    rows = section.rows()
    chosen = [row for key in headlines for row in rows if row.key == tuple(key)]
    if not chosen:
        chosen = [row for row in rows if row.figure.goal is not None] or rows
    return [found for row in chosen if (found := _ratio_row(row, targets)).ratios][:_MOST_ROWS]


def _ratio_row(row: Row, targets: Sequence[str]) -> RatioRow:
    baseline, *others = targets
    ratios = {target: row.ratio_of(target, baseline) for target in others}
    return RatioRow(
        row=row,
        baseline=baseline,
        ratios={target: ratio for target, ratio in ratios.items() if ratio is not None},
    )


def overview_html(report: Report, section: Section, palette: Palette) -> Markup:
    """The goals of a section in words, and its ratios as a picture."""
    rows = ratio_rows(section, report.headlines, palette.targets)
    if not rows:
        return goals_html(section, palette.targets)
    axis = RatioAxis.of([ratio for row in rows for ratio in row.ratios.values()])
    baseline = name_of(rows[0].baseline)
    ticks = tag(
        "div",
        *(tag("span", ratio_tick(tick), style=f"left:{axis.part(tick):.2%}") for tick in axis.ticks()),
        class_="time",
        aria_hidden="true",
    )
    return tag(
        "div",
        goals_html(section, palette.targets),
        tag(
            "figure",
            tag(
                "figcaption",
                tag("b", f"Compared with {baseline}"),
                " ",
                tag("span", "ratio of the medians, log; shaded: better"),
            ),
            *(_row_html(row, axis, palette) for row in rows),
            tag("div", tag("span"), ticks, tag("span"), class_="ratio axis"),
            class_="ratios",
        ),
    )


def goals_html(section: Section, targets: Sequence[str]) -> Markup:
    """How many goals are met, and the row that is furthest from its own."""
    rows = section.rows()
    count, row = tally(rows), worst(rows)
    if row is None or row.figure.goal is None:
        return Markup()
    goal = row.figure.goal.words(row.figure.unit)
    missed = f", {count.not_measured} not measured" if count.not_measured else ""
    return tag(
        "p",
        tag("strong", f"{count.met} of {count.met + count.missed} goals met{missed}."),
        f" {'Furthest from its goal' if count.missed else 'Closest to its bound'}: {row.table.title}, {row.figure.title}: ",
        row.cell(targets).replace("**", ""),
        f" (goal: {goal}).",
        class_="goals missed" if count.missed else "goals",
    )


def _row_html(row: RatioRow, axis: RatioAxis, palette: Palette) -> Markup:
    figure = row.row.figure
    values = " · ".join(
        f"{name_of(target)} {with_unit(row.row.median(target), figure.unit)}"
        for target in (row.baseline, *row.ratios)
    )
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
        tag("div", *goal, *dots, class_=f"track {'more' if is_more_better(row.row) else 'less'}"),
        tag("span", *words, verdict_html(row.row)),
        class_="ratio",
    )


def verdict_html(row: Row) -> Markup:
    """Whether the goal is met, as a sign and in words; empty without a goal."""
    verdict, goal = row.verdict, row.figure.goal
    if verdict is None or goal is None:
        return Markup()
    words = goal.words(row.figure.unit)
    return tag(
        "small", f"{VERDICT_SIGNS[verdict]} {words}",
        class_="verdict missed" if verdict is Verdict.MISSED else "verdict",
        title=f"goal {words}: {verdict.value}",
    )  # fmt: skip

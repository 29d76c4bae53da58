"""Verdicts in words: goals, the worst row, and whether every record arrived."""

from collections.abc import Sequence
from typing import Final

from ottla.bench.figures import Row, Verdict, name_of, tally, worst
from ottla.bench.page.markup import Markup, tag
from ottla.bench.page.ratios import VERDICT_SIGNS, RatioRow, ratio_words, with_unit, worst_ratio
from ottla.bench.report import Section

#: The metrics of a phase whose sums are shown, in words.
_DELIVERY: Final = {
    "acknowledged": "records acknowledged",
    "to_read": "to be read",
    "lost": "lost",
    "corrupt": "corrupt",
    "duplicates": "read twice",
    "out_of_order": "out of order",
}
#: Faults whatever the producers are. One that is not idempotent sends a record again when the answer is lost.
_WRONG: Final = ("lost", "corrupt")


def goals_html(section: Section, targets: Sequence[str], rows: Sequence[RatioRow]) -> Markup:
    """Return how many goals are met, and the row that is furthest from its own.

    Without goals, the row with the worst ratio.
    """
    count = tally(section.rows())
    # What was lost is in `delivery_html`.
    row = worst(row for row in section.rows() if row.figure.metric not in _DELIVERY)
    if row is None or row.figure.goal is None:
        return _worst_html([each.row for each in rows], targets)
    goal = row.figure.goal.words(row.figure.unit)
    unmeasured = f", {count.not_measured} not measured" if count.not_measured else ""
    return tag(
        "p",
        tag("strong", f"{count.met} of {count.met + count.missed} goals met{unmeasured}."),
        f" {'Furthest from its goal' if count.missed else 'Closest to its bound'}: {row.table.title}, "
        f"{row.figure.title}: ",
        row.cell(targets).replace("**", ""),
        f" (goal: {goal}).",
        class_="verdicts missed" if count.missed else "verdicts",
    )


def _worst_html(rows: Sequence[Row], targets: Sequence[str]) -> Markup:
    found = worst_ratio(rows, targets)
    if found is None:
        return Markup()
    row, target = found
    values = " and ".join(
        f"{name_of(each)} {with_unit(row.median(each), row.figure.unit)}" for each in (targets[0], target)
    )
    return tag(
        "p",
        tag("strong", "Worst row of these: "),
        f"{row.table.title}, {row.figure.title}: {values}, ratio {ratio_words(row.ratio_of(target, targets[0]))}.",
        class_="verdicts neutral",
    )


def delivery_html(section: Section, targets: Sequence[str]) -> Markup:
    """Return whether consumers have read all acknowledged records, in all runs: each benchmark checks that, too."""
    totals = {target: found for target in targets if (found := _delivered(section, target))}
    if not any(metric in each for each in totals.values() for metric in _WRONG):
        return Markup()
    goals = {row.figure.metric: row.figure.goal for row in section.rows() if row.figure.goal is not None}
    never = {*_WRONG, *(metric for metric, goal in goals.items() if goal.at_most == 0)}
    wrong = {metric for each in totals.values() for metric in never if each.get(metric)}
    sentences = [
        f"{name_of(target)}: {', '.join(f'{count:,.0f} {_DELIVERY[metric]}' for metric, count in found.items())}."
        for target, found in totals.items()
    ]
    if wrong:
        verdict = f"Records were {'lost or damaged' if wrong & {*_WRONG} else 'read twice or out of order'}."
    elif any("lost" in each for each in totals.values()):
        # What no consumer reads as a whole is acknowledged, but not among them.
        verdict = "All records that consumers had to read were read, and are right."
    else:
        verdict = "No record that was read is damaged."
    return tag(
        "p",
        tag("strong", f"{verdict} "),
        " ".join(sentences),
        class_="verdicts missed" if wrong else "verdicts",
    )


def _delivered(section: Section, target: str) -> dict[str, float]:
    """Return metric -> sum over all phases and runs, of the checked ones."""
    rows = [row for row in section.rows() if row.figure.metric in _DELIVERY and row.values(target)]
    return {
        metric: sum(sum(row.values(target)) for row in rows if row.figure.metric == metric)
        for metric in _DELIVERY
        if any(row.figure.metric == metric for row in rows)
    }


def verdict_html(row: Row) -> Markup:
    """Return whether the goal is met, as a sign and in words; empty without a goal."""
    verdict, goal = row.verdict, row.figure.goal
    if verdict is None or goal is None:
        return Markup()
    words = goal.words(row.figure.unit)
    return tag(
        "small", f"{VERDICT_SIGNS[verdict]} {words}",
        class_="verdict missed" if verdict is Verdict.MISSED else "verdict",
        title=f"goal {words}: {verdict.value}",
    )  # fmt: skip

"""Percentiles side by side: a row for each, a dot for each target, one logarithmic axis for all rows of a load."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ottla.bench.figures import Row, Table, name_of
from ottla.bench.page.colours import Palette
from ottla.bench.page.markup import Markup, tag
from ottla.bench.page.scales import Scale, logarithmic, time_words

#: The end of a metric's name -> the label of the percentile.
_NAMES: Final = {"p50_s": "p50", "p90_s": "p90", "p99_s": "p99", "p999_s": "p99.9", "max_s": "max"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """The percentiles of one load, as rows of a picture."""

    #: The load, which precedes the percentile in the metric's name, or nothing.
    load: str
    #: Name of the percentile -> its figure, in rising order.
    rows: dict[str, Row]
    targets: Sequence[str]

    @property
    def title(self) -> str:
        """The title of a picture of the percentiles."""
        return f"Latency of {self.load}, whole phase, log" if self.load else "Latency, whole phase, log"

    def values(self) -> list[float]:
        """Return the values of all runs."""
        return [
            value for row in self.rows.values() for target in self.targets for value in row.values(target)
        ]

    def scale(self) -> Scale:
        """Return the scale of all rows."""
        return logarithmic(self.values())


def percentiles_of(table: Table, targets: Sequence[str]) -> list[Percentiles]:
    """Return the percentiles of each load of which at least two were measured."""
    rows = table.rows()
    loads = dict.fromkeys(load for row in rows if (load := _load_of(row)) is not None)
    found = [
        Percentiles(
            load=load.replace("_", " ").strip(),
            rows={
                name: row
                for ending, name in _NAMES.items()
                for row in rows
                if row.figure.metric == load + ending and any(map(row.values, table.samples))
            },
            targets=[target for target in targets if table.samples.get(target)],
        )
        for load in loads
    ]
    return [each for each in found if len(each.rows) > 1 and each.values()]


def _load_of(row: Row) -> str | None:
    metric = row.figure.metric
    return next(
        (
            metric.removesuffix(ending)
            for ending in _NAMES
            if metric == ending or metric.endswith(f"_{ending}")
        ),
        None,
    )


def percentiles_html(percentiles: Percentiles, palette: Palette) -> Markup:
    """Return the percentiles as an HTML figure."""
    scale = percentiles.scale()
    ticks = [tag("span", time_words(value), style=f"left:{scale.part(value):.2%}") for value in scale.ticks]
    return tag(
        "figure",
        tag("figcaption", tag("b", percentiles.title), tag("span", "; thin: runs")),
        *(
            _row_html(name, row, percentiles.targets, scale, palette)
            for name, row in percentiles.rows.items()
        ),
        tag(
            "div",
            tag("span"),
            tag("div", *ticks, class_="time"),
            tag("span"),
            class_="percentile axis",
            aria_hidden="true",
        ),
        class_="percentiles",
    )


def _row_html(name: str, row: Row, targets: Sequence[str], scale: Scale, palette: Palette) -> Markup:
    medians = {target: value for target in targets if (value := row.median(target)) is not None}
    parts = {target: scale.part(value) for target, value in medians.items()}
    first, last = min(parts.values(), default=0.0), max(parts.values(), default=0.0)
    runs = [
        tag("s", class_=palette.css_class(target), style=f"left:{scale.part(value):.2%}")
        for target in medians
        for value in row.values(target)
    ]
    dots = [
        tag("i", class_=palette.css_class(target), style=f"left:{part:.2%}") for target, part in parts.items()
    ]
    return tag(
        "div",
        tag("span", name),
        tag(
            "div", tag("em", style=f"left:{first:.2%};width:{last - first:.2%}"), *runs, *dots, class_="track"
        ),
        tag(
            "span",
            *(
                tag("b", time_words(value), class_=palette.css_class(target), title=name_of(target))
                for target, value in medians.items()
            ),
        ),
        class_="percentile",
    )

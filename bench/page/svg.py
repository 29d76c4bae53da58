"""Charts over time as HTML: lines as SVG that stretches with the page, all text as text beside it.

Text inside a stretched SVG would be stretched, too, and be too small on a phone.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ottla.bench.figures import name_of
from ottla.bench.page.charts import MOST_DOTS, Chart, Line, Mark, Strip
from ottla.bench.page.colours import Palette
from ottla.bench.page.markup import Markup, tag
from ottla.bench.page.scales import Scale, time_ticks

#: The inner coordinates of a strip: (0, 0) is its upper left corner.
_WIDTH, _HEIGHT = 1000, 100


def chart_html(chart: Chart, palette: Palette) -> Markup:
    """Return a chart as an HTML figure; `page.js` shows its values where the pointer is."""
    return tag(
        "figure",
        tag(
            "figcaption",
            tag(
                "div",
                tag("b", chart.title),
                tag("span", *_keys(chart, palette), class_="keys"),
                class_="chart-head",
            ),
            tag("span", chart.note),
        ),
        *(_strip(strip, chart, palette, is_first=strip is chart.strips[0]) for strip in chart.strips),
        _time_axis(chart),
        tag("script", Markup(json.dumps(_data(chart)).replace("</", "<\\/")), type="application/json"),
        class_="chart",
        tabindex=0,
        aria_label=_in_words(chart),
    )


def _strip(strip: Strip, chart: Chart, palette: Palette, *, is_first: bool) -> Markup:
    scale = strip.scale()
    log = ", log" if scale.is_log else ""
    head = tag(
        "div",
        tag("span", f"{strip.name} ", tag("small", f"{strip.unit.name}{log}")),
        tag(
            "span",
            *(tag("output", class_=palette.css_class(line.target)) for line in strip.lines),
            class_="values",
        ),
        class_="strip-head",
    )
    ticks = [
        tag("span", tick_words(value, strip), style=f"bottom:{scale.part(value):.2%}")
        for value in scale.ticks
    ]
    return tag(
        "div",
        head,
        tag("div", *ticks, class_="ticks", aria_hidden="true"),
        tag(
            "div",
            _drawing(strip, chart, scale, palette),
            *(_numbers(chart) if is_first else ()),
            tag("div", class_="cursor"),
            class_="plot",
        ),
        class_="strip",
    )


def _keys(chart: Chart, palette: Palette) -> list[Markup]:
    """Return the targets that have a line, and the time that is shown."""
    drawn = {line.target for strip in chart.strips for line in strip.lines}
    return [
        tag("output", class_="now"),
        *(
            tag("span", tag("i"), f" {name_of(target)}", class_=f"key {palette.css_class(target)}")
            for target in palette.targets
            if target in drawn
        ),
    ]


def _drawing(strip: Strip, chart: Chart, scale: Scale, palette: Palette) -> Markup:
    grid = [
        tag("line", class_="grid", x1=0, x2=_WIDTH, y1=_y(value, scale), y2=_y(value, scale))
        for value in scale.ticks
    ]
    marks = [
        tag("line", class_="mark", x1=_x(mark.at_s, chart), x2=_x(mark.at_s, chart), y1=0, y2=_HEIGHT)
        for mark in chart.marks
    ]
    bands = [
        tag("path", class_=f"band {palette.css_class(line.target)}", d=_band(line, chart, scale))
        for line in strip.lines
    ]
    lines = [
        tag("path", class_=f"line {palette.css_class(line.target)}", d=_path(line.middle, chart, scale))
        for line in strip.lines
    ]
    dots = [
        tag("path", class_=f"dots {palette.css_class(line.target)}", d=dots)
        for line in strip.lines
        if (dots := _dots(line.middle, chart, scale))
    ]
    return tag(
        "svg",
        *grid,
        *marks,
        *bands,
        *lines,
        *dots,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        aria_hidden="true",
    )


def _numbers(chart: Chart) -> list[Markup]:
    return [
        tag(
            "span",
            str(mark.number),
            class_="number",
            style=f"left:max(8px,{mark.at_s / chart.end_s:.2%})",
            title=mark.name,
        )
        for mark in chart.marks
    ]


def _time_axis(chart: Chart) -> Markup:
    ticks = time_ticks(chart.end_s)
    words = [f"{tick:g}" for tick in ticks]
    words[-1] += " s"
    return tag(
        "div",
        *(
            tag("span", word, style=f"left:{tick / chart.end_s:.2%}")
            for tick, word in zip(ticks, words, strict=True)
        ),
        class_="time",
        aria_hidden="true",
    )


def marks_html(marks: Sequence[Mark]) -> Markup:
    """Return the list of the marks whose numbers are in the charts of a phase."""
    return tag("ol", *(tag("li", mark.words()) for mark in marks), class_="marks") if marks else Markup()


# -- coordinates ---------------------------------------------------------------------------------------


def _x(second: float, chart: Chart) -> str:
    return f"{second / chart.end_s * _WIDTH:.1f}".removesuffix(".0")


def _y(value: float, scale: Scale) -> str:
    return f"{(1 - scale.part(value)) * _HEIGHT:.1f}".removesuffix(".0")


def _stretches(line: Sequence[float | None]) -> Iterator[range]:
    """Return the indexes of each part without a gap."""
    begin = 0
    for at, value in enumerate([*line, None]):
        if value is None:
            if at > begin:
                yield range(begin, at)
            begin = at + 1


def _points(values: Sequence[float | None], stretch: Sequence[int], chart: Chart, scale: Scale) -> list[str]:
    return [
        f"{_x(chart.xs[at] + chart.step_s / 2, chart)} {_y(value, scale)}"
        for at in stretch
        if (value := values[at]) is not None
    ]


def _path(values: Sequence[float | None], chart: Chart, scale: Scale) -> str:
    return "".join(
        f"M{'L'.join(_points(values, stretch, chart, scale))}"
        for stretch in _stretches(values)
        if len(stretch) > 1
    )


def _dots(values: Sequence[float | None], chart: Chart, scale: Scale) -> str:
    """Return lines of no length, which their round ends make dots: points between gaps, or all of a few."""
    stretches = _stretches(values)
    dotted = [stretch for stretch in stretches if len(stretch) == 1 or len(chart.xs) <= MOST_DOTS]
    return "".join(f"M{point}h0" for stretch in dotted for point in _points(values, stretch, chart, scale))


def _band(line: Line, chart: Chart, scale: Scale) -> str:
    return "".join(
        f"M{'L'.join([*_points(line.high, stretch, chart, scale), *_points(line.low, stretch[::-1], chart, scale)])}Z"
        for stretch in _stretches(line.middle)
    )


# -- values --------------------------------------------------------------------------------------------


def tick_words(value: float, strip: Strip) -> str:
    """Return a tick in the strip's unit, without needless zeros."""
    return f"{value * strip.unit.factor:,.4g}"


def _data(chart: Chart) -> dict[str, Any]:
    """Return the data of a chart for `page.js`: values in the strip's unit."""
    return {
        "step": chart.step_s,
        "end": chart.end_s,
        "strips": [
            [
                [
                    None if value is None else float(f"{value * strip.unit.factor:.3g}")
                    for value in line.middle
                ]
                for line in strip.lines
            ]
            for strip in chart.strips
        ],
    }


def _in_words(chart: Chart) -> str:
    """Describe the chart in words for readers who do not see it: the median over time of each line."""
    parts = [
        f"{strip.name}: "
        + ", ".join(f"{name_of(line.target)} {_middle(line, strip)}" for line in strip.lines)
        for strip in chart.strips
    ]
    return f"{chart.title} over {chart.end_s:.0f} seconds, medians. {'. '.join(parts)}."


def _middle(line: Line, strip: Strip) -> str:
    values = sorted(value for value in line.middle if value is not None)
    return f"{strip.unit.shown(values[len(values) // 2])} {strip.unit.name}"

"""The pictures of the page as PNG, by matplotlib: for documents, which show no SVG of their own."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bench.figures import name_of
from bench.page.charts import Chart, Strip
from bench.page.colours import Colour, colours
from bench.page.ratios import RatioAxis, RatioRow, is_more_better, ratio_rows, ratio_tick, ratio_words
from bench.page.scales import time_ticks
from bench.page.series import Series, charts
from bench.report import Report

_DPI: Final = 120
#: Inches of a chart, and of a strip with its title.
_COLUMN, _ROW = 4.4, 1.2
_INK, _SOFT, _RULE, _BETTER, _MARK = "#1b1f24", "#5a6472", "#dfe3e8", "#e7f3ee", "#7a4fb5"
_STYLE: Final[Mapping[str, Any]] = {"color": _INK, "fontsize": 9}


def save_plots(report: Report, series: Series, folder: Path) -> list[Path]:
    """Write the overview of each section, and for each phase one picture of everything over time."""
    targets = list(report.targets)
    saved = []
    for number, section in enumerate(report.sections):
        if rows := ratio_rows(section, report.headlines, targets):
            name = "overview" if number == 0 else f"overview-{number + 1}"
            saved.append(_save(overview_plot(rows, targets), folder / f"{name}.png"))
        for table in section.tables if number == 0 else ():
            found = charts(series, table.name, targets)
            if found:
                picture = phase_plot(found, table.title, targets)
                saved.append(_save(picture, folder / f"{_file_name(table.name)}.png"))
    return saved


def _file_name(phase: str) -> str:
    return re.sub(r"[^\w.-]+", "-", phase)


def _save(picture: Picture, path: Path) -> Path:
    FigureCanvasAgg(picture).print_png(str(path))
    return path


# -- ratios --------------------------------------------------------------------------------------------


def overview_plot(rows: Sequence[RatioRow], targets: Sequence[str]) -> Picture:
    """The ratios of a result, with their goals."""
    axis = RatioAxis.of(rows)
    own = colours(targets)
    picture = Picture(
        figsize=(9.6, 0.9 + 0.42 * len(rows)), dpi=_DPI, layout="constrained", facecolor="white"
    )
    plot = picture.subplots()
    plot.set_xscale("log")
    plot.set_xlim(1 / axis.end / 1.06, axis.end * 1.06)
    plot.set_ylim(len(rows) - 0.5, -0.5)
    for at, row in enumerate(rows):
        is_more = is_more_better(row.row)
        if is_more is not None:
            better = (1, axis.end * 1.06) if is_more else (1 / axis.end / 1.06, 1)
            plot.fill_betweenx([at - 0.36, at + 0.36], *better, color=_BETTER, linewidth=0)
        if row.goal is not None:
            plot.plot([row.goal, row.goal], [at - 0.32, at + 0.32], color=_INK, linewidth=1.6)
        for target, ratio in row.ratios.items():
            runs = row.of_runs(target)
            plot.plot(runs, [at] * len(runs), "|", color=own[target].light, markersize=9, alpha=0.5)
            plot.plot(ratio, at, "o", color=own[target].light, markersize=8, markeredgecolor="white")
    ratios = ["  ".join(ratio_words(ratio) for ratio in row.ratios.values()) for row in rows]
    plot.axvline(1, color=_SOFT, linewidth=0.8)
    plot.set_yticks(range(len(rows)), [_label(row) for row in rows], **_STYLE)
    values = plot.secondary_yaxis("right")
    values.set_yticks(range(len(rows)), ratios, fontweight="bold", **_STYLE)
    plot.xaxis.set_major_locator(FixedLocator(axis.ticks()))
    plot.xaxis.set_minor_locator(NullLocator())
    plot.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: ratio_tick(ratio)))
    _plain(plot)
    values.spines["right"].set_visible(False)
    values.tick_params(length=0)
    others = " and ".join(name_of(target) for target in targets[1:])
    plot.set_title(
        f"{others} / {name_of(targets[0])}, medians; shaded: better; bars: goals", loc="left", **_STYLE
    )
    return picture


def _label(row: RatioRow) -> str:
    return f"{row.row.table.title}: {row.row.figure.title}"


# -- over time -----------------------------------------------------------------------------------------


def phase_plot(found: Sequence[Chart], title: str, targets: Sequence[str]) -> Picture:
    """The charts of a phase side by side, below them what its marks are."""
    own = colours(targets)
    marks = found[0].marks
    below, above = 0.45 + 0.2 * len(marks), 0.75
    width = _COLUMN * len(found)
    height = above + _ROW * max(len(chart.strips) for chart in found) + below
    picture = Picture(figsize=(width, height), dpi=_DPI, facecolor="white")
    for column, chart in enumerate(found):
        left = _COLUMN * column + 0.5
        picture.text(
            left / width, 1 - 0.5 / height, chart.title, color=_SOFT, fontsize=9.5, fontweight="bold"
        )
        for row, strip in enumerate(chart.strips):
            bottom = height - above - _ROW * (row + 1) + 0.2
            box = (left / width, bottom / height, (_COLUMN - 0.7) / width, (_ROW - 0.42) / height)
            plot = picture.add_axes(box)
            _draw(plot, strip, chart, own, is_last=row == len(chart.strips) - 1)
            if row == 0:
                _number(plot, chart)
    for at, mark in enumerate(reversed(marks)):
        picture.text(
            0.5 / width,
            (0.12 + 0.2 * at) / height,
            f"{mark.number}  {mark.words()}",
            color=_INK,
            fontsize=8.5,
        )
    picture.text(0.5 / width, 1 - 0.24 / height, title, color=_INK, fontsize=12)
    lines = {line.target for chart in found for strip in chart.strips for line in strip.lines}
    shown = [target for target in targets if target in lines]
    handles = [picture.axes[0].plot([], [], color=own[target].light, linewidth=3)[0] for target in shown]
    corner = (1 - 0.2 / width, 1 - 0.02 / height)
    picture.legend(
        handles, [name_of(target) for target in shown], loc="upper right", bbox_to_anchor=corner, ncols=len(shown),
        frameon=False, fontsize=9,
    )  # fmt: skip
    return picture


def _draw(plot: Axes, strip: Strip, chart: Chart, own: Mapping[str, Colour], *, is_last: bool) -> None:
    factor, scale = strip.unit.factor, strip.scale()
    xs = [x + chart.step_s / 2 for x in chart.xs]
    nan = float("nan")
    for line in strip.lines:
        colour = own[line.target].light
        middle, low, high = (
            [nan if value is None else value for value in values]
            for values in (line.middle, line.low, line.high)
        )
        plot.fill_between(xs, low, high, color=colour, alpha=0.16, linewidth=0)
        plot.plot(xs, middle, color=colour, linewidth=1.4, solid_capstyle="round")
    for mark in chart.marks:
        plot.axvline(mark.at_s, color=_MARK, linewidth=0.8, linestyle=(0, (3, 3)))
    if scale.is_log:
        plot.set_yscale("log")
    plot.set_ylim(scale.least, scale.most)
    plot.set_xlim(0, chart.end_s)
    plot.yaxis.set_major_locator(FixedLocator(scale.ticks))
    plot.yaxis.set_minor_locator(NullLocator())
    plot.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * factor:,.4g}"))
    ticks = time_ticks(chart.end_s)
    plot.set_xticks(ticks, [f"{tick:g} s" if tick == ticks[-1] else f"{tick:g}" for tick in ticks])
    plot.grid(axis="y", color=_RULE, linewidth=0.6)
    log = ", log" if scale.is_log else ""
    plot.set_title(f"{strip.name}, {strip.unit.name}{log}", loc="left", fontsize=8.5, color=_INK, pad=4)
    _plain(plot)
    plot.tick_params(labelbottom=is_last)


def _number(plot: Axes, chart: Chart) -> None:
    for mark in chart.marks:
        plot.annotate(
            str(mark.number), (mark.at_s, 1), xycoords=("data", "axes fraction"), ha="center", va="center",
            fontsize=7, color="white", bbox={"boxstyle": "circle,pad=0.2", "color": _MARK},
        )  # fmt: skip


def _plain(plot: Axes) -> None:
    for side in ("top", "right", "left"):
        plot.spines[side].set_visible(False)
    plot.spines["bottom"].set_color(_RULE)
    plot.tick_params(colors=_SOFT, labelsize=8, length=0)
    plot.set_axisbelow(True)

"""The pictures of the page as PNG, by matplotlib: for documents, which show no SVG of their own."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from PIL import Image

from ottla.bench.figures import Table, name_of
from ottla.bench.page.charts import MOST_DOTS, Chart, Strip
from ottla.bench.page.colours import Colour, colours
from ottla.bench.page.columns import Piece, columns, strip_count
from ottla.bench.page.percentiles import Percentiles, percentiles_of
from ottla.bench.page.ratios import RatioAxis, RatioRow, is_more_better, ratio_rows, ratio_tick, ratio_words
from ottla.bench.page.scales import time_ticks, time_words
from ottla.bench.page.series import Series, charts
from ottla.bench.report import Report

_DPI: Final = 120
#: The inches of a column, of a strip with its name, of a title, and of the space above all charts.
_COLUMN, _ROW, _HEAD, _ABOVE = 4.4, 1.2, 0.35, 0.4
_INK, _SOFT, _RULE, _BETTER, _MARK = "#1b1f24", "#5a6472", "#dfe3e8", "#e7f3ee", "#7a4fb5"
_STYLE: Final[Mapping[str, Any]] = {"color": _INK, "fontsize": 9}


def save_plots(report: Report, series: Series, folder: Path) -> list[Path]:
    """Write the overview of each section, and for each phase one picture of everything over time."""
    targets = list(report.targets)
    saved = []
    for number, section in enumerate(report.sections, start=1):
        if rows := ratio_rows(section, report.headlines, targets):
            name = "overview" if number == 1 else f"overview-{number}"
            plot = overview_plot({row.label: row for row in rows}, targets)
            saved.append(save_plot(plot, folder / f"{name}.png"))
    for number, (table, plot) in enumerate(phase_plots(report, series), start=1):
        name = re.sub(r"[^\w.-]+", "-", table.name)
        saved.append(save_plot(plot, folder / f"phase-{number}-{name}.png"))
    return saved


def phase_plots(
    report: Report, series: Series, *, most: int | None = None
) -> Iterator[tuple[Table, Picture]]:
    """Return the pictures of phases over time: of all, or of `most`, those with events before others."""
    targets = list(report.targets)
    found = [(table, charts(series, table.name, targets)) for table in report.sections[0].tables]
    found = [(table, its) for table, its in found if its]
    chosen = sorted(found, key=lambda each: not each[1][0].marks)[:most]
    for table, its in found:
        if any(table is each for each, _ in chosen):
            yield table, phase_plot(its, percentiles_of(table, targets), table.title, targets)


def save_plot(picture: Picture, path: Path) -> Path:
    """Save the picture as a PNG of 256 colours, which are enough, and a third of the bytes."""
    canvas = FigureCanvasAgg(picture)
    canvas.draw()
    image = Image.fromarray(numpy.asarray(canvas.buffer_rgba())).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


# -- ratios --------------------------------------------------------------------------------------------


def overview_plot(labelled: Mapping[str, RatioRow], targets: Sequence[str]) -> Picture:
    """Return the picture of the ratios of a result, with their goals."""
    rows = list(labelled.values())
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
    plot.set_yticks(range(len(rows)), list(labelled), **_STYLE)
    values = plot.secondary_yaxis("right")
    values.set_yticks(range(len(rows)), ratios, fontweight="bold", **_STYLE)
    plot.xaxis.set_major_locator(FixedLocator(axis.ticks()))
    plot.xaxis.set_minor_locator(NullLocator())
    plot.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: ratio_tick(ratio)))
    _style_axes(plot)
    plot.tick_params(axis="y", colors=_INK)
    values.spines["right"].set_visible(False)
    values.tick_params(length=0)
    others = [name_of(target) for target in targets[1:]]
    words = (
        f"{' and '.join(others)} / {name_of(targets[0])}, medians; shaded: better; black: goal; thin: runs"
    )
    plot.set_title(words, loc="left", **_STYLE)
    if len(others) > 1:
        keys = [Line2D([], [], color=own[target].light, marker="o", linewidth=0) for target in targets[1:]]
        picture.legend(keys, others, loc="outside lower right", ncols=len(keys), frameon=False, fontsize=9)
    return picture


# -- over time -----------------------------------------------------------------------------------------


def phase_plot(
    found: Sequence[Chart], percentiles: Sequence[Percentiles], title: str, targets: Sequence[str]
) -> Picture:
    """Return the charts and percentiles of a phase in columns, with the words for its marks at the bottom."""
    own = colours(targets)
    marks, pieces = found[0].marks, columns(found, percentiles)
    height = max(sum(_height(piece) for piece in column) for column in pieces)
    sheet = _Sheet(columns=len(pieces), height=_ABOVE + height + 0.35 + 0.2 * len(marks))
    for at, column in enumerate(pieces):
        top = _ABOVE
        for piece in column:
            _draw_piece(sheet, at, top, piece, own)
            top += _height(piece)
    sheet.write_lines([f"{mark.number}  {mark.words()}" for mark in marks])
    lines = {line.target for chart in found for strip in chart.strips for line in strip.lines}
    sheet.entitle(title, {name_of(target): own[target].light for target in targets if target in lines})
    return sheet.picture


def _height(piece: Piece) -> float:
    return strip_count(piece) * _ROW + (_HEAD if isinstance(piece, Chart) else 0)


def _draw_piece(sheet: "_Sheet", column: int, top: float, piece: Piece, own: Mapping[str, Colour]) -> None:
    if not isinstance(piece, Chart):
        _draw_percentiles(sheet.plot(column, top, strip_count(piece)), piece, own)
        return
    sheet.write(column, top, piece.title)
    for row, strip in enumerate(piece.strips):
        plot = sheet.plot(column, top + _HEAD + row * _ROW, 1)
        _draw(plot, strip, piece, own, is_last=row == len(piece.strips) - 1)
        if row == 0:
            _number(plot, piece)


class _Sheet:
    """A picture with columns of plots, in inches from its upper left corner."""

    def __init__(self, *, columns: int, height: float) -> None:
        self._width, self._height = _COLUMN * max(columns, 2), height
        self.picture = Picture(figsize=(self._width, self._height), dpi=_DPI, facecolor="white")

    def plot(self, column: int, top: float, rows: int) -> Axes:
        """Add an empty plot, as high as some strips."""
        plot: Axes = self.picture.add_axes(
            (
                (_COLUMN * column + 0.5) / self._width,
                1 - (top + _ROW * rows - 0.2) / self._height,
                (_COLUMN - 0.7) / self._width,
                (_ROW * rows - 0.42) / self._height,
            )
        )
        return plot

    def write(self, column: int, top: float, words: str) -> None:
        """Write the title of a chart."""
        self._text(_COLUMN * column + 0.5, self._height - top - 0.2, words, _SOFT, 9.5, weight="bold")

    def write_lines(self, lines: Sequence[str]) -> None:
        """Write lines below everything."""
        for at, words in enumerate(reversed(lines)):
            self._text(0.5, 0.12 + 0.2 * at, words, _INK, 8.5)

    def entitle(self, title: str, keys: Mapping[str, str]) -> None:
        """Write the first line: the title, and the names of colours."""
        self._text(0.5, self._height - 0.24, title, _INK, 12)
        handles = [Line2D([], [], color=colour, linewidth=3) for colour in keys.values()]
        corner = (1 - 0.2 / self._width, 1 - 0.02 / self._height)
        self.picture.legend(
            handles,
            list(keys),
            loc="upper right",
            bbox_to_anchor=corner,
            ncols=len(keys),
            frameon=False,
            fontsize=9,
        )

    def _text(
        self, left: float, bottom: float, words: str, colour: str, size: float, *, weight: str = "normal"
    ) -> None:
        at = (left / self._width, bottom / self._height)
        self.picture.text(*at, words, color=colour, fontsize=size, fontweight=weight)


def _draw_percentiles(plot: Axes, percentiles: Percentiles, own: Mapping[str, Colour]) -> None:
    scale = percentiles.scale()
    for at, row in enumerate(percentiles.rows.values()):
        medians = [
            (target, value) for target in percentiles.targets if (value := row.median(target)) is not None
        ]
        plot.plot([value for _, value in medians], [at] * len(medians), color=_RULE, linewidth=1.5, zorder=1)
        for target, value in medians:
            runs = row.values(target)
            plot.plot(runs, [at] * len(runs), "|", color=own[target].light, markersize=8, alpha=0.5)
            plot.plot(value, at, "o", color=own[target].light, markersize=7, markeredgecolor="white")
    plot.set_xscale("log")
    plot.set_xlim(scale.least, scale.most)
    plot.set_ylim(len(percentiles.rows) - 0.5, -0.5)
    plot.set_xticks(scale.ticks, [time_words(tick) for tick in scale.ticks])
    plot.xaxis.set_minor_locator(NullLocator())
    plot.set_yticks(range(len(percentiles.rows)), list(percentiles.rows))
    plot.grid(axis="x", color=_RULE, linewidth=0.6)
    plot.set_title(percentiles.title, loc="left", fontsize=8.5, color=_INK, pad=4)
    _style_axes(plot)


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
        style = {"marker": "o", "markersize": 3.5} if len(xs) <= MOST_DOTS else {}
        plot.plot(xs, middle, color=colour, linewidth=1.4, solid_capstyle="round", **style)
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
    _style_axes(plot)
    plot.tick_params(labelbottom=is_last)


def _number(plot: Axes, chart: Chart) -> None:
    for mark in chart.marks:
        plot.annotate(
            str(mark.number), (mark.at_s, 1), xycoords=("data", "axes fraction"), ha="center", va="center",
            fontsize=7, color="white", bbox={"boxstyle": "circle,pad=0.2", "color": _MARK},
        )  # fmt: skip


def _style_axes(plot: Axes) -> None:
    for side in ("top", "right", "left"):
        plot.spines[side].set_visible(False)
    plot.spines["bottom"].set_color(_RULE)
    plot.tick_params(colors=_SOFT, labelsize=8, length=0)
    plot.set_axisbelow(True)

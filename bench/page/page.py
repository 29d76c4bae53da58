"""The page of a result: one HTML file with everything in it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from ottla.bench.figures import KAFKA, Table, name_of
from ottla.bench.page.charts import Chart
from ottla.bench.page.colours import Palette
from ottla.bench.page.columns import Piece, columns
from ottla.bench.page.markup import Markup, join, prose, tag
from ottla.bench.page.overview import overview_html
from ottla.bench.page.percentiles import Percentiles, percentiles_html, percentiles_of
from ottla.bench.page.series import Series, charts
from ottla.bench.page.svg import chart_html, marks_html
from ottla.bench.page.tables import table_html
from ottla.bench.report import Report, Section

_HERE: Final = Path(__file__).parent
NO_SERIES: Final = Series(seconds=(), samples=(), events=())


def page(report: Report, series: Series = NO_SERIES) -> str:
    """Return the whole document."""
    palette = Palette(list(report.targets))
    head = tag(
        "head",
        Markup('<meta charset="utf-8">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{report.title or report.program}: {' and '.join(map(name_of, palette.targets))}"),
        tag("style", Markup(_file("page.css")), palette.style()),
    )
    body = tag(
        "body",
        _header(report, palette),
        _contents(report),
        tag("main", *(_section(report, at, series, palette) for at in range(len(report.sections)))),
        _measured(report),
        tag("script", Markup(_file("page.js"))),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _file(name: str) -> str:
    return (_HERE / name).read_text()


def _header(report: Report, palette: Palette) -> Markup:
    environment = report.environment
    runs = f"medians of {report.runs} interleaved runs" if report.runs > 1 else "one run"
    return tag(
        "header",
        tag("h1", report.title or report.program),
        *([tag("p", prose(report.about), class_="about")] if report.about else []),
        tag(
            "ul",
            *(
                tag("li", tag("i"), " ", name_of(target), class_=f"key {palette.css_class(target)}")
                for target in palette.targets
            ),
            tag("li", environment.date),
            tag("li", f"commit {environment.commit}{', changed' if environment.is_changed else ''}"),
            tag("li", runs),
            *([tag("li", "stopped before its last run")] if report.is_partial else []),
            class_="facts",
        ),
    )


def _contents(report: Report) -> Markup:
    """Return links to the phases, where there are more than fit on a screen."""
    tables = [table for section in report.sections[:1] for table in section.tables]
    if len(tables) < 4:
        return Markup()
    links = [tag("a", table.title, href=f"#{_anchor(0, at)}") for at, table in enumerate(tables)]
    return tag("nav", *links, aria_label="phases")


def _anchor(section: int, table: int) -> str:
    return f"phase-{section}-{table}"


def _section(report: Report, at: int, series: Series, palette: Palette) -> Markup:
    section = report.sections[at]
    return tag(
        "section",
        *([tag("h2", section.title)] if len(report.sections) > 1 else []),
        overview_html(report, section, palette),
        *(
            _table(table, series, palette, anchor=_anchor(at, number))
            for number, table in enumerate(section.tables)
        ),
    )


def _table(table: Table, series: Series, palette: Palette, *, anchor: str) -> Markup:
    """Return a phase: its events, its charts, its percentiles, all its figures."""
    found = charts(series, table.name, palette.targets)
    percentiles = percentiles_of(table, palette.targets)
    figures = table_html(table, palette)
    return tag(
        "section",
        tag("h3", table.title),
        *([tag("p", prose(table.note), class_="note")] if table.note else []),
        *(
            _with_charts(found, percentiles, figures, palette)
            if found
            else [_beside(figures, percentiles, palette)]
        ),
        class_="phase",
        id=anchor,
    )


def _with_charts(
    found: Sequence[Chart], percentiles: Sequence[Percentiles], figures: Markup, palette: Palette
) -> Iterator[Markup]:
    yield marks_html(found[0].marks)
    yield tag(
        "div",
        *(
            tag("div", *(_piece(piece, palette) for piece in column), class_="column")
            for column in columns(found, percentiles)
        ),
        class_="pictures",
    )
    yield figures


def _piece(piece: Piece, palette: Palette) -> Markup:
    return chart_html(piece, palette) if isinstance(piece, Chart) else percentiles_html(piece, palette)


def _beside(figures: Markup, percentiles: Sequence[Percentiles], palette: Palette) -> Markup:
    if not percentiles:
        return figures
    column = tag("div", *(percentiles_html(each, palette) for each in percentiles), class_="column")
    return tag("div", tag("div", figures), column, class_="beside")


def _measured(report: Report) -> Markup:
    """Return the conditions of the measurement: machine, versions, settings, warm-up."""
    environment = report.environment
    each = f", about {report.seconds:g} s for each load" if report.seconds is not None else ""
    rows = [
        (
            "machine",
            f"{environment.cpu_count} CPUs, Linux {environment.kernel}, load {environment.load_average:.1f} before",
        ),
        ("Python", f"{environment.python}, {environment.python_words()}"),
        ("Java", environment.java),
        (
            "code",
            f"commit {environment.commit}{' with uncommitted changes' if environment.is_changed else ''}",
        ),
        *((name_of(target), version) for target, version in _versions(report).items()),
        ("time", f"{report.duration_s / 60:.0f} minutes{each}"),
    ]
    return tag(
        "footer",
        tag("h2", "How it was measured"),
        *([tag("pre", report.command, class_="command")] if report.command else []),
        tag("dl", *(join(tag("dt", name), tag("dd", words)) for name, words in rows)),
        *(_settings(section) for section in report.sections),
        *_errors(report),
    )


def _versions(report: Report) -> Mapping[str, str]:
    """Return the version of each target; results of the older programs have Kafka's beside the machine."""
    return {
        target: words or report.environment.kafka
        for target, words in report.targets.items()
        if words or target == KAFKA
    }


def _errors(report: Report) -> Iterator[Markup]:
    if report.errors:
        yield tag("h3", "Errors")
        yield tag("ul", *(tag("li", error) for error in report.errors), class_="errors")


def _settings(section: Section) -> Markup:
    properties = "\n".join(f"{key}={value}" for key, value in section.properties.items())
    return join(
        tag("h3", f"Settings: {section.title} ({section.file_system})"),
        tag("pre", properties or "Kafka's defaults"),
        *(tag("p", words, class_="note") for words in _warm_ups(section)),
    )


def _warm_ups(section: Section) -> Sequence[str]:
    return [
        f"Warm-up of {name_of(server)}, CPU of each round: {', '.join(f'{cost:.3g}' for cost in warm_up.costs)}"
        f"{'' if warm_up.is_steady else '; it still fell at the end'}."
        for server, warm_up in section.warm_ups.items()
    ]

"""Files of a page: it is read from a result folder or a summary alone, and written with its pictures."""

import json
from pathlib import Path
from typing import Any, Final

from pyarrow import parquet

from ottla.bench.page.page import page
from ottla.bench.page.plots import save_plots
from ottla.bench.page.series import DataRow, Series
from ottla.bench.report import Report, from_json

SUMMARY: Final = "summary.json"
PAGE: Final = "report.html"


class NotAResult(Exception):
    """A path is no result; the sentence gives the reason."""


def read_result(path: Path) -> tuple[Report, Series]:
    """Read a result folder; or the JSON of a result, which has no series. Raises NotAResult."""
    summary = path / SUMMARY if path.is_dir() else path
    if not summary.exists():
        raise NotAResult(f"{path} is no result: there is no {summary}.")
    try:
        report = from_json(summary.read_text())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotAResult(f"{summary} is no result of a benchmark: {error!r}.") from error
    if report is None:
        raise NotAResult(f"{summary} has a format that this version does not read.")
    folder = path if path.is_dir() else None
    return report, Series(
        seconds=_rows(folder, "seconds.parquet"),
        samples=_rows(folder, "samples.parquet"),
        events=_events(folder),
    )


def _rows(folder: Path | None, name: str) -> list[DataRow]:
    """Return the rows of a file; none where it is missing: a result that was stopped early has only some files."""
    if folder is None or not (folder / name).exists():
        return []
    rows: list[DataRow] = parquet.read_table(folder / name).to_pylist()
    return rows


def _events(folder: Path | None) -> list[dict[str, Any]]:
    if folder is None or not (folder / "events.json").exists():
        return []
    events: list[dict[str, Any]] = json.loads((folder / "events.json").read_text())
    return events


def write_page(folder: Path) -> Path:
    """Write the page and the pictures of a result folder into it; return the path of the page. Raises NotAResult."""
    return write_pages(folder, out=folder / PAGE)


def write_pages(result: Path, *, out: Path) -> Path:
    """Write the page of any result to `out`, and its pictures beside it. Raises NotAResult."""
    report, series = read_result(result)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page(report, series))
    save_plots(report, series, out.parent)
    return out

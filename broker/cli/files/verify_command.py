"""`ottla verify-log DIR`: verifies the files of one log, or of all logs of a data folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import click

from ottla.broker.cli.files.dump import REMOTE_SNAPSHOTS
from ottla.broker.cli.output import standard_output, table
from ottla.remote.topic_metadata import snapshot
from ottla.storage.files import Files
from ottla.storage.verify import Bound, Caches, Finding, PartitionReport, Report, compare, inspect


def _snapshot_problem(data: bytes) -> str | None:
    try:
        snapshot.verified(data)
    except snapshot.CorruptSnapshot as error:
        return str(error)
    return None


#: The files of the remote tier in the folder of a log.
CACHES: Final[Caches] = MappingProxyType(dict.fromkeys(REMOTE_SNAPSHOTS, _snapshot_problem))


@click.command("verify-log", no_args_is_help=True)
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--deep", "is_deep", is_flag=True, help="Read the records, too, not only their batches.")
@click.option(
    "--compacted/--not-compacted",
    "is_compacted",
    default=None,
    help="Whether offsets may be missing; by default this is detected for each log.",
)
@click.option(
    "--compare",
    "others",
    metavar="DIR",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Compare the bytes with those of replicas in this folder instead; repeat it for all folders of all brokers.",
)
@click.option(
    "--up-to",
    "up_to",
    type=click.Choice([bound.value for bound in Bound]),
    default=Bound.LOG_END.value,
    help="The end of a comparison: the lower log end, or the lower high watermark in the folders' checkpoints, behind "
    "which replicas of brokers that were killed may differ.",
)
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object per line.")
def verify_log(
    directory: Path,
    *,
    is_deep: bool,
    is_compacted: bool | None,
    others: tuple[Path, ...],
    up_to: str,
    is_json: bool,
) -> None:
    """Verify DIR: one log's folder, or a data folder with all its logs.

    Nothing is changed. Stop a running broker first: an unfinished write looks like corruption.
    The exit status is 1 if there are errors; notes do not count.
    """
    try:
        if others:
            report = compare(directory, *others, files=Files(), up_to=Bound(up_to))
        else:
            report = inspect(directory, Files(), is_compacted=is_compacted, is_deep=is_deep, caches=CACHES)
    except OSError as error:
        raise click.ClickException(f"{error.filename or directory}: {error.strerror}") from error
    out = standard_output()
    lines = _json_lines(report) if is_json else _text_lines(report)
    for line in lines:
        out.write(line + "\n")
    if not report.is_sound:
        raise click.exceptions.Exit(1)


def _json_lines(report: Report) -> list[str]:
    rows: list[dict[str, object]] = [
        {
            "kind": "log",
            "folder": str(each.directory),
            "segments": each.segments_count,
            "batches": each.batches_count,
            "bytes": each.size_bytes,
            "first_offset": each.first_offset,
            "end_offset": each.end_offset,
            "errors": each.errors_count,
        }
        for each in report.partitions
    ]
    rows += [
        {
            "kind": finding.severity.value,
            "file": str(finding.path),
            "offset": finding.offset,
            "position": finding.position,
            "message": finding.message,
        }
        for finding in report.findings
    ]
    return [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]


def _text_lines(report: Report) -> list[str]:
    lines = table(
        ("log", "segments", "batches", "bytes", "offsets", "errors"),
        [_cells(each) for each in report.partitions],
        words=1,
    )
    errors = [finding for finding in report.findings if finding.is_error]
    notes = [finding for finding in report.findings if not finding.is_error]
    lines += ["", *(f"error: {finding}" for finding in errors)] if errors else []
    lines += ["", *(f"note: {finding}" for finding in notes)] if notes else []
    return [*lines, "", _summary(report, errors, notes)]


def _cells(report: PartitionReport) -> tuple[str, ...]:
    first = report.end_offset if report.first_offset is None else report.first_offset
    return (
        report.directory.resolve().name,
        str(report.segments_count),
        str(report.batches_count),
        str(report.size_bytes),
        f"[{first}, {report.end_offset})",
        str(report.errors_count),
    )


def _summary(report: Report, errors: Sequence[Finding], notes: Sequence[Finding]) -> str:
    count = len(report.partitions)
    size = sum(each.size_bytes for each in report.partitions)
    verdict = f"{len(errors)} errors" if errors else "nothing is wrong"
    return f"{count} logs, {size} bytes: {verdict}, {len(notes)} notes"

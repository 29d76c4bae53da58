"""Two replicas of a log, batch by batch: below the lower end they must be the same bytes.

Segments need not begin at the same offsets, nor the logs: what only one of them has is left out.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from protocol.records.batch import BatchHeader
from storage import file_names
from storage.files import Files
from storage.verify.data_folder import is_partition_folder, log_folders
from storage.verify.findings import Findings, PartitionReport, Report
from storage.verify.log_file import LogFile


class _Batch(NamedTuple):
    header: BatchHeader
    data: memoryview
    log: Path
    position: int


def compare(directory: Path, other: Path, files: Files) -> Report:
    """Two logs' folders, or all logs that two data folders both have. A log that only one has is noted."""
    if is_partition_folder(directory, files):
        return Report(partitions=[compare_logs(directory, other, files)])
    findings = Findings()
    names, other_names = (log_folders(folder, files, Findings()) for folder in (directory, other))
    for folder, only in (
        (directory, set(names).difference(other_names)),
        (other, set(other_names).difference(names)),
    ):
        for name in sorted(only):
            findings.note(folder / name, "only one of the folders has this log")
    both = [name for name in names if name in other_names]
    return Report(
        partitions=[compare_logs(directory / name, other / name, files) for name in both],
        folder_findings=findings.all,
    )


def compare_logs(directory: Path, other: Path, files: Files) -> PartitionReport:
    """The first difference of two logs, if there is one. `batches_count` are the equal ones."""
    findings = Findings()
    equal_count = size_bytes = 0
    first_offset: int | None = None
    end_offset = 0
    mine, theirs = _batches(directory, files, findings), _batches(other, files, findings)
    one, two = next(mine, None), next(theirs, None)
    while one is not None and two is not None:
        # Only before the later one of the two beginnings, or where compaction has left other batches.
        if one.header.next_offset <= two.header.base_offset and not equal_count:
            one = next(mine, None)
        elif two.header.next_offset <= one.header.base_offset and not equal_count:
            two = next(theirs, None)
        elif one.data == two.data:
            first_offset = one.header.base_offset if first_offset is None else first_offset
            equal_count += 1
            size_bytes += len(one.data)
            end_offset = one.header.next_offset
            one, two = next(mine, None), next(theirs, None)
        else:
            findings.error(
                one.log,
                f"differs from {two.log} at byte {two.position}, offset {two.header.base_offset}: "
                f"{_difference(one, two)}",
                position=one.position,
                offset=one.header.base_offset,
            )
            break
    return PartitionReport(
        directory=directory,
        findings=findings.all,
        batches_count=equal_count,
        size_bytes=size_bytes,
        first_offset=first_offset,
        end_offset=end_offset,
    )


def _batches(directory: Path, files: Files, findings: Findings) -> Iterator[_Batch]:
    for name in files.list(directory):
        if not name.endswith(file_names.LOG) or file_names.offset_of(name) is None:
            continue
        log = LogFile(directory / name, files)
        for header, position, data in log.batches():
            yield _Batch(header, data, log.path, position)
        if log.stopped is not None and not log.is_preallocated:
            findings.error(log.path, log.stopped, position=log.end_position)


def _difference(one: _Batch, two: _Batch) -> str:
    """What differs in two batches: fields of the header, else the records."""
    fields = [
        f"{name} {mine} and {theirs}"
        for name, mine, theirs in zip(BatchHeader._fields, one.header, two.header, strict=True)
        if mine != theirs
    ]
    return ", ".join(fields) or "the records"

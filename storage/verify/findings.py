"""Findings and reports of a verification."""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path


class Severity(Enum):
    """Whether a finding is an error, or information only."""

    NOTE = "note"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A finding about one file or folder."""

    path: Path
    message: str
    #: Byte position in the file, if the finding has one.
    position: int | None = None
    #: Offset in the log, if the finding has one.
    offset: int | None = None
    severity: Severity = Severity.ERROR

    @property
    def is_error(self) -> bool:
        """Whether the files contradict themselves or each other."""
        return self.severity is Severity.ERROR

    def __str__(self) -> str:
        where = "".join(
            f", {name} {value}"
            for name, value in (("offset", self.offset), ("byte", self.position))
            if value is not None
        )
        return f"{self.path}{where}: {self.message}"


class Findings:
    """Collects findings; passed to every check."""

    def __init__(self) -> None:
        self.all: list[Finding] = []

    def error(
        self, path: Path, message: str, *, position: int | None = None, offset: int | None = None
    ) -> None:
        """Add an error of the file `path`, at a position in it or at an offset of the log."""
        self.all.append(Finding(path=path, message=message, position=position, offset=offset))

    def note(self, path: Path, message: str, *, position: int | None = None) -> None:
        """Add a note: a valid state that the operator may want to know of."""
        self.all.append(Finding(path=path, message=message, position=position, severity=Severity.NOTE))


@dataclass(slots=True, kw_only=True)
class PartitionReport:
    """The report of one log's folder: counts of what was read, and the findings."""

    directory: Path
    findings: list[Finding] = field(default_factory=list)
    segments_count: int = 0
    batches_count: int = 0
    #: Size of all segments' `.log` files.
    size_bytes: int = 0
    #: Base offset of the first segment; None without any.
    first_offset: int | None = None
    #: Exclusive: the offset after the last readable batch.
    end_offset: int = 0

    @property
    def errors_count(self) -> int:
        """The number of findings that are errors."""
        return sum(finding.is_error for finding in self.findings)


@dataclass(slots=True, kw_only=True)
class Report:
    """The report of a verification or comparison."""

    partitions: list[PartitionReport] = field(default_factory=list)
    #: Findings about files that belong to no single log: checkpoints, meta.properties.
    folder_findings: list[Finding] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """All findings, in the order of the folders."""
        return [*self.folder_findings, *(each for part in self.partitions for each in part.findings)]

    @property
    def is_sound(self) -> bool:
        """Whether no finding is an error."""
        return not any(finding.is_error for finding in self.findings)

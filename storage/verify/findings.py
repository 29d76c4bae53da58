"""What a verification has found."""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path


class Severity(Enum):
    """Whether something is wrong, or only worth knowing."""

    NOTE = "note"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing about one file or folder."""

    path: Path
    message: str
    #: Byte in the file, where that says something.
    position: int | None = None
    #: In the log, where that says something.
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
    """Collects findings: what every check is given."""

    def __init__(self) -> None:
        self.all: list[Finding] = []

    def error(
        self, path: Path, message: str, *, position: int | None = None, offset: int | None = None
    ) -> None:
        """Something is wrong."""
        self.all.append(Finding(path=path, message=message, position=position, offset=offset))

    def note(self, path: Path, message: str, *, position: int | None = None) -> None:
        """Something is as it may be, and yet worth knowing."""
        self.all.append(Finding(path=path, message=message, position=position, severity=Severity.NOTE))


@dataclass(slots=True, kw_only=True)
class PartitionReport:
    """One log's folder: what was read, and what was found."""

    directory: Path
    findings: list[Finding] = field(default_factory=list)
    segments_count: int = 0
    batches_count: int = 0
    #: Of all segments' logs.
    size_bytes: int = 0
    #: Base of the first segment; None without any.
    first_offset: int | None = None
    #: Exclusive: behind the last batch that can be read.
    end_offset: int = 0

    @property
    def errors_count(self) -> int:
        """How many findings are errors."""
        return sum(finding.is_error for finding in self.findings)


@dataclass(slots=True, kw_only=True)
class Report:
    """All that was verified."""

    partitions: list[PartitionReport] = field(default_factory=list)
    #: What belongs to no single log: checkpoints, meta.properties.
    folder_findings: list[Finding] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """Everything that was found, in the order of the folders."""
        return [*self.folder_findings, *(each for part in self.partitions for each in part.findings)]

    @property
    def is_sound(self) -> bool:
        """Whether no finding is an error."""
        return not any(finding.is_error for finding in self.findings)

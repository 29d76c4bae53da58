"""Read-only verification of log directories: do a log's files agree with its batches, and replicas with each other?

    inspect(directory, files)            a log's folder or a data folder -> Report, with counts of what was read
    verify(directory, files)             the same -> its findings only
    compare(*directories, files=files)   replicas: the same bytes up to the lower log end, or high watermark?

| what | is compared with |
|---|---|
| batches | their CRC, each other (offsets, leader epochs), the segment's name |
| `.index`, `.timeindex` | the batches they point at; a closed segment's last entry: its largest timestamp |
| `.txnindex`, `.snapshot` | a replay of the producers, as far as the log has their batches |
| `leader-epoch-checkpoint` | the epochs in the batches |
| the folder's checkpoints | the logs' ends |
| `partition.metadata` | other partitions of the topic, other topics, the other replicas |
| `quorum-state` | the epochs of the metadata log and its snapshots |
| `*.checkpoint` | their own format; the start of the metadata log |
| `meta.properties` | their own format; the cluster id of other replicas |
| `.kafka_cleanshutdown` | their own format |

Files of other rooms in a log's folder, which can be lost, are verified by the checks that the caller passes
(`Caches`). Files that are left over from deletions and compactions are notes, not errors. Nothing is repaired: opening
a log does that (`ottla.storage.recovery`). A log that is being written may be read in the middle of a write.
"""

from pathlib import Path

from ottla.storage.files import Files
from ottla.storage.verify.compare import Bound, compare
from ottla.storage.verify.data_folder import inspect
from ottla.storage.verify.findings import Finding, PartitionReport, Report, Severity
from ottla.storage.verify.partition import Caches

__all__ = [
    "Bound",
    "Caches",
    "Finding",
    "PartitionReport",
    "Report",
    "Severity",
    "compare",
    "inspect",
    "verify",
]


def verify(directory: Path, files: Files, *, is_compacted: bool | None = None) -> list[Finding]:
    """All findings about a log's folder, or a data folder; see `inspect`."""
    return inspect(directory, files, is_compacted=is_compacted).findings

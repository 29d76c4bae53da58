"""Reads all finished copies from the store, and checks each batch of them: `ottla tier verify --data`."""

from ottla.broker.cli.tier.comparison import Finding
from ottla.broker.cli.tier.progress import Progress
from ottla.protocol.kafka_uuid import to_text
from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.checked_copies import problem_of
from ottla.remote.known_copies import KnownCopies
from ottla.remote.storage_manager import RemoteStorageManager


def damaged_copies(storage: RemoteStorageManager, known: KnownCopies, progress: Progress) -> list[Finding]:
    """The finished copies of which a batch is damaged, or that cannot be read. [any thread]"""
    copies = list(known.in_state(RemoteLogSegmentState.COPY_SEGMENT_FINISHED))
    found, read_bytes = [], 0
    with progress.measuring("batches", sum(each.segment_size_bytes for each in copies)) as done:
        for copy in copies:
            if (problem := problem_of(storage, copy)) is not None:
                offsets = f"[{copy.start_offset}, {copy.end_offset})"
                message = f"the copy {to_text(copy.segment_id.id)} of {offsets} cannot be read: {problem}"
                found.append(Finding(copy.partition, message, is_error=True))
            read_bytes += copy.segment_size_bytes
            done(read_bytes)
    return found

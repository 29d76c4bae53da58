"""The state of the remote tier for a trace: the copies that the metadata name, and the objects in the store."""

from collections.abc import Callable, Iterable

from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from ottla.storage.file_names import LOG
from ottla.stories.trace import Copy, Tier


def tier_of(
    copies: Iterable[RemoteLogSegmentMetadata],
    *,
    number_of: Callable[[RemoteLogSegmentId], int],
    name_of: Callable[[int], str],
    objects: Iterable[str],
    is_answering: bool,
) -> Tier:
    """Return the remote tier; `number_of` and `name_of` return how the story names copies and brokers."""
    rows = list(copies)
    finished = [row for row in rows if row.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED]
    return Tier(
        end_offset=max((row.end_offset for row in finished), default=0),
        copies=[
            Copy(
                number=number_of(row.segment_id),
                start_offset=row.start_offset,
                end_offset=row.end_offset,
                state=row.state.name,
                epochs=[(epoch, start) for epoch, start in row.leader_epochs],
                bytes=row.segment_size_bytes,
                broker=name_of(row.broker_id),
            )
            for row in rows
        ],
        objects=sorted(key for key in objects if key.endswith(LOG)),
        is_answering=is_answering,
    )

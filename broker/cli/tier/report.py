"""Output of the `ottla tier` commands: lines of text, or JSON objects.

`ottla tier ls` draws a partition's log in both tiers, and a table of its copies:

    orders-0   [0, 4711)   leader 1, epoch 3
      remote  ██████████████████▒▒▒▒                [0, 3000)    3 of 4 copies, 3.0 MiB
      local             ████████████████████████    [1000, 4711)
"""

from collections.abc import Iterator, Sequence
from typing import Final

from ottla.broker.cli.output import Row, as_json, table, time_text
from ottla.broker.cli.tier.comparison import Finding, LogRange, Orphan, orphans
from ottla.broker.cli.tier.inspection import Inspection
from ottla.broker.cli.tier.listing import Listing
from ottla.broker.reports.words import size_text
from ottla.protocol.kafka_uuid import to_text
from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.protocol.types import TopicPartition
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.topic_metadata.topic import TOPIC


def listing_lines(listing: Listing, *, is_json: bool, has_table: bool) -> Iterator[str]:
    """A partition of `ls`: a picture, or a row for each copy."""
    if is_json:
        for copy in listing.copies:
            yield as_json({"kind": "copy", "partition": str(listing.topic_partition), **_copy_row(copy)})
        return
    if listing.leader is None or listing.log is None:
        yield f"{listing.topic_partition}  no leader, {len(listing.copies)} copies"
    else:
        leader = f"leader {listing.leader.node_id}, epoch {listing.leader.epoch}"
        yield from picture(
            listing.topic_partition, listing.log, listing.copies, leader=leader, has_table=has_table
        )
    yield ""


def verification_lines(seen: Inspection, found: Sequence[Finding], *, is_json: bool) -> Iterator[str]:
    """The outcome of `verify`: errors, notes, and one line that sums them up."""
    lost = list(orphans(seen.known, seen.stored, seen.partitions, seen.logs))
    yield from _findings_as_json(seen, found, lost) if is_json else _findings_as_text(seen, found, lost)


def orphan_line(orphan: Orphan, *, is_deleted: bool, is_json: bool) -> str:
    """An orphan, which may have been deleted."""
    if is_json:
        return as_json({**_orphan_row(orphan), "deleted": is_deleted})
    return ("deleted: " if is_deleted else "") + _orphan_text(orphan)


def copy_line(copy: RemoteLogSegmentMetadata) -> str:
    """A copy by its offsets, epochs and size."""
    epochs = " ".join(f"e{each.epoch}@{each.start_offset}" for each in copy.leader_epochs)
    return (
        f"{copy.partition.topic_partition} {to_text(copy.segment_id.id)} [{copy.start_offset}, {copy.end_offset}) "
        f"{epochs} {size_text(copy.segment_size_bytes)}"
    )


def _findings_as_json(seen: Inspection, found: Sequence[Finding], lost: Sequence[Orphan]) -> Iterator[str]:
    for each in found:
        yield as_json(
            {
                "kind": "error" if each.is_error else "note",
                "partition": str(each.partition.topic_partition),
                "topic_id": to_text(each.partition.topic_id),
                "message": each.message,
            }
        )
    for orphan in lost:
        yield as_json(_orphan_row(orphan))
    for foreign in seen.stored.foreign:
        yield as_json({"kind": "foreign", "key": foreign.key, "bytes": foreign.size_bytes})
    yield as_json(
        {
            "kind": "summary",
            "copies": len(seen.known.copies),
            "objects": seen.stored.objects_count,
            "bytes": seen.stored.size_bytes,
            "errors": sum(each.is_error for each in found),
            "orphans": len(lost),
        }
    )


def _findings_as_text(seen: Inspection, found: Sequence[Finding], lost: Sequence[Orphan]) -> Iterator[str]:
    for each in sorted(found, key=lambda each: (not each.is_error, str(each))):
        yield f"{'error' if each.is_error else 'note'}: {each}"
    for orphan in lost:
        yield f"note: {_orphan_text(orphan)}"
    for foreign in seen.stored.foreign:
        # Anyone who may write to the store has chosen the name: no control characters for the terminal.
        name = foreign.key if foreign.key.isprintable() else ascii(foreign.key)
        yield f"note: {name} is no object of a copy"
    if seen.known.unread_count:
        yield f"note: {seen.known.unread_count} records of {TOPIC} are of a newer version"
    if seen.known.removed_count:
        yield f"note: {seen.known.removed_count} records of {TOPIC} were removed from it: it may lack copies"
    errors = sum(each.is_error for each in found)
    yield (
        f"{len(seen.known.copies)} copies in the metadata; {seen.stored.objects_count} objects of "
        f"{len(seen.stored.segments)} copies, {size_text(seen.stored.size_bytes)}, in the store: "
        + (f"{errors} errors" if errors else "nothing is wrong")
    )


def _copy_row(copy: RemoteLogSegmentMetadata) -> Row:
    return {
        "id": to_text(copy.segment_id.id),
        "topic_id": to_text(copy.partition.topic_id),
        "start_offset": copy.start_offset,
        "end_offset": copy.end_offset,
        "leader_epochs": [list(each) for each in copy.leader_epochs],
        "bytes": copy.segment_size_bytes,
        "state": copy.state.name,
        "broker": copy.broker_id,
        "max_timestamp_ms": copy.max_timestamp_ms,
        "changed_ms": copy.event_timestamp_ms,
    }


def _orphan_row(orphan: Orphan) -> Row:
    segment = orphan.segment
    return {
        "kind": "orphan",
        "why": orphan.kind.value,
        "partition": str(segment.segment_id.partition.topic_partition),
        "topic_id": to_text(segment.segment_id.partition.topic_id),
        "id": to_text(segment.segment_id.id),
        "start_offset": segment.start_offset,
        "objects": len(segment.objects),
        "bytes": segment.size_bytes,
        "modified_ms": segment.modified_ms,
    }


def _orphan_text(orphan: Orphan) -> str:
    segment = orphan.segment
    return (
        f"{segment.segment_id.partition.topic_partition} {to_text(segment.segment_id.id)} from offset "
        f"{segment.start_offset}: {len(segment.objects)} objects, {size_text(segment.size_bytes)}, "
        f"written {time_text(segment.modified_ms)}: {orphan.kind.reason}"
    )


_FULL, _PART, _NONE = "█", "▒", " "
#: Characters for a log.
WIDTH: Final = 48
_FINISHED: Final = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_HEAD: Final = ("offsets", "epochs", "size", "state", "broker", "changed", "id")


def picture(
    topic_partition: TopicPartition,
    log: LogRange,
    copies: Sequence[RemoteLogSegmentMetadata],
    *,
    leader: str,
    has_table: bool,
) -> Iterator[str]:
    """Return the picture and the table as lines. A finished copy is drawn full, one in another state half."""
    finished = [copy for copy in copies if copy.state is _FINISHED]
    others = [copy for copy in copies if copy.state is not _FINISHED]
    start, end = log.log_start_offset, log.log_end_offset
    remote = bar(
        [(copy.start_offset, copy.end_offset) for copy in finished],
        start_offset=start,
        end_offset=end,
        half=[(copy.start_offset, copy.end_offset) for copy in others],
    )
    local = bar([(log.local_log_start_offset, end)], start_offset=start, end_offset=end)
    size = size_text(sum(copy.segment_size_bytes for copy in finished))
    count = f"{len(finished)} of {len(copies)} copies finished" if others else f"{len(copies)} copies"
    yield f"{topic_partition}  [{start}, {end})  {leader}"
    yield f"  remote  {remote}  {_range(finished)}  {count}, {size}"
    yield f"  local   {local}  [{log.local_log_start_offset}, {end})"
    if has_table and copies:
        yield ""
        yield from ("  " + line for line in table(_HEAD, [_cells(copy) for copy in copies]))


def bar(
    ranges: Sequence[tuple[int, int]],
    *,
    start_offset: int,
    end_offset: int,
    half: Sequence[tuple[int, int]] = (),
    width: int = WIDTH,
) -> str:
    """[start_offset, end_offset) as `width` characters: full where `ranges` have one, half where only `half` has one.

    >>> bar([(0, 50)], start_offset=0, end_offset=100, half=[(40, 75)], width=8)
    '████▒▒  '
    """
    cells = [_NONE] * width
    start, total = start_offset, end_offset - start_offset
    for character, each in ((_PART, half), (_FULL, ranges)):
        for first, last in each:
            first, last = max(first, start), min(last, end_offset)
            if first < last:
                begin = (first - start) * width // total
                stop = -((start - last) * width // total)
                cells[begin:stop] = character * (stop - begin)
    return "".join(cells)


def _range(copies: Sequence[RemoteLogSegmentMetadata]) -> str:
    if not copies:
        return "nothing"
    return f"[{min(copy.start_offset for copy in copies)}, {max(copy.end_offset for copy in copies)})"


def _cells(copy: RemoteLogSegmentMetadata) -> tuple[str, ...]:
    return (
        f"[{copy.start_offset}, {copy.end_offset})",
        " ".join(f"e{each.epoch}@{each.start_offset}" for each in copy.leader_epochs),
        size_text(copy.segment_size_bytes),
        copy.state.name,
        str(copy.broker_id),
        time_text(copy.event_timestamp_ms),
        to_text(copy.segment_id.id),
    )

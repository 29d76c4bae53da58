"""Output of the `ottla tier` commands: a line of text, or a JSON object."""

from collections.abc import Iterator, Sequence

from ottla.broker.cli.files.plain import Row, as_json
from ottla.broker.cli.files.readable import size_text, time_text
from ottla.broker.cli.tier.comparison import Finding, Orphan, orphans
from ottla.broker.cli.tier.listing import Listing
from ottla.broker.cli.tier.look import Look
from ottla.broker.cli.tier.picture import picture
from ottla.protocol.kafka_uuid import to_text
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.topic_metadata.topic import TOPIC


def of_listing(listing: Listing, *, is_json: bool, has_table: bool) -> Iterator[str]:
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


def of_findings(seen: Look, found: Sequence[Finding], *, is_json: bool) -> Iterator[str]:
    """The outcome of `verify`: errors, notes, and one line that sums them up."""
    lost = list(orphans(seen.known, seen.stored, seen.partitions, seen.logs))
    yield from _finding_rows(seen, found, lost) if is_json else _finding_lines(seen, found, lost)


def of_orphan(orphan: Orphan, *, is_deleted: bool, is_json: bool) -> str:
    """An orphan, which may have been deleted."""
    if is_json:
        return as_json({**_orphan_row(orphan), "deleted": is_deleted})
    return ("deleted: " if is_deleted else "") + _orphan_line(orphan)


def of_copy(copy: RemoteLogSegmentMetadata) -> str:
    """A copy by its offsets, epochs and size."""
    epochs = " ".join(f"e{each.epoch}@{each.start_offset}" for each in copy.leader_epochs)
    return (
        f"{copy.partition.topic_partition} {to_text(copy.segment_id.id)} [{copy.start_offset}, {copy.end_offset}) "
        f"{epochs} {size_text(copy.segment_size_bytes)}"
    )


def _finding_rows(seen: Look, found: Sequence[Finding], lost: Sequence[Orphan]) -> Iterator[str]:
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


def _finding_lines(seen: Look, found: Sequence[Finding], lost: Sequence[Orphan]) -> Iterator[str]:
    for each in sorted(found, key=lambda each: (not each.is_error, str(each))):
        yield f"{'error' if each.is_error else 'note'}: {each}"
    for orphan in lost:
        yield f"note: {_orphan_line(orphan)}"
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


def _orphan_line(orphan: Orphan) -> str:
    segment = orphan.segment
    return (
        f"{segment.segment_id.partition.topic_partition} {to_text(segment.segment_id.id)} from offset "
        f"{segment.start_offset}: {len(segment.objects)} objects, {size_text(segment.size_bytes)}, "
        f"written {time_text(segment.modified_ms)}: {orphan.kind.reason}"
    )

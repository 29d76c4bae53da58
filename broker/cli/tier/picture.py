"""A partition's log in both tiers, as a picture of characters and a table of its copies.

orders-0   [0, 4711)   leader 1, epoch 3
  remote  ██████████████████▒▒▒▒                [0, 3000)    3 of 4 copies, 3.0 MiB
  local             ████████████████████████    [1000, 4711)
"""

from collections.abc import Iterator, Sequence
from typing import Final

from ottla.broker.cli.files.readable import size_text, table, time_text
from ottla.broker.cli.tier.comparison import LogRange
from ottla.protocol.kafka_uuid import to_text
from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.protocol.types import TopicPartition
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata

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
    """The lines. A finished copy is drawn full, one in another state half."""
    finished = [copy for copy in copies if copy.state is _FINISHED]
    others = [copy for copy in copies if copy.state is not _FINISHED]
    start, end = log.log_start_offset, log.log_end_offset
    remote = bar([(copy.start_offset, copy.end_offset) for copy in finished], start, end,
                 half=[(copy.start_offset, copy.end_offset) for copy in others])  # fmt: skip
    local = bar([(log.local_log_start_offset, end)], start, end)
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
    start: int,
    end: int,
    *,
    half: Sequence[tuple[int, int]] = (),
    width: int = WIDTH,
) -> str:
    """[start, end) as `width` characters: full where `ranges` have an offset of it, half where only `half` has one.

    >>> bar([(0, 50)], 0, 100, half=[(40, 75)], width=8)
    '████▒▒  '
    """
    cells = [_NONE] * width
    total = end - start
    for character, each in ((_PART, half), (_FULL, ranges)):
        for first, last in each:
            first, last = max(first, start), min(last, end)
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

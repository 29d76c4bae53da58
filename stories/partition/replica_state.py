"""The state of a partition's replica for a trace: of a running broker from its log, of a stopped one from its disk."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ottla.broker.replicas.partition import Partition
from ottla.protocol.errors import KafkaError
from ottla.protocol.records.batch import batches
from ottla.protocol.records.record import records
from ottla.storage import leader_epoch_cache
from ottla.storage.file_names import LOG
from ottla.storage.log import Log
from ottla.stories.partition.faulty_files import FaultyFiles
from ottla.stories.trace import Belief, Cell, Replica

#: A record: (offset, leader epoch, value).
Content = tuple[int, int, str]
_NEVER_LED = -1


def contents_of(log: Log) -> list[Content]:
    """Return the records of a log's local segments from its log start offset on."""
    return [
        (record.offset, header.partition_leader_epoch, (record.value or b"").decode())
        for header, data in log.reader.records_since(log.local_log_start_offset)
        for record in records(data)
        if record.offset >= log.log_start_offset
    ]


def running(
    name: str,
    partition: Partition,
    *,
    rack: str | None,
    name_of: Callable[[int], str],
    files: FaultyFiles,
    directory: Path,
    following: str | None,
) -> Replica:
    """Return the replica of a broker that runs; `following`: the state of its follower, if it is one."""
    flushed = {(cell.offset, cell.epoch) for cell in _on_disk(files.flushed_contents(), directory)}
    log, leader = partition.log, partition.leader
    offsets = log.offsets
    isr = partition.isr if leader is None else sorted(leader.state.isr)
    is_assigned = partition.leader_epoch != _NEVER_LED and partition.leader_id is not None
    return Replica(
        name=name,
        state="leader" if partition.is_leader else "follower" if is_assigned else "unassigned",
        leader_epoch=partition.leader_epoch,
        isr=[name_of(each) for each in isr],
        rack=rack,
        log_start_offset=offsets.log_start_offset,
        local_log_start_offset=offsets.local_log_start_offset,
        high_watermark=offsets.high_watermark,
        last_stable_offset=offsets.last_stable_offset,
        log_end_offset=offsets.log_end_offset,
        cells=[
            Cell(offset=offset, epoch=epoch, value=value, flushed=(offset, epoch) in flushed)
            for offset, epoch, value in contents_of(log)
        ],
        epochs=[(epoch, start) for epoch, start in log.leader_epochs.entries],
        segments=[segment.base_offset for segment in log.segments],
        believes=Belief(
            leader=None if partition.leader_id is None else name_of(partition.leader_id),
            leader_epoch=partition.leader_epoch,
        ),
        following=None if partition.is_leader else following,
    )


def stopped(
    name: str, files: FaultyFiles, directory: Path, *, before: Replica | None, rack: str | None
) -> Replica:
    """Return the replica of a broker that does not run: the files on its disk; `before`: as it was last seen."""
    found = files.flushed_contents()  # a crash has flushed, or lost, everything
    cells = _on_disk(found, directory)
    segments = sorted(int(path.stem) for path in found if path.parent == directory and path.suffix == LOG)
    start = min(segments, default=0)
    end = cells[-1].offset + 1 if cells else max(segments, default=0)
    high_watermark = min(before.high_watermark, end) if before else 0
    checkpoint = found.get(directory / leader_epoch_cache.FILE_NAME, b"")
    return Replica(
        name=name,
        state="down",
        leader_epoch=before.leader_epoch if before else _NEVER_LED,
        isr=[],
        rack=rack,
        log_start_offset=min(before.log_start_offset, start) if before and segments else start,
        local_log_start_offset=start,
        high_watermark=max(high_watermark, start),
        last_stable_offset=max(high_watermark, start),
        log_end_offset=end,
        cells=cells,
        epochs=[(epoch, at) for epoch, at in leader_epoch_cache.decode(checkpoint)] if checkpoint else [],
        segments=segments,
        believes=None,
    )


def _on_disk(found: Mapping[Path, bytes], directory: Path) -> list[Cell]:
    """Return the records in the segments of a log's directory."""
    segments = sorted(path for path in found if path.parent == directory and path.suffix == LOG)
    return [cell for path in segments for cell in _cells(found[path])]


def _cells(data: bytes) -> Iterator[Cell]:
    with suppress(KafkaError, ValueError):  # a crash may have cut off the last batch
        for header, batch in batches(memoryview(data)):
            for record in records(batch):
                value = (record.value or b"").decode()
                yield Cell(
                    offset=record.offset, epoch=header.partition_leader_epoch, value=value, flushed=True
                )

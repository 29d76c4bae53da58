"""Bits that rot: in any file of a log or of its directory. Opening repairs all but the flushed part of a log.

That part is not checked, as in Kafka: readers check the CRC (consumers do), and `ottla verify-log` finds the damage.
What stands before the damage is kept, also of the log that is cut there; and a second recovery changes nothing.
"""

import os
from pathlib import Path

import pytest

from ottla.protocol.errors import CorruptMessage, OffsetOutOfRange
from ottla.protocol.records.batch import crc_is_valid
from ottla.storage import checkpoints, file_names
from ottla.storage.files import Files
from ottla.storage.log import Log
from ottla.storage.manager.meta_properties import FILE_NAME as META_PROPERTIES
from ottla.storage.verify import verify
from ottla.storage.verify.log_file import LogFile
from ottla.stories.partition.faulty_files import Loss
from tests.unit.storage.crash_support import Story

pytestmark = pytest.mark.logs("")  # whatever a crash leaves

SEEDS = int(os.environ.get("OTTLA_CRASH_SEEDS", "8"))
FIRST_SEED = int(os.environ.get("OTTLA_CRASH_FIRST_SEED", "0"))
#: What a reader of damaged batches meets: a base offset may say that the next one is behind the log.
UNREADABLE = (CorruptMessage, OffsetOutOfRange)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_a_flipped_bit(seed):
    story = Story(seed)
    story.work(60)
    is_clean = story.random.random() < 0.5
    before = {
        log.directory: (verified_batches(log), log.log_end_offset) for log in story.manager.logs.values()
    }
    if is_clean:
        story.manager.shutdown(story.now_ms, broker_epoch=1)
    story.files = story.files_after(Loss.NOTHING)
    # The directory's ids cannot be rebuilt from other files.
    paths = [path for path, data in story.files.contents().items() if data and path.name != META_PROPERTIES]
    path = story.random.choice(paths)
    places = places_in(path, story.files) if path.suffix == file_names.LOG else []
    position = story.files.flip_bit(path)
    story.manager = story.open()
    assert not story.manager.offline_dirs
    for log in story.manager.logs.values():
        expected, end = before[log.directory]
        if path.suffix != file_names.LOG:
            assert is_sound(log)
            # Compacted offsets at an end that was truncated are not in the files, as in Kafka.
            assert log.log_end_offset >= end or not is_clean or log.config.is_compacted
        elif not is_sound(log):
            assert any(
                it.is_error and it.path.parent == path.parent
                for it in verify(log.directory.parent, story.files)
            ), path
        if path.parent == log.directory and places:
            damaged = next(offset for end, offset in places if position < end)
            expected = {last: data for last, data in expected.items() if last < damaged}
        if path.name == checkpoints.LOG_START_OFFSET_FILE:  # it has to be believed
            expected = {last: data for last, data in expected.items() if last >= log.local_log_start_offset}
        assert expected.items() <= verified_batches(log).items(), path
    check_fixed_point(story, is_recovered=not is_clean)


def places_in(path: Path, files: Files) -> list[tuple[int, int]]:
    """(end, base offset) of each batch in the file, and of what follows the last one."""
    log = LogFile(path, files)
    places = [(position + it.size_bytes, it.base_offset, it.next_offset) for it, position, _ in log.batches()]
    next_offset = places[-1][2] if places else file_names.offset_of(path.name)
    return [(end, base) for end, base, _ in places] + [(log.size_bytes + 1, next_offset)]


def verified_batches(log: Log) -> dict[int, bytes]:
    """By last offset, what a reader gets before it meets a wrong CRC, or offsets in disorder (no part of the CRC)."""
    found = {}
    end = 0  # the first one may begin before the log start
    try:
        for header, data in log.reader.records_since(log.local_log_start_offset):
            if header.base_offset < end or not crc_is_valid(data):
                break
            found[header.last_offset] = bytes(data)
            end = header.next_offset
    except UNREADABLE:
        pass
    return found


def is_sound(log: Log) -> bool:
    """Whether a reader comes to the end."""
    try:
        batches = [bytes(data) for _, data in log.reader.records_since(log.local_log_start_offset)]
    except UNREADABLE:
        return False
    return batches == list(verified_batches(log).values())


def check_fixed_point(story: Story, *, is_recovered: bool) -> None:
    """Recovery changes nothing that it has left.

    What was opened as cleanly stopped is recovered here for the first time.
    """
    first = everything(story) if is_recovered else None
    for _ in range(2):
        story.files = story.files_after(Loss.NOTHING)
        story.manager = story.open()
        assert not story.manager.offline_dirs
        second = everything(story)
        assert first in (None, second)
        first = second


def everything(story: Story) -> list[tuple[object, ...]]:
    """The content that another recovery must not change; the bytes of a damaged log, which no reader can read
    to its end."""
    logs = [log for _, log in sorted(story.manager.logs.items())]
    rows: list[tuple[object, ...]] = [
        (log.log_start_offset, log.log_end_offset, log.checkpoints.recovery_point_to_write(), log.leader_epochs.entries,
         {path: data for path, data in story.files.contents(log.directory).items() if path.suffix == file_names.LOG})
        for log in logs
    ]  # fmt: skip
    return rows + story.everything() if all(is_sound(log) for log in logs) else rows

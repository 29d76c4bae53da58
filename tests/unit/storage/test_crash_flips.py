"""Bits that rot: in any file of a log or of its directory. Opening repairs all but the flushed part of a log.

That part is believed, as in Kafka: who reads it checks the CRC (consumers do), and `ottla verify-log` finds the damage.
"""

import os

import pytest

from protocol.records.batch import crc_is_valid
from storage.meta_properties import FILE_NAME as META_PROPERTIES
from storage.verify import verify
from tests.harness.faulty_files import Loss
from tests.unit.storage.crash_model import observe
from tests.unit.storage.crash_support import Story

SEEDS = int(os.environ.get("OTTLA_CRASH_SEEDS", "20"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_flipped_bit(seed):
    story = Story(seed)
    story.work(60)
    is_clean = story.random.random() < 0.5
    if is_clean:
        story.manager.shutdown(story.now_ms, broker_epoch=1)
    before = {} if not is_clean else {tp: log.log_end_offset for tp, log in story.manager.logs.items()}
    story.files = story.files_after(Loss.NOTHING)
    # Whose the directory is cannot be made anew from anything.
    paths = [path for path, data in story.files.contents().items() if data and path.name != META_PROPERTIES]
    path = story.random.choice(paths)
    story.files.flip_bit(path)
    manager = story.open()
    assert not manager.offline_dirs
    for topic_partition, log in manager.logs.items():
        if path.suffix != ".log":
            observe(log)  # whole and sound
            assert log.log_end_offset >= before.get(topic_partition, 0)
        elif not is_sound(log):
            directory = log.directory.parent
            assert any(it.is_error and it.path == path for it in verify(directory, story.files)), path


def is_sound(log):
    """Whether a reader finds batches with right CRCs only, in order. The offset itself is not part of the CRC."""
    end = log.log_start_offset
    for header, data in log.records_since(log.log_start_offset):
        if header.next_offset <= end or not crc_is_valid(data):
            return False
        end = header.next_offset
    return True

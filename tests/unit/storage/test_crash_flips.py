"""Bits that rot: in any file of a log or of its directory. Opening repairs, and no batch with a wrong CRC is served."""

import os

import pytest

from storage.meta_properties import FILE_NAME as META_PROPERTIES
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
        if path.suffix == ".log":
            end = log.log_start_offset
            for header, _ in log.records_since(log.log_start_offset):
                assert header.next_offset > end
                end = header.next_offset
        else:
            observe(log)  # whole and sound
            assert log.log_end_offset >= before.get(topic_partition, 0)

"""ListOffsets -3 of a local log (KIP-734): a record that can be read, wherever the log starts."""

import pytest

from ottla.config.log_config import LogConfig
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import Compression
from ottla.protocol.records.record import Record
from tests.unit.storage.storage_support import NOW_MS, open_log


# KIP-734
@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("segment_bytes", [150, 1_000_000])
def test_the_largest_timestamp_is_that_of_a_record_that_can_be_read(tmp_path, codec, segment_bytes):
    log = open_log(
        tmp_path / "orders-0", config=LogConfig(segment_bytes=segment_bytes, index_interval_bytes=1)
    )
    for times in ((3, 90, 50, 4, 50), (1, 2), (40, 5), (6, 40, 7), (-1 - NOW_MS,)):
        records = [Record(number, NOW_MS + time, None, b"x") for number, time in enumerate(times)]
        log.append_as_leader(
            bytearray(build_batch(records, compression=codec)), leader_epoch=4, now_ms=NOW_MS
        )
    log.update_high_watermark(13)
    found = []
    for start in range(14):
        log.maybe_increment_log_start_offset(start)
        found.append(log.reader.max_timestamp_offset())
    by_offset = {
        offset: (NOW_MS + time, offset, 4)
        for offset, time in {1: 90, 2: 50, 4: 50, 7: 40, 10: 40, 11: 7}.items()
    }
    #        offset  0  1  2  3  4  5  6  7   8   9  10  11
    assert found == [by_offset[at] for at in (1, 1, 2, 4, 4, 7, 7, 7, 10, 10, 10, 11)] + [None, None]

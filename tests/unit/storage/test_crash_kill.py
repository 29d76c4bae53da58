"""A process that is killed in the middle of its work loses nothing of what it had done.

`OTTLA_CRASH_KILLS=50` for more.
"""

import os
import signal
import subprocess
import sys
from random import Random

import pytest

from ottla.protocol.records.batch import crc_is_valid
from ottla.protocol.records.record import records
from tests.unit.storage.crash_child import CONFIG, value_of
from tests.unit.storage.storage_support import open_log

KILLS = int(os.environ.get("OTTLA_CRASH_KILLS", "1"))
FIRST_SEED = int(os.environ.get("OTTLA_CRASH_FIRST_SEED", "0"))


def append_until_killed(directory, *, seed, lines):
    """Kill it after so many reported appends and some more; the last end offset that it reported."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.unit.storage.crash_child", str(directory), str(seed)],
        stdout=subprocess.PIPE,
        text=True,
    )
    acknowledged = 0
    with child:
        for _ in range(lines):
            acknowledged = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        for line in child.stdout:
            if line.endswith("\n"):
                acknowledged = int(line)
    return acknowledged


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + KILLS))
def test_killed_while_appending(tmp_path, seed):
    directory = tmp_path / "orders-0"
    random = Random(seed)
    for life in range(2):
        acknowledged = append_until_killed(directory, seed=life, lines=random.randint(1, 1500))
        log = open_log(directory, config=CONFIG, is_clean=False)
        assert acknowledged <= log.log_end_offset <= acknowledged + 1
        expected = 0
        for header, data in log.reader.records_since(0):
            assert crc_is_valid(data)
            assert header.base_offset == expected
            assert next(iter(records(data))).value == value_of(expected)
            expected = header.next_offset
        assert expected == log.log_end_offset
        assert log.producers.producers[5].last_sequence == expected - 1
        assert log.latest_epoch == life
        log.close_files()

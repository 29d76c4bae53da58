"""Waiting for librdkafka in a process with few or many open files."""

import fcntl
import os
import resource
import time

import pytest

from ottla.bench.generators.client import is_readable


@pytest.fixture(params=[0, 1500], ids=["few files", "many files"])
def pipe(request):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    reader, writer = os.pipe()
    moved = fcntl.fcntl(reader, fcntl.F_DUPFD, request.param)
    os.close(reader)
    yield moved, writer
    os.close(moved)
    os.close(writer)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_wait_ends_with_a_byte_or_in_time(pipe):
    reader, writer = pipe
    began = time.monotonic()
    assert not is_readable(reader, 0.05)
    assert 0.045 < time.monotonic() - began < 5
    assert not is_readable(reader, 0)
    os.write(writer, b"1")
    assert is_readable(reader, 60)

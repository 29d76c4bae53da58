"""Any bytes of a client, a peer, a bucket or a disk are read, or refused with an error that is handled."""

import logging
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.any_bytes.entry_points import ENTRY_POINTS

#: Found by `make fuzz`, by the name of the entry point.
CORPUS = Path(__file__).parent / "corpus"
FINDS = sorted(path for path in CORPUS.glob("*/*") if path.is_file())
#: A folder of a log is written, opened and read: a hundred times the time of the others.
EXAMPLES = {"log_folders": 30}
#: What these few bytes may make of themselves: a batch has at most a mebibyte, several readers of it are alive.
MOST_BYTES = 32 * 1024 * 1024

EVERY_ENTRY_POINT = pytest.mark.parametrize("name", list(ENTRY_POINTS))


@pytest.fixture(autouse=True)
def _no_log_lines(caplog):
    """Accept log lines, since a fault of a file is logged; `caplog` has read it."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@EVERY_ENTRY_POINT
def test_valid_bytes_are_read(name):
    entry = ENTRY_POINTS[name]
    seeds = entry.seeds()
    assert seeds
    read = 0
    for seed in seeds:
        try:
            entry.read(seed)
        except entry.refusals:
            continue
        read += 1
    # Some are of a kind that is not known, or refer to what is not there.
    assert read * 5 > len(seeds), (name, read, len(seeds))


@pytest.mark.parametrize("path", FINDS, ids=lambda path: f"{path.parent.name}-{path.name[:14]}")
def test_what_was_found(path):
    check(path.parent.name, path.read_bytes())


def test_each_find_is_of_an_entry_point():
    assert {path.parent.name for path in FINDS} <= set(ENTRY_POINTS)


@EVERY_ENTRY_POINT
def test_any_bytes_are_read_or_refused(name):
    seeds = list(ENTRY_POINTS[name].seeds())

    @given(data=st.binary(max_size=200) | mutated(seeds))
    @settings(max_examples=EXAMPLES.get(name, 150), deadline=None, database=None)
    def holds(data):
        ENTRY_POINTS[name].check(data)

    holds()


@EVERY_ENTRY_POINT
def test_no_bytes_take_much_memory(name):
    """The seeds with each of them claiming more than there is, at some places."""
    entry = ENTRY_POINTS[name]
    seeds = sorted(set(entry.seeds()), key=len)[:: max(1, len(entry.seeds()) // 6)][:6]
    entry.check(seeds[0])
    tracemalloc.start()
    try:
        for seed in seeds:
            for at in range(0, len(seed), max(1, len(seed) // 12)):
                for huge in (b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\x80\xb5\x18", b"9" * 20):
                    entry.check(seed[:at] + huge + seed[at + len(huge) :])
                    if name == "log_folders":
                        break
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES, peak


def check(name, data):
    ENTRY_POINTS[name].check(data)


@st.composite
def mutated(draw, seeds):
    """A valid input of which a few bytes are others, more or fewer."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        removed = draw(st.sampled_from([0, 1, 1, 2, 4, 8]))
        data[at : at + removed] = draw(
            st.sampled_from(
                [b"", b"\0", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0" * 8]
            )
            | st.binary(max_size=4)
        )
    return bytes(data)

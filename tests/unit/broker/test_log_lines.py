"""No client writes lines of the log."""

import json
import logging
import sys

import pytest

from ottla.broker.log_lines import (
    FORMAT,
    LINES_AT_ONCE,
    LINES_OF_TRACEBACK,
    MAX_LINE,
    MAX_TRACEBACK,
    JsonFormatter,
    LineFormatter,
    LineLimit,
    OutageLog,
)
from ottla.runtime.rate_limited_log import RateLimitedLog

FORGED = "2026-01-01 00:00:00,000 CRITICAL ottla.broker.node: forged"


def line(message, *args, **fields):
    record = logging.LogRecord("broker.x", logging.INFO, "x.py", 1, message, args, None)
    record.__dict__.update(fields)
    return LineFormatter(FORMAT).format(record)


@pytest.mark.parametrize(
    ("said", "written"),
    [
        (f"x\n{FORGED}", rf"x\n{FORGED}"),
        (f"x\r\n{FORGED}", rf"x\r\n{FORGED}"),
        ("\0\t\x1b[2J\x7f\x85", r"\x00\t\x1b[2J\x7f\x85"),
        ("a\u2028b\u2029c", r"a\u2028b\u2029c"),
        ("größer: 東京 ✓ \\n", "größer: 東京 ✓ \\n"),
    ],
)
def test_a_message_is_one_line(said, written):
    assert line("logged: %s", said).endswith(f" INFO broker.x: logged: {written}")


def test_a_long_text_is_cut():
    written = line("logged: %s", "\n" * 32_767)
    assert len(written) <= MAX_LINE + 100
    try:
        raise ValueError("x" * 100_000)
    except ValueError:
        written = line("failed", exc_info=sys.exc_info())
    assert len(written) <= MAX_TRACEBACK + 200


def test_a_stack_of_ours_keeps_its_lines():
    assert line("Stack:\n%s", "File x\nline\x1b", has_lines=True).endswith("Stack:\n  File x\n  line\\x1b")


def test_what_asyncio_reports_keeps_its_lines():
    said = "Task exception was never retrieved\nfuture: <Task finished>"
    assert line(said, name="asyncio").endswith("never retrieved\n  future: <Task finished>")
    assert line("here", stack_info="Stack:\n  File x").endswith("here\nStack:\n    File x")


def test_what_asyncio_reports_is_cut():
    record = logging.makeLogRecord({"name": "asyncio", "msg": "x" * 1_000_000})
    assert len(LineFormatter("%(message)s").format(record)) <= MAX_TRACEBACK + 100


def test_times_are_utc():
    assert line("x", created=0.9996) == "1970-01-01T00:00:00.999Z INFO broker.x: x"


def in_json(message, *args, **fields):
    record = logging.LogRecord(
        "broker.x", logging.WARNING, "x.py", 1, message, args, fields.pop("exc_info", None)
    )
    record.__dict__.update(fields)
    written = JsonFormatter().format(record)
    assert written.splitlines() == [written], "one line, by the line breaks of Unicode, too"
    assert written.isprintable()
    return json.loads(written)


def test_a_message_in_json():
    said = in_json("said %s", f"größer\n{FORGED}\x1b[2J\x7f\x85\u2028", created=1.0)
    assert said == {
        "time": "1970-01-01T00:00:01.000Z",
        "level": "WARNING",
        "logger": "broker.x",
        "message": f"said größer\n{FORGED}\x1b[2J\x7f\x85\u2028",
    }
    try:
        raise ValueError(f"x\n{FORGED}")
    except ValueError:
        failed = in_json("failed", exc_info=sys.exc_info(), omitted_lines=3)
    assert failed["message"] == "failed"
    assert failed["stack"].startswith("Traceback (most recent call last):\n")
    assert failed["stack"].endswith(f"ValueError: x\n{FORGED}")
    assert failed["omitted"] == 3
    assert in_json("here", stack_info="Stack")["stack"] == "Stack"


def passed(limit, place, *, at, level=logging.INFO, text="said %s", exc_info=None):
    """Whether a line is written, and its text."""
    record = logging.LogRecord("broker.x", level, "x.py", place, text, ("x",), exc_info)
    record.created = at
    return LineFormatter("%(message)s").format(record).split("\n")[0] if limit.filter(record) else None


def test_a_line_that_cannot_be_formatted_raises_nothing_where_it_is_logged():
    limit = LineLimit()
    for _ in range(LINES_AT_ONCE + 1):
        passed(limit, 1, at=5.0)
    assert limit.filter(logging.LogRecord("broker.x", logging.INFO, "x.py", 1, "%d", ("x",), None)) is True


def test_one_place_writes_a_bounded_number_of_lines():
    limit = LineLimit()
    found = [passed(limit, 1, at=5.0) for _ in range(LINES_AT_ONCE + 50)]
    assert found == ["said x"] * LINES_AT_ONCE + [None] * 50
    assert passed(limit, 2, at=5.0) == "said x", "another place"
    assert passed(limit, 1, at=4.0) is None, "the clock was set back"
    assert passed(limit, 1, at=5.1) == "said x (51 more such lines were omitted before)"
    assert passed(limit, 1, at=5.2) is None
    assert passed(limit, 1, at=1000.0) == "said x (1 more such lines were omitted before)"
    assert passed(limit, 1, at=1000.0, level=logging.DEBUG) == "said x"
    found = [passed(limit, 3, at=5.0, level=logging.CRITICAL) for _ in range(LINES_AT_ONCE + 50)]
    assert None not in found


def test_tracebacks_count_as_more_lines():
    limit = LineLimit()
    error = (ValueError, ValueError("x"), None)
    found = [passed(limit, 1, at=5.0, exc_info=error) for _ in range(LINES_AT_ONCE)]
    assert found.count("said x") == LINES_AT_ONCE // LINES_OF_TRACEBACK


def test_a_traceback_keeps_its_lines_and_is_no_place_for_others():
    try:
        raise ValueError(f"x\n{FORGED}\x1b[2J")
    except ValueError:
        reported = line("failed", exc_info=sys.exc_info())
    first, second, *rest = reported.split("\n")
    assert first.endswith(" INFO broker.x: failed")
    assert second == "Traceback (most recent call last):"
    assert all(each.startswith("  ") for each in rest)
    assert rest[-2:] == ["  ValueError: x", rf"  {FORGED}\x1b[2J"]


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_what_repeats_is_written_now_and_then(caplog):
    clock = Clock()
    seldom = RateLimitedLog(logging.getLogger("test"), monotonic=clock, interval_s=10)
    for tenth in range(250):
        clock.now = tenth / 10
        seldom.write(logging.WARNING, "number %d", tenth)
        if tenth == 125:
            seldom.write(logging.WARNING, "another")
    assert [record.getMessage() for record in caplog.records] == [
        "number 0",
        "number 100 (99 more such lines since)",
        "another",
        "number 200 (99 more such lines since)",
    ]


def test_an_outage_is_written_when_it_lasts_and_when_it_is_over(caplog):
    caplog.set_level(logging.INFO)
    clock = Clock()
    outages = OutageLog(logging.getLogger("test"), monotonic=clock, patience_s=3, interval_s=10)
    for second in range(20):
        clock.now = second
        outages.failed("a", f"refused at {second}")
        if second < 3:
            outages.failed("b", "refused")
        elif second == 3:
            outages.answered("b")
    outages.answered("a")
    outages.answered("a")
    assert [record.getMessage() for record in caplog.records] == [
        "a has not responded for 3 s: refused at 3; retrying",
        "b works again, after 3 s",
        "a has not responded for 13 s: refused at 13; retrying",
        "a works again, after 19 s",
    ]

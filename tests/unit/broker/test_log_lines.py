"""No client writes lines of the log."""

import logging
import sys

import pytest

from broker.log_lines import FORMAT, LineFormatter

FORGED = "2026-01-01 00:00:00,000 CRITICAL broker.node: forged"


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
    assert line("told: %s", said).endswith(f" INFO broker.x: told: {written}")


def test_a_traceback_keeps_its_lines_and_is_no_place_for_others():
    try:
        raise ValueError(f"x\n{FORGED}\x1b[2J")
    except ValueError:
        told = line("failed", exc_info=sys.exc_info())
    first, second, *rest = told.split("\n")
    assert first.endswith(" INFO broker.x: failed")
    assert second == "Traceback (most recent call last):"
    assert all(each.startswith("  ") for each in rest)
    assert rest[-2:] == ["  ValueError: x", rf"  {FORGED}\x1b[2J"]

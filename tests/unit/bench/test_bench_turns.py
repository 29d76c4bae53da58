"""Turns of the event loop that take too long, as the watch of the broker reports them and the bench reads them."""

import asyncio
import logging
import time

import pytest

from ottla.bench.components.processes import Child
from ottla.bench.targets.turn_logs import BOUND_VARIABLE, TurnReader, watched
from ottla.bench.turns import Turn, turns_in, turns_sample, words_of
from ottla.runtime import stalls
from ottla.runtime.production import run

READY = b"READY bootstrap=127.0.0.1:9092\n"


def report(took_ms, *, running_ms=5, queued_ms=0, end="\n"):
    """The log lines that `ottla.runtime.stalls` writes, with the ends of the stack's lines as a layout leaves
    them."""
    quote = '\\"' if end == "\\n" else '"'
    stack = end.join(
        f"  File {quote}/src/{file}{quote}, line {line}, in {name}{end}    code()"
        for file, line, name in [
            ("a/x.py", 1, "<module>"),
            ("b/y.py", 2, "f"),
            ("c/z.py", 3, "g"),
            ("d/w.py", 4, "h"),
        ]
    )
    return (
        "2026-11-23 15:17:18,485 WARNING ottla.runtime.stalls: "
        f"One turn of the event loop has taken {took_ms} ms ({running_ms} ms running, "
        f"{queued_ms} ms waiting for a processor, the rest blocked); requests wait. "
        f"Stack after 5 ms:{end}{stack}\n"
    ).encode()


@pytest.mark.parametrize("end", ["\n", "\\n"], ids=["lines", "escaped"])
def test_a_turn_is_its_own_time_and_the_innermost_functions(end):
    log = READY + report(21, running_ms=7, queued_ms=14, end=end) + b"INFO more\n"
    where = "d/w.py:4 h < c/z.py:3 g < b/y.py:2 f"
    assert turns_in(log, [0]) == [Turn(own_s=0.007, running_s=0.007, where=where)]


def own_ms(log, starts, since=0):
    return [round(turn.own_s * 1000) for turn in turns_in(log, starts, since=since)]


def test_what_is_before_a_process_is_ready_does_not_count_after_a_restart_either():
    first = report(10) + READY + report(11)
    second = report(12) + READY + report(13)
    log = first + second
    assert own_ms(log, [0, len(first)]) == [11, 13]
    assert own_ms(log, [0, len(first)], since=len(report(10) + READY)) == [11, 13]
    assert own_ms(log, [0, len(first)], since=len(first)) == [13]
    assert own_ms(log, [0, len(first)], since=len(log)) == []
    assert own_ms(report(12), [0]) == []


def test_each_report_is_read_once(tmp_path, monkeypatch):
    log = tmp_path / "broker.log"
    monkeypatch.setattr(Child, "logs", {log: [0], tmp_path / "removed.log": [0]})
    reader = TurnReader()
    log.write_bytes(READY + report(7))
    assert len(reader.new()) == 1
    with log.open("ab") as more:
        more.write(report(8) + report(9))
    reader.note()
    log.unlink()
    assert [turn.own_s for turn in reader.new()] == [0.008, 0.009]
    assert reader.new() == []


def test_the_turns_of_one_of_two_nodes(tmp_path, monkeypatch):
    logs = [tmp_path / name for name in ("one.log", "other.log")]
    monkeypatch.setattr(Child, "logs", {log: [0] for log in logs})
    reader = TurnReader()
    for log, took_ms in zip(logs, (7, 8), strict=True):
        log.write_bytes(READY + report(took_ms))
    assert [turn.own_s for turn in reader.new(log=logs[1])] == [0.008]
    assert reader.new() == []


def test_turns_in_figures_and_words():
    long, short = (Turn(own_s=own_s, running_s=0.005, where="x.py:1 f") for own_s in (0.009, 0.006))
    assert turns_sample([short, long]) == {"turns": 2, "longest_turn_s": 0.009}
    assert turns_sample([]) == {"turns": 0}
    assert words_of({"a": [], "b": [short, long]}) == [
        "b: 2: 9 ms (5 running) in x.py:1 f; 6 ms (5 running) in x.py:1 f"
    ]


def block_for(duration_s):
    time.sleep(duration_s)


def test_the_reports_of_a_watched_node_are_read(monkeypatch, caplog):
    assert BOUND_VARIABLE == stalls.BOUND_VARIABLE
    monkeypatch.delenv(BOUND_VARIABLE, raising=False)

    async def main(runtime):
        assert runtime.stalls._bound_s == 0.005
        for _ in range(5):
            block_for(0.05)
            await asyncio.sleep(0.02)

    with watched(), caplog.at_level(logging.WARNING, logger=stalls.__name__):
        run(main)
    messages = [record.getMessage() for record in caplog.records if record.name == stalls.__name__]
    log = READY + "".join(f"{message}\n" for message in messages).encode()
    turns = turns_in(log, [0])
    assert len(turns) == len([each for each in messages if each.startswith("One turn")]) > 0
    assert any("test_bench_turns.py" in turn.where for turn in turns)

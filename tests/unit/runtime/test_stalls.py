"""The watch over the event loop: turns that take too long, with the code that took the time."""

import asyncio
import importlib
import logging
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from ottla.bench.components.processes import PATIENCE_S
from ottla.runtime import Pool
from ottla.runtime.processor_times import stolen_since
from ottla.runtime.production import run
from ottla.runtime.stalls import BOUND_VARIABLE, StallWatch, is_importing, longest_turn_s


@pytest.fixture
def bound_ms(monkeypatch):
    monkeypatch.setenv(BOUND_VARIABLE, "20")
    return 20


def block_for(duration_s):
    time.sleep(duration_s)


def test_a_blocked_loop_is_reported_with_the_stack_of_what_blocks_it(bound_ms, caplog):
    async def main(runtime):
        found = []
        # The watch is a thread, which writes when the turn is over. On a busy machine it may wake too late to
        # see the code.
        while not found:
            await asyncio.sleep(0)  # a turn ends
            block_for(0.1)
            messages = [each.getMessage() for each in caplog.records]
            found = [each for each in messages if each.startswith("One turn") and "block_for(0.1)" in each]
        assert "time.sleep(duration_s)" in found[0]
        assert runtime.stalls.count >= 1
        assert 0.02 <= runtime.stalls.longest_s < 10

    run(main)


def test_imports_of_a_first_start_are_one_line(tmp_path, monkeypatch, caplog):
    (tmp_path / "imported_by_the_test.py").write_text(
        "import sys\nfrom ottla.runtime.stalls import is_importing\nfound = is_importing(sys._getframe())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("imported_by_the_test").found
    assert not is_importing(sys._getframe())

    async def main(runtime):
        runtime.stalls._report("took long", "a stack", was_stopped=False, is_import=True)

    with caplog.at_level(logging.INFO, "ottla.runtime.stalls"):
        run(main)
    (line,) = [each for each in caplog.records if "took long" in each.getMessage()]
    assert line.levelno == logging.INFO
    assert "stack" not in line.getMessage()


def test_a_c_function_that_holds_the_interpreters_lock_is_detected(bound_ms):
    """The watch needs the lock, too: it wakes after the function's end, when nothing is late any more."""

    async def main(runtime):
        for _ in range(3):
            await asyncio.sleep(0.05)
            before = runtime.stalls.count
            # Many bounds: on a busy machine the watch waits for a processor most of the time, which does not count.
            sum(range(15_000_000))
            await asyncio.sleep(0.05)
            assert runtime.stalls.count > before

    run(main)


def test_what_the_host_takes_is_no_stall_of_the_loop(bound_ms, caplog, monkeypatch, tmp_path):
    """No test can make a host take time: a file has the place of `/proc/stat`."""
    assert 0 in stalls_while_time_is_stolen(range(os.cpu_count()), monkeypatch, tmp_path, caplog)
    assert "the machine is busy with other work" in caplog.text


def test_what_the_host_takes_of_another_processor_is_no_excuse(bound_ms, caplog, monkeypatch, tmp_path):
    assert 1 in stalls_while_time_is_stolen([os.cpu_count()], monkeypatch, tmp_path, caplog)


def stalls_while_time_is_stolen(processors, monkeypatch, tmp_path, caplog):
    """The number in each of some turns: on a busy machine the watch may be too late for one."""
    stat = tmp_path / "stat"
    stat.write_text(stat_of(dict.fromkeys(processors, 0)))
    monkeypatch.setattr("ottla.runtime.processor_times.STAT", stat)
    caplog.set_level(logging.INFO)
    counts = []

    async def main(runtime):
        for turn in range(1, 6):
            await asyncio.sleep(0.05)
            before = runtime.stalls.count
            block_for(0.05)
            stat.write_text(stat_of(dict.fromkeys(processors, turn * 1000)))  # ten seconds
            block_for(0.05)
            await asyncio.sleep(0.05)
            counts.append(runtime.stalls.count - before)

    run(main)
    return counts


def stat_of(stolen):
    rows = [("cpu", sum(stolen.values())), *((f"cpu{number}", ticks) for number, ticks in stolen.items())]
    return "".join(f"{name} 10 2 30 400 5 6 7 {ticks} 0 0\n" for name, ticks in rows) + "intr 100 0 1\n"


def test_the_time_that_is_stolen_is_that_of_one_processor():
    before, after = (stat_of(stolen).encode() for stolen in ({0: 12, 1: 7}, {0: 12, 1: 20}))
    assert [stolen_since(before, after, processor=each) for each in (0, 1, 2, None)] == [0, 0.13, 0, 0]
    assert stolen_since(b"", b"", processor=0) == 0
    assert (
        stolen_since(b"cpu 1 2\ncpu0 1 2 3\n", b"cpu0 1 2 3\ncp", processor=0) == 0
    )  # of an old kernel, incomplete


def test_short_turns_one_after_the_other_are_no_long_one():
    assert longest_turn_s(1.0, [], 8.0) == 7.0
    assert longest_turn_s(1.0, [0.5, 3.0, 7.0, 9.0], 8.0) == 4.0
    assert longest_turn_s(1.0, [1.0, 8.0], 8.0) == 7.0


def test_what_a_thread_waits_for_is_no_stall_of_the_loop(bound_ms, caplog):
    async def main(runtime):
        await runtime.run_blocking(block_for, 0.1, pool=Pool.READS)
        return [each for each in caplog.records if "block_for" in each.getMessage()]

    assert run(main) == []


#: Stops itself in a turn of the loop for which the watch has begun to wait.
STOPS_ITSELF = """
import asyncio, logging, os, signal, sys, time
from ottla.runtime.production import run

class Printed(logging.Handler):
    def emit(self, record):
        print(record.levelname, record.getMessage(), flush=True)
        reported.append(record)

async def main(runtime):
    answered = runtime.stalls._answered
    while not answered.is_set():
        await asyncio.sleep(0.001)
    while answered.is_set():
        time.sleep(0.001)
    time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.1)  # the turn goes on: the watch wakes before its end
    async with asyncio.timeout(60):
        while not reported:
            await asyncio.sleep(0.001)

reported = []
logging.basicConfig(level=logging.INFO, handlers=[Printed()])
run(main)
"""


def test_a_process_that_was_stopped_has_no_stall(monkeypatch):
    """SIGSTOP, as by a debugger or a frozen container: no code of the loop is to blame."""
    monkeypatch.setenv(BOUND_VARIABLE, "200")
    with subprocess.Popen([sys.executable, "-c", STOPS_ITSELF], stdout=subprocess.PIPE, text=True) as node:
        assert os.WIFSTOPPED(os.waitpid(node.pid, os.WUNTRACED)[1])
        block_for(1.0)
        node.send_signal(signal.SIGCONT)
        printed, _ = node.communicate(timeout=PATIENCE_S)
    assert re.match(r"INFO A turn of the event loop has taken [1-9]", printed)
    assert "the process was stopped" in printed
    assert "WARNING" not in printed


def test_many_stalls_are_one_report(monkeypatch):
    async def main(runtime):
        watch = StallWatch(runtime.loop, bound_s=0.01, report_interval_s=3600)
        reported = []  # the first turn, which a busy machine may have taken
        monkeypatch.setattr(watch, "_report", lambda what, *_, **__: reported.append(what))
        watch.start()
        while watch.count < 3:
            await asyncio.sleep(0)
            block_for(0.03)
        watch.stop()
        await asyncio.get_running_loop().run_in_executor(None, watch.join)
        assert len(reported) == 1

    run(main)


def test_the_bound_is_that_of_production_unless_a_test_asks_for_another(monkeypatch, caplog):
    monkeypatch.delenv(BOUND_VARIABLE, raising=False)

    async def main(runtime):
        assert runtime.stalls._bound_s == 0.1
        assert runtime.stalls._report_interval_s == 10

    with caplog.at_level(logging.WARNING):
        run(main)

"""A signal ends what is measured, and only a second one ends the program."""

import os
import signal
import time

import pytest

from ottla.bench.runs import interrupts as module
from ottla.bench.runs.interrupts import Interrupts


def send(number=signal.SIGINT):
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def logging_stays(monkeypatch):
    monkeypatch.setattr("logging.disable", lambda: None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_nothing_is_measured_the_first_one_ends_the_program(number):
    interrupts = Interrupts()
    with interrupts.handled(), pytest.raises(KeyboardInterrupt):
        send(number)
    assert interrupts.is_asked


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_something_is_measured_the_first_one_asks_to_end_it(number):
    interrupts = Interrupts()
    with interrupts.handled(), interrupts.deferred():
        assert not interrupts.wait(0)
        send(number)
        began = time.monotonic()
        assert interrupts.wait(60)
        assert time.monotonic() - began < 30
        # The same one, to the group of processes.
        send(number)


def test_the_second_one_ends_the_program(monkeypatch):
    interrupts = Interrupts()
    with interrupts.handled(), interrupts.deferred():
        monkeypatch.setattr(module, "_SAME_S", 60.0)
        send()
        monkeypatch.setattr(module, "_SAME_S", -1.0)
        with pytest.raises(KeyboardInterrupt):
            send()


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts().handled():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before

"""The cleaner's rate: kept on average, without bursts after a rest, and no wait for a task that is not wanted
any more.
"""

import pytest

from ottla.broker.replicas.log_maintenance import Throttler


class Clock:
    def __init__(self):
        self.now_s = 100.0
        self.is_wanted = True

    def pause(self, delay_s):
        self.now_s += delay_s

    def check(self):
        if not self.is_wanted:
            raise InterruptedError

    def throttle(self, rate):
        return Throttler(lambda: rate, monotonic=lambda: self.now_s, pause=self.pause, check=self.check)


@pytest.mark.parametrize(("rate", "piece_bytes", "pieces", "takes_s"), [
    #  rate  piece  pieces  takes
    (  1000,   100,    100,   10),
    (  1000, 10000,      2,   20),
    (  1e308,  1e9,    100,    0),  # the default
])  # fmt: skip
def test_rate(rate, piece_bytes, pieces, takes_s):
    clock = Clock()
    throttle = clock.throttle(rate)
    for _ in range(pieces):
        throttle(piece_bytes)
    assert clock.now_s - 100 == pytest.approx(takes_s, abs=0.02)


def test_a_rest_is_not_made_up_for():
    clock = Clock()
    throttle = clock.throttle(1000)
    clock.now_s += 3600
    began_s = clock.now_s
    for _ in range(50):
        throttle(100)
    assert clock.now_s - began_s == pytest.approx(5, abs=0.02)


def test_who_is_not_wanted_does_not_wait():
    clock = Clock()
    throttle = clock.throttle(1)
    pauses = []

    def pause(delay_s):
        pauses.append(delay_s)
        clock.is_wanted = False

    clock.pause = pause
    throttle = clock.throttle(1)
    with pytest.raises(InterruptedError):
        throttle(1_000_000)
    assert len(pauses) == 1

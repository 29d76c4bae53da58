"""Whether a high watermark waits for records, by how soon they have followed the last one."""

import pytest

from ottla.broker.replicas.reading.high_watermark_delay import (
    EXPECTED_WITHIN_S,
    MAX_DELAY_S,
    HighWatermarkDelay,
)

MS = 0.001


WITHOUT_EFFECT = [("new", 0), ("records", 0.1), ("new", 1), ("over", 3)]


@pytest.mark.parametrize(
    ("events", "is_expecting"),
    [
        # (what, when in ms)
        ([],                                                            False),
        ([("new", 0), ("records", 0.7)],                                True),
        ([("new", 0), ("records", 0.8)],                                False),
        ([("records", 0), ("records", 0.1)],                            False),  # no high watermark was alone
        ([("new", 0), ("records", 0.1), ("records", 90)],               True),   # nor was the last one
        ([("new", 0), ("records", 0.1), ("new", 9), ("records", 10)],   False),
        ([("new", 0), ("records", 9), ("new", 10), ("records", 10.1)],  True),
        ([("new", 0), ("new", 9), ("records", 9.1)],                    True),   # of the last one
        ([("new", 0), ("records", 0.1), ("new", 1), ("over", 3)],       False),
        ([("new", 0), ("records", 0.1), ("new", 1), ("over", 3), ("records", 3.1)], False),  # 2.1 ms after it was new
        ([*WITHOUT_EFFECT, ("new", 4), ("records", 4.1)],                      False),
        ([*WITHOUT_EFFECT, ("new", 4), ("records", 4.1), ("new", 5), ("records", 5.1)], True),
        ([*WITHOUT_EFFECT, ("new", 4), ("records", 4.1), ("new", 5), ("records", 9)], False),
    ],
)  # fmt: skip
def test_it_goes_by_the_last_time(events, is_expecting):
    delay = HighWatermarkDelay()
    for what, at in events:
        match what:
            case "new":
                assert delay.on_new_high_watermark(at * MS) is delay.are_records_expected
            case "records":
                delay.on_records(at * MS)
            case "over":
                delay.on_delay_over()
    assert delay.are_records_expected is is_expecting


def extra_delays(reaction_ms):
    """The added delays of a load whose next record is written when a follower's consumer has seen the last
    one."""
    delay, now, delays = HighWatermarkDelay(), 0.0, []
    for _ in range(1000):
        delay.on_records(now)
        now += 0.2 * MS
        if is_waiting := delay.on_new_high_watermark(now):
            now += MAX_DELAY_S
            delay.on_delay_over()
        delays.append(MAX_DELAY_S if is_waiting else 0.0)
        now += reaction_ms * MS
    return delays


def test_records_that_follow_only_what_consumers_see_are_hardly_delayed():
    assert sum(delay > 0 for delay in extra_delays(0.3)) < 50


def test_a_wait_that_has_effect_forgets_those_without():
    delay, now = HighWatermarkDelay(), 0.0
    waits = []
    for is_soon in [True, False] * 5 + [True] * 100:
        now += 10 * MS
        if delay.on_new_high_watermark(now) and not is_soon:
            delay.on_delay_over()
        else:
            delay.on_records(now + 0.1 * MS)
        waits.append(delay.are_records_expected)
    assert all(waits[-60:])
    delay.on_new_high_watermark(now + 1 * MS)
    delay.on_delay_over()
    for _ in range(2):
        now += 10 * MS
        delay.on_new_high_watermark(now)
        delay.on_records(now + 0.1 * MS)
    assert delay.are_records_expected  # two are enough again


def test_consumers_of_followers_see_a_record_less_than_three_milliseconds_later():
    """A timer of uvloop, which counts whole milliseconds, may fire one late."""
    assert EXPECTED_WITHIN_S < MS
    assert MAX_DELAY_S + MS <= 3 * MS

"""Whether a high watermark waits for records, by how soon they have followed the last one."""

import pytest

from broker.reads.high_watermark_delay import EXPECTED_WITHIN_S, MAX_DELAY_S, HighWatermarkDelay

MS = 0.001


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


def test_consumers_of_followers_see_a_record_less_than_three_milliseconds_later():
    """A timer of uvloop, which counts whole milliseconds, may fire one late."""
    assert EXPECTED_WITHIN_S < MS
    assert MAX_DELAY_S + MS <= 3 * MS

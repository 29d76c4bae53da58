"""Pauses with jitter stay within their bounds."""

from random import Random

import pytest

from ottla.runtime.jitter import jittered


def test_one_draw_decides():
    """More would change what a simulation draws next."""
    expected, drawn = Random(5), Random(5)
    draw = expected.random()
    assert jittered(10.0, drawn) == 10.0 * (0.8 + 0.4 * draw)
    assert jittered(10.0, drawn, jitter=1.0) == 20.0 * expected.random()
    assert drawn.random() == expected.random()


@pytest.mark.parametrize(
    ("jitter", "lowest", "highest"), [(0.0, 10.0, 10.0), (0.2, 8.0, 12.0), (1.0, 0.0, 20.0)]
)
def test_pauses_lie_on_both_sides(jitter, lowest, highest):
    random = Random(1)
    pauses = [jittered(10.0, random, jitter=jitter) for _ in range(1000)]
    assert lowest <= min(pauses) <= lowest + 0.1
    assert highest - 0.1 <= max(pauses) <= highest

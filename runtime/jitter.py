"""Jitter of a pause: what fails or starts together on many nodes does not go on together."""

from random import Random
from typing import Final

#: The random part of a pause, shorter or longer.
JITTER: Final = 0.2


def jittered(pause: float, random: Random, *, jitter: float = JITTER) -> float:
    """Return the pause, by up to `jitter` of it shorter or longer. Draws one random number.

    >>> [0.8 <= jittered(1.0, Random(seed)) < 1.2 for seed in range(3)]
    [True, True, True]
    >>> jittered(1.0, Random(1), jitter=0.0)
    1.0
    """
    assert pause >= 0, pause
    assert 0 <= jitter <= 1, jitter
    return pause * (1 + jitter * (2 * random.random() - 1))

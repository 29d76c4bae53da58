"""The pause before a failed task runs again: it doubles with each failure in a row, up to a bound, with jitter.

Source: `remote.log.manager.task.retry.*` of Kafka 4.3.1, where they are defined and never read.
"""

from typing import TYPE_CHECKING

from ottla.remote.log_manager.settings import RemoteLogManagerSettings
from ottla.runtime.jitter import jittered

if TYPE_CHECKING:
    from random import Random

#: Doublings beyond this do not change the result: the bound of the pause is an int64 of milliseconds.
_MAX_DOUBLINGS = 62


def backoff_ms(failures: int, settings: RemoteLogManagerSettings, random: "Random") -> int:
    """Return the pause after `failures` failures in a row, at least one: `retry_jitter` of it shorter or longer.

    Tasks that fail together, as when the store is down, do not run again together.
    """
    assert failures > 0, failures
    doubled = settings.retry_backoff_ms << min(failures - 1, _MAX_DOUBLINGS)
    return _with_jitter(min(doubled, settings.retry_backoff_max_ms), settings, random)


def longest_backoff_ms(settings: RemoteLogManagerSettings, random: "Random") -> int:
    """Return the pause after a failure that a repetition is likely to meet again: the longest one, with jitter."""
    return _with_jitter(settings.retry_backoff_max_ms, settings, random)


def _with_jitter(pause_ms: int, settings: RemoteLogManagerSettings, random: "Random") -> int:
    return max(1, round(jittered(pause_ms, random, jitter=settings.retry_jitter)))

"""LagHistory: the lags of groups in the last minutes, as far as views have seen them."""

from collections import deque
from typing import Final

from ottla.runtime import Runtime

#: Samples of a group's lag that are kept: four minutes; and groups whose lags are.
_SAMPLES: Final = 120
_SAMPLED_GROUPS: Final = 200
_SAMPLE_S: Final = 2.0


class LagHistory:
    """The lags that views have seen in the last minutes, by group."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        #: At most `_SAMPLED_GROUPS`; of each the time of its last sample, and at most `_SAMPLES` lags.
        self._of_groups: dict[str, tuple[float, deque[int | None]]] = {}

    def forget(self) -> None:
        """Release all samples of lags."""
        self._of_groups.clear()

    def add(self, group: str, lag: int | None) -> list[int | None]:
        """Add what is seen now; returns the lags of the last minutes."""
        now = self._runtime.monotonic()
        at, lags = self._of_groups.pop(group, (now - _SAMPLE_S, deque[int | None](maxlen=_SAMPLES)))
        if now - at >= _SAMPLE_S * 0.9:
            lags.append(lag)
            at = now
        self._of_groups[group] = at, lags  # the last one again
        if len(self._of_groups) > _SAMPLED_GROUPS:
            del self._of_groups[next(iter(self._of_groups))]
        return list(lags)

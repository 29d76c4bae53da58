"""Samples of a topic's end offsets: the records that a job has had acknowledged, which it reports only at its end."""

import threading
from types import TracebackType
from typing import Final, Self

import numpy as np

from ottla.bench.generators.cluster import ClusterReader
from ottla.bench.generators.running import now_us
from ottla.bench.generators.tally import Tally

_PERIOD_S: Final = 0.25
_NO_LATENCIES: Final = np.empty(0, np.int64)


class Arrivals:
    """Samples the end offsets of a topic while the block runs; their sum at the beginning counts as none."""

    def __init__(self, reader: ClusterReader, topic: str) -> None:
        """Read the end offsets at the beginning. Raises ClusterDoesNotAnswer."""
        self._reader = reader
        self._partitions = {topic: len(reader.read([topic]).ends[topic])}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="bench-arrivals", daemon=True)
        self._first = self._total()
        #: (microseconds since the epoch, records since the beginning)
        self._samples = [(now_us(), 0)]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        if error is None:
            self._ask()

    @property
    def records(self) -> int:
        """The number of records at the last sample, which is after the end."""
        return self._samples[-1][1]

    def note_in(self, tally: Tally, *, value_bytes: float) -> None:
        """Count every arrival in its second of `tally`; `value_bytes` is the mean size of a value."""
        for (_, before), (at_us, now) in zip(self._samples, self._samples[1:], strict=False):
            if now > before:
                size = round(now * value_bytes) - round(before * value_bytes)
                tally.note(now_us=at_us, records=now - before, payload_bytes=size, latencies_us=_NO_LATENCIES)

    def _watch(self) -> None:
        while not self._is_over.wait(_PERIOD_S):
            self._ask()

    def _ask(self) -> None:
        self._samples.append((now_us(), self._total() - self._first))

    def _total(self) -> int:
        ends = self._reader.ends(self._partitions, is_cancelled=self._is_over.is_set)
        return sum(end for by_partition in ends.values() for end in by_partition.values())

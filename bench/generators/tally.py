"""The counts of one client in a phase, and the rows that come of them."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ottla.bench.generators.latency import Latencies
from ottla.bench.generators.rows import Kind, Role, Row

#: The maximum number of different error texts of one client; a broker may put a number into each.
_MOST_TEXTS = 20


class Tally:
    """Counts of one client by seconds of the phase; its totals may be read by another thread."""

    def __init__(self, client: str, role: Role, topic: str | None) -> None:
        self.client, self.role, self.topic = client, role, topic
        self.records = self.payload_bytes = self.errors = 0
        #: The beginning of the phase, in microseconds since the epoch.
        self.start_us = 0
        self._rows: list[Row] = []
        self._second = 0
        self._counted = (0, 0, 0)
        self._latencies = Latencies()
        self._texts: dict[str, int] = {}

    def note(
        self, *, now_us: int, records: int, payload_bytes: int, latencies_us: npt.NDArray[np.int64]
    ) -> None:
        """Count records that have just been acknowledged or delivered."""
        self._turn_to(now_us)
        self.records += records
        self.payload_bytes += payload_bytes
        self._latencies.record(latencies_us)

    def note_errors(self, *, now_us: int, text: str, count: int) -> None:
        """Count `count` records that failed; zero if no record did."""
        self._turn_to(now_us)
        self.errors += count
        if text in self._texts or len(self._texts) < _MOST_TEXTS:
            self._texts[text] = self._texts.get(text, 0) + count

    def _turn_to(self, now_us: int) -> None:
        second = max(0, (now_us - self.start_us) // 1_000_000)
        if second != self._second:
            self._end_second()
            self._second = second

    def _end_second(self) -> None:
        totals = (self.records, self.payload_bytes, self.errors)
        records, payload_bytes, errors = (
            total - counted for total, counted in zip(totals, self._counted, strict=True)
        )
        self._counted = totals
        if not records and not errors:
            return
        self._rows.append(
            self.row(
                Kind.SECOND,
                second=self._second,
                records=records,
                payload_bytes=payload_bytes,
                errors=errors,
                latency=self._latencies.encoded() if len(self._latencies) else None,
            )
        )
        self._latencies = Latencies()

    def row(self, kind: Kind, **fields: object) -> Row:
        """Return a row of this client."""
        return Row(kind=kind, client=self.client, role=self.role, topic=self.topic, **fields)  # type: ignore[arg-type]

    def rows(self) -> Iterator[Row]:
        """Yield the rows of all seconds, and of the errors."""
        self._end_second()
        yield from self._rows
        for text, count in self._texts.items():
            yield self.row(Kind.ERROR, text=text, errors=count)

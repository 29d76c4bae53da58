"""The values of records: text, and at the end a stamp of the sender, the sequence and the due time.

    text | stream (8 bytes) | sequence (8) | due (8, microseconds since the epoch) | CRC32C of all before it (4)

All little-endian. The CRC is the end of the value, so that the CRC of a whole valid value is one constant.
The text of a slot never changes, and CRCs are linear: a slot's base, xor one table for each byte of sequence
and due, is its CRC. So thousands of values are stamped by some array operations.
"""

import hashlib
from typing import Final

import crc32c
import numpy as np
import numpy.typing as npt

from ottla.bench.generators import memory
from ottla.bench.workloads.model import RecordSize, SizeLaw

STAMP_BYTES: Final = 28
_CRC_BYTES: Final = 4
#: The size of sequence and due time, which change from record to record.
_VARIABLE_BYTES: Final = 16
_VARIABLE = np.dtype([("sequence", "<u8"), ("due_us", "<u8")])
_STAMP = np.dtype([("stream", "<u8"), ("sequence", "<u8"), ("due_us", "<u8"), ("crc", "<u4")])
assert _STAMP.itemsize == STAMP_BYTES
#: The CRC of any bytes with their own CRC behind them.
_CRC_OF_VALID: Final = crc32c.crc32c(bytes(_CRC_BYTES))
#: The letters of kafka-producer-perf-test's values: they compress to about 60 %.
_LETTERS: Final = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", np.uint8)


def stream_id(name: str) -> int:
    """The id in the stamps of a producer; `name` is unique among all that ever write to its topics."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def shown_stream(stream: int) -> str:
    """Return the stream's id as in `Row.stream`."""
    return f"{stream:016x}"


def _tables() -> npt.NDArray[np.uint32]:
    """Return, for each variable byte, the change of the CRC by each of its values; one table after the other."""
    of_zeros = crc32c.crc32c(bytes(_VARIABLE_BYTES))
    tables = np.zeros((_VARIABLE_BYTES, 256), np.uint32)
    for at in range(_VARIABLE_BYTES):
        for value in range(256):
            variable = bytearray(_VARIABLE_BYTES)
            variable[at] = value
            tables[at, value] = crc32c.crc32c(variable) ^ of_zeros
    return tables.ravel()


_TABLES: Final = _tables()
#: The index at which the table of each variable byte begins.
_TABLE_AT: Final = np.arange(_VARIABLE_BYTES) * 256


def _sizes(law: RecordSize, count: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    if law.law is SizeLaw.FIXED:
        return np.full(count, law.mean, np.int64)
    if law.law is SizeLaw.UNIFORM:
        return random.integers(law.least, law.most, count, np.int64, endpoint=True)
    # The mean of a log-normal distribution is exp(mu + sigma^2 / 2).
    drawn = random.lognormal(np.log(law.mean) - law.sigma**2 / 2, law.sigma, count)
    return np.clip(np.rint(drawn), law.least, law.most).astype(np.int64)


class Values:
    """The values of one producer in slots, which are used in turn.

    Cost: 5 us and 50 ns for each record that is stamped.
    """

    def __init__(self, size: RecordSize, *, stream: int, slots: int) -> None:
        assert min(size.mean, size.least) >= STAMP_BYTES, size
        # Another stream has other text, and the same one the same.
        random = np.random.default_rng(stream)
        #: The size of the value in each slot.
        self.sizes = _sizes(size, slots, random)
        ends = np.cumsum(self.sizes)
        self._bytes = random.choice(_LETTERS, int(ends[-1]))
        #: The address of the value in each slot.
        self.addresses = ends - self.sizes + self._bytes.ctypes.data
        self._stamps_at = (ends - STAMP_BYTES)[:, np.newaxis] + np.arange(STAMP_BYTES)
        self._stamps = np.zeros(slots, _STAMP)
        self._stamps["stream"] = stream
        name = stream.to_bytes(8, "little")
        texts = memoryview(self._bytes.data)
        self._base = np.array(
            [
                crc32c.crc32c(
                    name + bytes(_VARIABLE_BYTES), crc32c.crc32c(texts[end - length : end - STAMP_BYTES])
                )
                for end, length in zip(ends.tolist(), self.sizes.tolist(), strict=True)
            ],
            np.uint32,
        )

    def __len__(self) -> int:
        return len(self.sizes)

    def stamp(self, first: int, sequences: npt.NDArray[np.int64], due_us: npt.NDArray[np.int64]) -> None:
        """Write the stamps of the slots from `first` on."""
        slots = slice(first, first + len(sequences))
        variable = np.empty(len(sequences), _VARIABLE)
        variable["sequence"] = sequences
        variable["due_us"] = due_us
        rows = variable.view(np.uint8).reshape(-1, _VARIABLE_BYTES)
        stamps = self._stamps[slots]
        stamps["sequence"] = sequences
        stamps["due_us"] = due_us
        stamps["crc"] = self._base[slots] ^ np.bitwise_xor.reduce(_TABLES[rows + _TABLE_AT], axis=1)
        self._bytes[self._stamps_at[slots]] = stamps.view(np.uint8).reshape(-1, STAMP_BYTES)

    def value(self, slot: int) -> bytes:
        """Return a copy of the value in a slot."""
        start = int(self.addresses[slot]) - self._bytes.ctypes.data
        return self._bytes[start : start + int(self.sizes[slot])].tobytes()


class Stamps:
    """The stamps of some values as arrays; `is_valid` where the CRC is right."""

    def __init__(self, addresses: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> None:
        """Read the stamps of values in memory. A value that is too short for a stamp is not valid.

        Cost: 0.4 us for each KB.
        """
        self.is_valid = (sizes >= STAMP_BYTES) & (addresses != 0)
        starts = (addresses - memory.BASE)[self.is_valid]
        ends = starts + sizes[self.is_valid]
        crc_of, view = crc32c.crc32c, memory.VIEW
        # One call for each value: it reads every byte, and an array operation would do so 50 times more slowly.
        crcs = [crc_of(view[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        self.is_valid[self.is_valid] = np.array(crcs, np.int64) == _CRC_OF_VALID
        stamps_at = (addresses + sizes)[self.is_valid] - STAMP_BYTES
        #: The streams of the valid stamps only, like the two arrays below.
        self.streams = memory.words_at(stamps_at)
        self.sequences = memory.words_at(stamps_at + 8).astype(np.int64)
        self.due_us = memory.words_at(stamps_at + 16).astype(np.int64)

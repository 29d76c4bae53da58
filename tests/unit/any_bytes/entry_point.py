"""Every place that turns bytes of a client, a peer, a bucket or a disk into objects, as a function of these bytes.

An entry point returns nothing. It ends, or raises one of the errors that its callers handle (`refusals`): any other
exception is a fault of ours, and so is one that takes long or much memory. What was decoded is also used as the callers
use it: written again, or served.

`tests/unit/any_bytes/test_any_bytes.py` gives them examples and what was found before (`corpus/`);
`tests/fuzz.py` looks for more, by hand (`make fuzz`).
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Any

from ottla.metadata import frame as metadata_frame
from ottla.metadata.records import RECORD_CLASSES as METADATA_CLASSES
from ottla.protocol.checksum import crc32c
from ottla.protocol.errors import KafkaError
from ottla.protocol.records.batch import HEADER_SIZE_BYTES, patched, read_header
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.records.compression import Compression
from ottla.protocol.records.control import (
    EndTransactionMarker,
    build_end_transaction_marker,
)
from ottla.protocol.records.record import Bounds
from ottla.protocol.schema import Message
from ottla.storage.files import Files
from tests.unit.any_bytes.filled import filled

NOW_MS = 1_700_000_000_000
FILES = Files()
#: What a batch may be here: no entry point may use more memory than a few times this.
BOUNDS = Bounds(max_bytes=1 << 20, max_records=20_000)


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One of them; `seeds` are valid inputs to begin with."""

    read: Callable[[bytes], None]
    refusals: tuple[type[Exception], ...]
    seeds: Callable[[], Sequence[bytes]]

    def check(self, data: bytes) -> None:
        """Any exception but a refusal goes on."""
        with suppress(*self.refusals):
            self.read(data)


ENTRY_POINTS: dict[str, EntryPoint] = {}


def entry_point(
    *refusals: type[Exception], seeds: Callable[[], Sequence[bytes]]
) -> Callable[[Callable[[bytes], None]], Callable[[bytes], None]]:
    def add(read: Callable[[bytes], None]) -> Callable[[bytes], None]:
        ENTRY_POINTS[read.__name__] = EntryPoint(read, refusals, seeds)
        return read

    return add


def batch_of(count: int, **fields: Any) -> bytes:
    pairs = [(b"key", b"value %d" % number) for number in range(count)]
    return bytes(build_batch(simple_records(pairs, timestamp=NOW_MS), **fields))


@cache
def valid_batches() -> Sequence[bytes]:
    marker = EndTransactionMarker(is_commit=True, coordinator_epoch=1, timestamp=NOW_MS)
    return [
        *(batch_of(count, compression=codec) for codec in Compression for count in (1, 3)),
        batch_of(2, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True),
        bytes(build_end_transaction_marker(marker, producer_id=7, producer_epoch=0)),
        batch_of(1) + b"".join(patched(memoryview(batch_of(2)), base_offset=1, leader_epoch=2)),
        batch_of(1)[:16] + b"\1" + batch_of(1)[17:],
        batch_of(1)[:16] + b"\0" + batch_of(1)[17:],
    ]


CRC = Struct(">I")


def with_checksums(data: bytes) -> bytes:
    """The same batches with the right checksums, as any client can write them."""
    found = bytearray(data)
    at = 0
    with suppress(KafkaError):
        while len(found) - at >= HEADER_SIZE_BYTES:
            end = at + read_header(found, at).size_bytes
            if end > len(found):
                break
            CRC.pack_into(found, at + 17, crc32c(memoryview(found)[at + 21 : end]))
            at = end
    return bytes(found)


def versions_of(cls: type[Message]) -> range:
    last = cls.__versions__.last
    assert last is not None, cls
    return range(cls.__versions__.first, last + 1)


def metadata_records() -> list[bytes]:
    return [
        metadata_frame.encode_record(filled(cls, version), version)
        for cls in METADATA_CLASSES.values()
        for version in versions_of(cls)
    ]


@contextmanager
def folder(**contents: bytes) -> Iterator[Path]:
    """A folder in memory, where there is one, with these files."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        for name, data in contents.items():
            (Path(path) / name).write_bytes(data)
        yield Path(path)

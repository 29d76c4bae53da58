"""The fast path and the general path of Produce and Fetch: stories on the general path alone must be the same.

On the general path, every request is parsed, and every batch goes through the
general append (`ottla.broker.api.k00_produce`, `ottla.broker.replicas.follower_replica`); leaders and
followers write and read each Fetch by the general codec (`ottla.protocol.hot.fetch`), and leaders check and
read each row by the general rules (`ottla.broker.replicas.reading.read_from_log`,
`ottla.storage.log_reader`). A story is the same either way, event by event, unless its disk is cold: whether
the newest batches are in memory, which is random there, is asked by the general rules only.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from ottla.broker.api.dispatch import RequestHead
from ottla.broker.replicas.reading.read_from_log import LogReads
from ottla.protocol.hot import fetch
from ottla.protocol.hot.fetch import IncrementalRequest, IncrementalRequests
from ottla.storage.fast_append import FastAppend
from ottla.storage.log_reader import LogReader


@contextmanager
def general_only() -> Iterator[None]:
    """No request is recognised, and no append and no Fetch takes the fast path."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(RequestHead, "correlation_id", lambda self, frame: None))
        stack.enter_context(patch.object(FastAppend, "append_as_leader", lambda self, records, **_: None))
        stack.enter_context(patch.object(LogReads, "_check_fast", LogReads._check))
        stack.enter_context(patch.object(LogReads, "_has_nothing_new", lambda *_: False))
        stack.enter_context(patch.object(LogReader, "read_newest", lambda *_, **__: None))
        stack.enter_context(patch.object(FastAppend, "append_as_follower", lambda self, records, **_: False))
        for name in ("encode_fast_request", "encode_fast_response", "decode_fast_response"):
            stack.enter_context(patch.object(fetch, name, lambda *_, **__: None))
        yield


@contextmanager
def counting_fast_appends() -> Iterator[list[int]]:
    """The first offsets of all appends on the fast path."""
    append, found = FastAppend.append_as_leader, list[int]()

    def append_and_count(
        self: FastAppend, records: memoryview, *, leader_epoch: int, now_ms: int
    ) -> int | None:
        first_offset = append(self, records, leader_epoch=leader_epoch, now_ms=now_ms)
        if first_offset is not None:
            found.append(first_offset)
        return first_offset

    with patch.object(FastAppend, "append_as_leader", append_and_count):
        yield found


@contextmanager
def counting_fast_copies() -> Iterator[list[bool]]:
    """Whether each append of a follower took the fast path."""
    append, found = FastAppend.append_as_follower, list[bool]()

    def append_and_count(self: FastAppend, records: memoryview, *, leader_epoch: int, now_ms: int) -> bool:
        is_fast = append(self, records, leader_epoch=leader_epoch, now_ms=now_ms)
        found.append(is_fast)
        return is_fast

    with patch.object(FastAppend, "append_as_follower", append_and_count):
        yield found


@contextmanager
def counting_fast_fetches() -> Iterator[list[bool]]:
    """Whether each recognised request of a fetch session took the fast path."""
    decode, found = IncrementalRequests.decode, list[bool]()

    def decode_and_count(self: IncrementalRequests, body: memoryview) -> IncrementalRequest | None:
        fast = decode(self, body)
        found.append(fast is not None)
        return fast

    with patch.object(IncrementalRequests, "decode", decode_and_count):
        yield found

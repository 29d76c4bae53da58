"""The two ways of a Produce: the usual one, and one of the general alone, which must make no difference.

Where nothing is recognised and nothing is usual, every request is parsed, and every batch goes through the general append
(`broker.api.k00_produce`). A story is the same either way, event by event.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from broker.api.request_head import RequestHead
from storage.usual_append import UsualAppend


@contextmanager
def general_only() -> Iterator[None]:
    """No request is recognised, and no append is a usual one."""
    with (
        patch.object(RequestHead, "correlation_id", lambda self, frame: None),
        patch.object(UsualAppend, "append", lambda self, records, **_: None),
    ):
        yield


@contextmanager
def counting_usual_appends() -> Iterator[list[int]]:
    """The first offsets of all usual appends."""
    append, found = UsualAppend.append, list[int]()

    def append_and_count(
        self: UsualAppend, records: memoryview, *, leader_epoch: int, now_ms: int
    ) -> int | None:
        first_offset = append(self, records, leader_epoch=leader_epoch, now_ms=now_ms)
        if first_offset is not None:
            found.append(first_offset)
        return first_offset

    with patch.object(UsualAppend, "append", append_and_count):
        yield found

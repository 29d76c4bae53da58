"""Bugs that are planted into the remote tier, each by one rule that is replaced."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.expiration import expire
from ottla.remote.log_manager import expiration_task
from ottla.remote.log_manager.deletions import CopyDeletions
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.storage import retention


@contextmanager
def local_retention_does_not_wait_for_copies() -> Iterator[None]:
    """A segment is removed when local.retention.bytes is exceeded, copied or not."""
    with patch.object(retention, "_copied_end", lambda offsets, limits: offsets.log_end_offset):
        yield


@contextmanager
def unfinished_copies_are_forgotten() -> Iterator[None]:
    """Expiration deletes finished copies only."""

    def forgetful(*args: Any, **named: Any) -> Any:
        found = expire(*args, **named)
        found.deleted[:] = [
            each for each in found.deleted if each[0].state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED
        ]
        return found

    with patch.object(expiration_task, "expire", forgetful):
        yield


@contextmanager
def objects_before_the_metadata() -> Iterator[None]:
    """The objects of a copy are deleted before DELETE_SEGMENT_STARTED is stored."""

    async def delete(self: CopyDeletions, copy: RemoteLogSegmentMetadata) -> None:
        await self._transfers.delete(copy)
        await self.complete(await self.begin(copy))

    with patch.object(CopyDeletions, "delete", delete):
        yield

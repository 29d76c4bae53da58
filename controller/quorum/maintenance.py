"""Maintenance of the metadata log's files: snapshots are written, old snapshots and segments are removed.

Raft depends on neither: a failure is logged, and retried later. `ottla.controller.quorum.snapshot_generator` and
`ottla.controller.metadata_log.log_cleaning` decide when it is due, `MetadataLog.clean` what is deleted.
"""

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Final

from ottla.controller.metadata_log.log import MetadataLog
from ottla.controller.metadata_log.snapshot_writer import SnapshotWriter
from ottla.metadata.image import InvalidMetadata, MetadataImage
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.voters_record import VotersRecord
from ottla.runtime import Pool, Runtime

logger: Final = logging.getLogger(__name__)


class MetadataLogMaintenance:
    """The maintenance of one metadata log: its snapshots are written, and old data is deleted."""

    def __init__(self, log: MetadataLog, *, runtime: Runtime) -> None:
        self._log = log
        self._runtime = runtime
        #: Writes a snapshot; None while none is being written.
        self.snapshot_task: asyncio.Task[None] | None = None

    def begin_snapshot(
        self,
        end_offset: int,
        copy: Callable[[], MetadataImage],
        *,
        kraft_version: int,
        voters: VotersRecord | None,
    ) -> bool:
        """Begin to write the image that `copy` returns as the snapshot of everything before `end_offset`.

        False if another one is being written, or `MetadataLog.create_snapshot` needs none. Raises InvalidMetadata
        and OSError.
        """
        if self.snapshot_task is not None:
            return False
        writer = self._log.create_snapshot(end_offset)
        if writer is None:
            return False
        write = functools.partial(
            writer.write, copy(), kraft_version=kraft_version, voters=voters, now_ms=self._runtime.now_ms()
        )
        self.snapshot_task = self._runtime.create_task(
            self._write_snapshot(writer, write), name="metadata-snapshot"
        )
        return True

    async def _write_snapshot(self, writer: SnapshotWriter, write: Callable[[], None]) -> None:
        try:
            await self._runtime.run_blocking(write, pool=Pool.METADATA)
            self._log.snapshot_written(writer)
        except (KafkaError, OSError, InvalidMetadata) as error:
            logger.error(
                "the snapshot of the metadata log was not written; it is tried again later: %r", error
            )
        except Exception:
            logger.exception("the snapshot of the metadata log was not written; it is tried again later")
        finally:
            self.snapshot_task = None

    async def clean(self) -> None:
        """Delete snapshots and segments that are too old or too large, and remove files that are due."""
        now_ms = self._runtime.now_ms()
        try:
            self._log.clean(now_ms)
            if (job := self._log.removals_due(now_ms)) is not None:
                await self._runtime.run_blocking(job.run, pool=Pool.METADATA)
                job.finish()
        except (KafkaError, OSError, InvalidMetadata) as error:
            logger.error(
                "old snapshots and segments of the metadata log were not deleted; it is tried again later: %r",
                error,
            )

    async def stop(self) -> None:
        """Wait for the snapshot that is being written."""
        if self.snapshot_task is not None:
            await asyncio.wait([self.snapshot_task])

"""Flushes of a log: when one is due, and the job that does it; closing."""

from logging import getLogger

from protocol.errors import KafkaStorageError
from storage.background import BackgroundJob
from storage.log import Log

_LOG = getLogger(__name__)


def flush_due(log: Log, now_ms: int) -> int | None:
    """The end offset of the flush that is due now; None without one."""
    if log.is_flush_due or (log.config.flush_ms <= now_ms - log.last_flushed_ms and log.unflushed_count):
        return log.log_end_offset
    return log.flush_wanted_to


def flush_job(log: Log, end: int, now_ms: int) -> BackgroundJob:
    """Flush in a thread; then advance the recovery point on the event loop, unless the log was truncated meanwhile."""
    truncations, active = log.truncations, log.segments.active
    log.flush_wanted_to = None
    log.last_flushed_ms = now_ms
    is_flushed = False

    def run() -> None:
        nonlocal is_flushed
        try:
            log.flush_files(end)
            is_flushed = True
        except KafkaStorageError:
            return  # already reported by the log, which is offline

    def finish() -> None:
        if is_flushed:
            log.mark_flushed(end, truncations=truncations, active=active)

    return BackgroundJob(name=f"flush {log.topic_partition} to {end}", run=run, finish=finish)


def close_log(log: Log) -> None:
    """Close a log; a disk failure is logged, and has taken the directory offline."""
    try:
        log.close()
    except KafkaStorageError as error:
        _LOG.error("%s", error)

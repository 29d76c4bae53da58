"""When a log is to be flushed, and the job that does it; closing."""

from logging import getLogger

from protocol.errors import KafkaStorageError
from storage.background import BackgroundJob
from storage.log import Log

_LOG = getLogger(__name__)


def flush_due(log: Log, now_ms: int) -> int | None:
    """Up to where the log is to be flushed now, if it is."""
    if log.is_flush_due or (log.config.flush_ms <= now_ms - log.last_flushed_ms and log.unflushed_count):
        return log.log_end_offset
    return log.flush_wanted_to


def flush_job(log: Log, end: int, now_ms: int) -> BackgroundJob:
    """Flush in a thread; the recovery point moves on the loop, unless the log has been truncated meanwhile."""
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
            return  # the log has told already, and is offline

    def finish() -> None:
        if is_flushed:
            log.mark_flushed(end, truncations=truncations, active=active)

    return BackgroundJob(name=f"flush {log.topic_partition} to {end}", run=run, finish=finish)


def close_log(log: Log) -> None:
    """Close it; a disk that fails is told, and has taken the directory offline."""
    try:
        log.close()
    except KafkaStorageError as error:
        _LOG.error("%s", error)

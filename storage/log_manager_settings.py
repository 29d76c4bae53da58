"""LogManagerSettings: the broker's configurations for all logs."""

from dataclasses import dataclass

from storage.cleaner import DEDUPE_BUFFER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class LogManagerSettings:
    """Kafka's defaults; replaced as a whole when a dynamic configuration changes."""

    #: log.retention.check.interval.ms
    retention_check_interval_ms: int = 5 * 60 * 1000
    #: log.flush.offset.checkpoint.interval.ms
    checkpoint_interval_ms: int = 60 * 1000
    #: log.flush.start.offset.checkpoint.interval.ms
    log_start_checkpoint_interval_ms: int = 60 * 1000
    #: replica.high.watermark.checkpoint.interval.ms
    high_watermark_checkpoint_interval_ms: int = 5 * 1000
    #: producer.id.expiration.ms
    producer_id_expiration_ms: int = 24 * 60 * 60 * 1000
    #: producer.id.expiration.check.interval.ms
    producer_id_expiration_check_interval_ms: int = 10 * 60 * 1000
    #: log.cleaner.dedupe.buffer.size
    cleaner_dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES
    #: num.recovery.threads.per.data.dir
    recovery_threads_per_data_dir: int = 2

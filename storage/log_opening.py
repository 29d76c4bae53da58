"""Opening of a log's directory: recovery, repeated after each split of a segment that overflows (KAFKA-6264)."""

from collections.abc import Callable
from logging import getLogger
from pathlib import Path
from uuid import UUID

from ottla.config.log_config import LogConfig
from ottla.storage import leader_epoch_cache, overflow, partition_metadata, recovery
from ottla.storage.files import Files
from ottla.storage.leader_epoch_cache import LeaderEpochCache
from ottla.storage.log_files import segment_settings
from ottla.storage.producer_state import ProducerStateManager
from ottla.storage.recovery import Loaded, Loading
from ottla.storage.segment import OffsetOverflow

_LOG = getLogger(__name__)


def load_directory(
    directory: Path,
    *,
    config: LogConfig,
    files: Files,
    now_ms: int,
    is_clean: bool,
    recovery_point: int,
    log_start_offset: int,
    is_tiered: bool,
    producer_id_expiration_ms: Callable[[], int],
) -> Loaded:
    """Load the log in this directory, which is created if missing; see `Log.open`. Raises OSError. [any thread]"""
    # The directory's entry is flushed with the first flush: 1,000 new partitions do not wait 1,000 times for the disk.
    is_new = files.make_dir(directory)
    epochs_path = directory / leader_epoch_cache.FILE_NAME
    epochs = (
        LeaderEpochCache(path=epochs_path, files=files)
        if is_new
        else LeaderEpochCache.open(epochs_path, files)
    )
    loading = Loading(
        directory=directory,
        files=files,
        settings=segment_settings(config),
        now_ms=now_ms,
        is_new=is_new,
        is_clean=is_clean,
        # From checkpoint files, which have no checksum.
        recovery_point=max(recovery_point, 0),
        log_start_offset=max(log_start_offset, 0),
        is_tiered=is_tiered,
        is_compacted=config.is_compacted,
        epochs=epochs,
        producers=ProducerStateManager(producer_id_expiration_ms=producer_id_expiration_ms),
    )
    while True:
        try:
            loaded = recovery.load(loading)
            found = overflow.overflowed(loaded.segments, loaded.offsets.log_end_offset)
        except OffsetOverflow:
            found = overflow.overflowed_in(directory, settings=loading.settings, files=files, now_ms=now_ms)
            assert found, directory
        if not found:
            return loaded
        overflow.split(found[0], files=files, now_ms=now_ms)


def read_topic_id(directory: Path, files: Files) -> UUID | None:
    """The topic id in `partition.metadata`; None if the file is missing or not valid. Raises OSError. [any thread]"""
    try:
        return partition_metadata.read(directory, files)
    except ValueError as error:
        _LOG.warning("%s: partition.metadata is not valid and will be rewritten: %s", directory, error)
        return None

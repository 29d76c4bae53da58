"""Activation records: what a controller writes when it becomes active, before it serves requests.

    empty log:     the records of `bootstrap.checkpoint`, or of the log's first snapshot: as one metadata transaction
                   (KIP-868), or as one batch where metadata.version is below 13
    other log:     AbortTransaction if the last controller left a transaction open, else nothing

Raft has already written the control records that an epoch begins with: LeaderChange and, in an empty log under
kraft.version 1, the voters. Source: ActivationRecordsGenerator of Kafka 4.3.1.
"""

from pathlib import Path

from ottla.controller.configs import MIN_INSYNC_REPLICAS
from ottla.controller.features import DEFAULT_LEVELS
from ottla.controller.formatting import bootstrap_records
from ottla.controller.metadata_log import snapshots
from ottla.controller.metadata_log.record_versions import TRANSACTIONS_3_6_IV1
from ottla.controller.result import Result
from ottla.controller.settings import ControllerSettings
from ottla.metadata.features import ELR_VERSION
from ottla.metadata.image import METADATA_VERSION, ConfigResourceType, InvalidMetadata, MetadataImage
from ottla.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataRecord,
)
from ottla.storage.file_names import LOG, METADATA_LOG
from ottla.storage.files import Files


def format_directory(directory: Path, files: Files, *, now_ms: int) -> None:
    """Write what `kafka-storage format` writes for a cluster with a configured voter. [any thread]

    `directory` is the metadata log's. An existing file is kept, since the directory may have been formatted with
    other levels; a log that already has records needs no bootstrap records.
    """
    log_dir = directory.parent
    if files.exists(log_dir / snapshots.BOOTSTRAP_FILE) or _is_in_use(directory, files):
        return
    snapshots.write_bootstrap(log_dir, bootstrap_records(DEFAULT_LEVELS), files, now_ms=now_ms)


def _is_in_use(directory: Path, files: Files) -> bool:
    """Whether the metadata log has records."""
    names = files.list(directory) if files.is_dir(directory) else []
    return any(name.endswith((LOG, snapshots.SUFFIX)) and files.size_of(directory / name) for name in names)


def first_decision(
    image: MetadataImage,
    *,
    log_dir: Path,
    files: Files,
    settings: ControllerSettings,
    is_transaction_open: bool,
) -> Result[None]:
    """The records of the table above. Only in a new cluster it reads a file, a small one. Raises InvalidMetadata."""
    records: list[MetadataRecord] = []
    metadata_version = image.metadata_version
    if metadata_version is None:  # an empty log, or one that ends within its bootstrap records
        records, metadata_version = _bootstrap(_read(_bootstrap_file(log_dir, files), files), settings)
    if is_transaction_open:
        if metadata_version < TRANSACTIONS_3_6_IV1:
            raise InvalidMetadata(
                f"A metadata transaction is open, which metadata.version {metadata_version} does not support."
            )
        records.insert(0, AbortTransactionRecord(reason="Controller failover"))
    return Result(response=None, records=records, is_atomic=metadata_version < TRANSACTIONS_3_6_IV1)


def _bootstrap_file(log_dir: Path, files: Files) -> Path:
    """The file with the first records: Kafka 4.4 formats with them in the metadata log's first snapshot."""
    first = log_dir / METADATA_LOG / snapshots.FIRST_CHECKPOINT_FILE
    bootstrap = log_dir / snapshots.BOOTSTRAP_FILE
    return first if files.exists(first) and not files.exists(bootstrap) else bootstrap


def _read(path: Path, files: Files) -> list[MetadataRecord]:
    try:
        return [record for found in snapshots.read(path, files) for record in found]
    except OSError as error:
        raise InvalidMetadata(
            f"A new cluster needs {path}, written when the directory is formatted: {error}"
        ) from error


def _bootstrap(
    records: list[MetadataRecord], settings: ControllerSettings
) -> tuple[list[MetadataRecord], int]:
    """The first records of an empty log, and the metadata.version that they set."""
    levels = {each.name: each.feature_level for each in records if isinstance(each, FeatureLevelRecord)}
    if METADATA_VERSION not in levels:
        raise InvalidMetadata(f"{snapshots.BOOTSTRAP_FILE} does not contain a record of {METADATA_VERSION}")
    if levels.get(ELR_VERSION, 0):
        value = settings.static_configs.get(MIN_INSYNC_REPLICAS, "1")
        records.append(
            ConfigRecord(
                resource_type=ConfigResourceType.BROKER,
                resource_name="",
                name=MIN_INSYNC_REPLICAS,
                value=value,
            )
        )
    if levels[METADATA_VERSION] >= TRANSACTIONS_3_6_IV1:
        records = [BeginTransactionRecord(name="Bootstrap records"), *records, EndTransactionRecord()]
    return records, levels[METADATA_VERSION]

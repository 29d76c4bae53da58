"""What a controller writes when it becomes the active one, before it serves anybody.

    empty log:     LeaderChange (with the voters, under kraft.version 1), then as one transaction what the
                   cluster starts with, read from `bootstrap.checkpoint`
    other log:     LeaderChange; AbortTransaction if the last controller left a transaction open

Source: ActivationRecordsGenerator and LeaderState of Kafka 4.3.1.
"""

from collections.abc import Iterable
from pathlib import Path

from controller import snapshots
from controller.configs import MIN_INSYNC_REPLICAS
from controller.features import DEFAULT_LEVELS, ELR_VERSION, SUPPORTED_LEVELS
from controller.settings import ControllerSettings
from controller.snapshots import voters_record
from protocol.messages.k_raft_version_record import KRaftVersionRecord
from protocol.messages.leader_change_message import LeaderChangeMessage, Voter
from protocol.metadata.image import METADATA_VERSION, ConfigResourceType, InvalidMetadata, MetadataImage
from protocol.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataRecord,
)
from protocol.records.quorum import QuorumMessage
from storage.files import Files


def kraft_version(settings: ControllerSettings) -> int:
    """Whether voters live in the log (1, KIP-853): they can, where this one has an address to be found at."""
    return 0 if settings.listener is None else 1


def format_directory(log_dir: Path, settings: ControllerSettings, files: Files, *, now_ms: int) -> None:
    """Write what `kafka-storage format` leaves for a cluster with this node as its only voter.

    What is there already stays: somebody may have formatted the directory with other levels.
    """
    if not files.exists(log_dir / snapshots.BOOTSTRAP_FILE):
        levels = settings.initial_features or DEFAULT_LEVELS
        records = [
            FeatureLevelRecord(name=name, feature_level=level) for name, level in levels.items() if level
        ]
        snapshots.write_bootstrap(log_dir, records, files, now_ms=now_ms)


def epoch_start(settings: ControllerSettings, *, is_log_empty: bool) -> list[QuorumMessage]:
    """The control records that an epoch of this leader begins with."""
    me = [Voter(voter_id=settings.node_id)]
    messages: list[QuorumMessage] = [
        LeaderChangeMessage(leader_id=settings.node_id, voters=me, granting_voters=me)
    ]
    if is_log_empty and kraft_version(settings) > 0:
        messages += [KRaftVersionRecord(k_raft_version=1), voters_record(settings)]
    return messages


def first_records(
    bootstrap: Iterable[MetadataRecord], settings: ControllerSettings
) -> tuple[list[MetadataRecord], int]:
    """What an empty log begins with, and the metadata.version that it sets. Raises InvalidMetadata."""
    records = list(bootstrap)
    levels = {each.name: each.feature_level for each in records if isinstance(each, FeatureLevelRecord)}
    if METADATA_VERSION not in levels:
        raise InvalidMetadata(f"{snapshots.BOOTSTRAP_FILE} does not say the {METADATA_VERSION}")
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
    return (
        [BeginTransactionRecord(name="Bootstrap records"), *records, EndTransactionRecord()],
        levels[METADATA_VERSION],
    )


def later_records(*, is_transaction_open: bool) -> list[MetadataRecord]:
    """What a new leader of a log that is in use begins with."""
    return [AbortTransactionRecord(reason="Controller failover")] if is_transaction_open else []


def check_features(image: MetadataImage) -> None:
    """Refuses to lead a cluster whose records may mean more than this software knows. Raises InvalidMetadata."""
    level, known = image.metadata_version, SUPPORTED_LEVELS[METADATA_VERSION]
    if level is not None and level not in known:
        raise InvalidMetadata(
            f"The cluster's {METADATA_VERSION} is {level}; this software knows {known.start} to {known.stop - 1}."
        )

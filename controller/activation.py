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
from controller.features import DEFAULT_LEVELS
from controller.quorum_state import QuorumState
from controller.settings import ControllerSettings
from protocol.messages.k_raft_version_record import KRaftVersionRecord
from protocol.messages.leader_change_message import LeaderChangeMessage, Voter
from protocol.messages.voters_record import VotersRecord
from protocol.metadata.features import ELR_VERSION, UNDERSTOOD_FEATURES
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


def format_directory(directory: Path, settings: ControllerSettings, files: Files, *, now_ms: int) -> None:
    """Write what `kafka-storage format` leaves for a cluster with this node as its only voter.

    `directory` is the metadata log's. What is there already stays: somebody may have formatted it otherwise.
    Voters live in the log (kraft.version 1, KIP-853) where this one has an address to be found at.
    """
    if not files.exists(directory.parent / snapshots.BOOTSTRAP_FILE):
        levels = settings.initial_features or DEFAULT_LEVELS
        records = [
            FeatureLevelRecord(name=name, feature_level=level) for name, level in levels.items() if level
        ]
        snapshots.write_bootstrap(directory.parent, records, files, now_ms=now_ms)
        if settings.listener is not None:
            snapshots.write_first_voters(directory, settings, files, now_ms=now_ms)


def next_epoch(
    known: QuorumState | None, voters: VotersRecord | None, settings: ControllerSettings, *, last_epoch: int
) -> QuorumState:
    """The epoch that this node leads as the only voter. Raises InvalidMetadata if there are others.

    `known` and `voters` are what the files say, `last_epoch` is the log's.
    """
    voting = {voter.voter_id for voter in voters.voters} if voters else set()
    voting |= set(known.voters) if known else set()
    if voting - {settings.node_id}:
        raise InvalidMetadata(
            f"The metadata quorum has voters {sorted(voting)}, but node {settings.node_id} can only lead alone."
        )
    return QuorumState(
        leader_epoch=max(known.leader_epoch if known else 0, last_epoch) + 1,
        leader_id=settings.node_id,
        kraft_version=known.kraft_version if known else int(voters is not None),
        voters=(settings.node_id,),
    )


def epoch_start(settings: ControllerSettings, voters: VotersRecord | None) -> list[QuorumMessage]:
    """The control records that an epoch of this leader begins with; `voters` only where they are new to the log."""
    me = [Voter(voter_id=settings.node_id)]
    messages: list[QuorumMessage] = [
        LeaderChangeMessage(leader_id=settings.node_id, voters=me, granting_voters=me)
    ]
    if voters is not None:
        messages += [KRaftVersionRecord(k_raft_version=1), voters]
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
    level, known = image.metadata_version, UNDERSTOOD_FEATURES[METADATA_VERSION]
    if level is not None and level not in known:
        raise InvalidMetadata(
            f"The cluster's {METADATA_VERSION} is {level}; this software knows {known.start} to {known.stop - 1}."
        )

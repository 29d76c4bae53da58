"""A metadata log to start from: a cluster with many partitions, one of whose brokers was restarted.

python -m ottla.bench.internals.quorum_log DATA_DIR TOPICS PARTITIONS_PER_TOPIC
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final
from uuid import UUID

from ottla.controller.metadata_log import snapshots
from ottla.controller.metadata_log.log import MetadataLog
from ottla.controller.metadata_log.new_batches import batches_of
from ottla.metadata.image import ConfigResourceType
from ottla.metadata.records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from ottla.storage.files import Files

_BROKERS: Final = (1, 2, 3)
_RESTARTED: Final = 1
_EPOCH: Final = 1
_NOW_MS: Final = 1_700_000_000_000
_UNFENCED: Final = -1
_METADATA_VERSION: Final = "metadata.version"


def write_log(data_dir: Path, *, topics: int, partitions: int) -> None:
    """Write the log into a formatted controller's directory, a batch for each topic as a controller would.

    Brokers 1 to 3 have a replica of each partition, and lead a third of them. Then broker 1 is restarted: what
    it leads goes to another replica, and its ISRs lose and regain it.
    """
    files, random = Files(), Random(1)
    features = [
        record for chunk in snapshots.read(data_dir / snapshots.BOOTSTRAP_FILE, files) for record in chunk
    ]
    version = next(
        each.feature_level
        for each in features
        if isinstance(each, FeatureLevelRecord) and each.name == _METADATA_VERSION
    )
    log = MetadataLog.open(data_dir, files=files, random=random, now_ms=_NOW_MS)
    directories = [UUID(int=random.getrandbits(128), version=4) for _ in _BROKERS]

    def append(records: list[MetadataRecord]) -> None:
        for batch in batches_of(records, metadata_version=version):
            log.append(batch, epoch=_EPOCH, now_ms=_NOW_MS)

    append([*features, *_brokers(features, directories)])
    topic_ids = [UUID(int=random.getrandbits(128), version=4) for _ in range(topics)]
    for number, topic_id in enumerate(topic_ids):
        append(list(_topic(f"topic-{number}", topic_id, directories, partitions)))
    for topic_id in topic_ids:
        append([*_broker_leaves(topic_id, partitions), *_broker_is_back(topic_id, partitions)])
    log.close()


def _brokers(features: list[MetadataRecord], directories: list[UUID]) -> Iterator[MetadataRecord]:
    yield ConfigRecord(
        resource_type=ConfigResourceType.BROKER, resource_name="", name="min.insync.replicas", value="2"
    )
    supported = [
        BrokerFeature(name=each.name, min_supported_version=0, max_supported_version=each.feature_level)
        for each in features
        if isinstance(each, FeatureLevelRecord)
    ]
    for number, broker_id in enumerate(_BROKERS):
        broker_epoch = 100 + broker_id
        yield RegisterBrokerRecord(
            broker_id=broker_id,
            incarnation_id=UUID(int=broker_id),
            broker_epoch=broker_epoch,
            endpoints=[BrokerEndpoint(name="PLAINTEXT", host="127.0.0.1", port=9091 + broker_id)],
            features=supported,
            log_dirs=[directories[number]],
        )
        yield BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker_epoch, fenced=_UNFENCED)


def _leader_of(index: int) -> int:
    return _BROKERS[index % len(_BROKERS)]


def _topic(name: str, topic_id: UUID, directories: list[UUID], partitions: int) -> Iterator[MetadataRecord]:
    yield TopicRecord(name=name, topic_id=topic_id)
    for index in range(partitions):
        at = index % len(_BROKERS)
        replicas = [*_BROKERS[at:], *_BROKERS[:at]]
        yield PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=replicas,
            isr=replicas,
            leader=replicas[0],
            leader_epoch=0,
            partition_epoch=0,
            directories=[directories[replica - 1] for replica in replicas],
        )


def _broker_leaves(topic_id: UUID, partitions: int) -> Iterator[MetadataRecord]:
    isr = [each for each in _BROKERS if each != _RESTARTED]
    for index in range(partitions):
        change = PartitionChangeRecord(partition_id=index, topic_id=topic_id, isr=isr)
        if _leader_of(index) == _RESTARTED:
            change.leader = isr[0]
        yield change


def _broker_is_back(topic_id: UUID, partitions: int) -> Iterator[MetadataRecord]:
    for index in range(partitions):
        yield PartitionChangeRecord(partition_id=index, topic_id=topic_id, isr=list(_BROKERS))


if __name__ == "__main__":
    write_log(Path(sys.argv[1]), topics=int(sys.argv[2]), partitions=int(sys.argv[3]))

"""Cordoned log directories (KIP-1066): they keep what is in them, and get no new replicas.

    cordoned.log.dirs, altered for this broker --> storage: new logs go elsewhere; no replica may move there
                                               --heartbeat--> controller: a broker whose directories are all
                                                              cordoned is given no new replicas by itself
What somebody assigns by hand is accepted, as by Kafka; if all directories are cordoned, it goes to the first one.
Source: DynamicLogConfig, LogManager.nextLogDirs, BrokerLifecycleManager of Kafka 4.3.1.
"""

from pathlib import Path

from broker.config import BrokerConfig
from protocol.metadata.features import CORDONED_DIRECTORIES_4_3_IV0
from protocol.metadata.image import MetadataImage


def cordoned_paths(config: BrokerConfig) -> frozenset[Path]:
    """The entries of log.dirs that are cordoned."""
    names = config.get("cordoned.log.dirs") or ()
    return frozenset(map(Path, config.log_dirs if "*" in names else names))


def is_known_to(image: MetadataImage) -> bool:
    """Whether the cluster is told of cordoned directories."""
    return (image.metadata_version or 0) >= CORDONED_DIRECTORIES_4_3_IV0

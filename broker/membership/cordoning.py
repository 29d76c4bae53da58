"""Cordoned log directories (KIP-1066): they keep their replicas and receive no new ones.

    cordoned.log.dirs, altered for this broker --> storage: new logs use other directories; no replica moves there
                                               --heartbeat--> controller: assigns no new replicas to a broker
                                                              whose directories are all cordoned
A manual assignment is accepted, as by Kafka; if all directories are cordoned, it uses the first one.
Source: DynamicLogConfig, LogManager.nextLogDirs, BrokerLifecycleManager of Kafka 4.3.1.
"""

from pathlib import Path

from ottla.config.broker_config import BrokerConfig
from ottla.config.parsed_config import absolute_path
from ottla.metadata.features import CORDONED_DIRECTORIES_4_3_IV0
from ottla.metadata.image import MetadataImage


def cordoned_paths(config: BrokerConfig) -> frozenset[Path]:
    """The entries of log.dirs that are cordoned, as log.dirs names them."""
    names = config.get("cordoned.log.dirs") or ()
    if "*" in names:
        return frozenset(map(Path, config.log_dirs))
    cordoned = set(map(absolute_path, names))
    return frozenset(Path(each) for each in config.log_dirs if absolute_path(each) in cordoned)


def is_known_to(image: MetadataImage) -> bool:
    """Whether the metadata version has cordoned directories, so that heartbeats report them."""
    return (image.metadata_version or 0) >= CORDONED_DIRECTORIES_4_3_IV0

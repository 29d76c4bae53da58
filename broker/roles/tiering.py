"""Opens the remote tier of a broker, where `remote.log.storage.system.enable` is true.

Source: the wiring of RemoteLogManager in BrokerServer.createRemoteLogManager of Kafka 4.3.1.
"""

from collections.abc import Callable

from broker.config import BrokerConfig
from broker.roles.directories import CannotStart
from broker.roles.quorum import QuorumRole
from broker.tiering.managers import create_metadata_manager, create_storage_manager
from broker.tiering.metadata_topic import BrokerMetadataTopic
from broker.tiering.remote_tier import RemoteTier
from protocol.errors import InvalidConfig
from remote.metadata_manager import RemoteLogMetadataManager
from remote.topic_metadata.manager import TopicBasedRemoteLogMetadataManager
from runtime import Pool, Runtime

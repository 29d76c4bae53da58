"""The configuration in effect: the node's own properties under what the metadata log has altered since."""

import logging

from broker.config import BrokerConfig
from broker.metadata_cache import MetadataCache
from protocol.errors import InvalidConfig
from protocol.metadata.image import ConfigResource, ConfigResourceType, MetadataDelta
from storage.log_config import LogConfig

logger = logging.getLogger(__name__)


class ClusterConfig:
    """Puts static and dynamic configurations together, for the broker and for its topics (KIP-226)."""

    def __init__(self, static: BrokerConfig, metadata: MetadataCache) -> None:
        self.current = static
        self._static = static
        self._metadata = metadata
        self._cluster = ConfigResource(ConfigResourceType.BROKER, "")
        self._own = ConfigResource(ConfigResourceType.BROKER, str(static.node_id))

    def concerns(self, delta: MetadataDelta) -> bool:
        """Whether a change of the metadata changes this broker's configuration."""
        return self._cluster in delta.configs_changed or self._own in delta.configs_changed

    def refresh(self) -> BrokerConfig:
        """The configuration by the image as it is now; where it cannot be, the one before stays."""
        image = self._metadata.image
        try:
            self.current = self._static.with_dynamic(image.config(self._cluster), image.config(self._own))
        except InvalidConfig as error:
            logger.error("dynamic configurations were not applied: %s", error)
        if self.current.ignored_overrides:
            logger.warning(
                "dynamic configurations without effect: %s", ", ".join(self.current.ignored_overrides)
            )
        return self.current

    def topic_config(self, name: str) -> LogConfig:
        """A topic's configuration: its own overrides over the broker's defaults."""
        return self.current.log_config(self._metadata.image.topic_config(name))

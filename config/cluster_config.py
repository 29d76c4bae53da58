"""The effective configuration: the node's static properties, overridden by the dynamic configurations (KIP-226).

Source: DynamicBrokerConfig and KRaftMetadataCache.config of Kafka 4.3.1.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ottla.config import notices
from ottla.config.broker_config import BrokerConfig
from ottla.config.config_def import ConfigKey
from ottla.config.definitions import CLIENT_METRICS_CONFIGS, GROUP_CONFIGS
from ottla.config.log_config import TOPIC_CONFIGS, LogConfig
from ottla.metadata.image import ConfigResource, ConfigResourceType, MetadataDelta, MetadataImage
from ottla.protocol.errors import InvalidConfig

logger = logging.getLogger(__name__)

#: The configurations that may be altered for resources other than brokers.
_DEFINITIONS: Final[dict[ConfigResourceType, Mapping[str, ConfigKey]]] = {
    ConfigResourceType.TOPIC: TOPIC_CONFIGS,
    ConfigResourceType.GROUP: GROUP_CONFIGS,
    ConfigResourceType.CLIENT_METRICS: CLIENT_METRICS_CONFIGS,
}

#: Names of topics in one line of the log.
_MAX_NAMES: Final = 10


class ClusterConfig:
    """Combines static and dynamic configurations, for the broker and for its topics (KIP-226)."""

    def __init__(self, static: BrokerConfig, image: Callable[[], MetadataImage]) -> None:
        """`image` returns the metadata log's current image."""
        self.current = static
        self._static = static
        self._image = image
        self._cluster = ConfigResource(ConfigResourceType.BROKER, "")
        self._own = ConfigResource(ConfigResourceType.BROKER, str(static.node_id))
        #: The cluster's and the broker's dynamic values that `current` is made of, or that could not be applied.
        self._seen: tuple[dict[str, str], dict[str, str]] = ({}, {})
        #: The warnings about current values that `log_dynamic_warnings` has logged.
        self._logged: frozenset[str] = frozenset()

    def concerns(self, delta: MetadataDelta) -> bool:
        """Whether a change of the metadata changes this broker's configuration."""
        return self._cluster in delta.configs_changed or self._own in delta.configs_changed

    def refresh(self) -> BrokerConfig:
        """The configuration according to the current image; an invalid one leaves the previous one in effect.

        Cost: two comparisons if nothing was altered, else all configurations are parsed.
        """
        image = self._image()
        dynamic = (dict(image.config(self._cluster)), dict(image.config(self._own)))
        if dynamic != self._seen:
            self._seen = dynamic
            try:
                self.current = self._static.with_dynamic(*dynamic)
            except InvalidConfig as error:
                logger.error("dynamic configurations were not applied: %s", error)
        return self.current

    def topic_config(self, name: str) -> LogConfig:
        """A topic's configuration: its own overrides over the broker's defaults."""
        return self.current.log_config(self._image().topic_config(name))

    def log_dynamic_warnings(self) -> None:
        """Log which of this broker's dynamic values have no effect, each warning once while it applies."""
        found = frozenset(notices.dynamic_warnings(self.current))
        for warning in sorted(found - self._logged):
            logger.warning("%s", warning)
        self._logged = found

    def log_altered_warnings(self, delta: MetadataDelta) -> None:
        """Log which altered values of topics, groups and client metrics have no effect."""
        for resource in delta.configs_changed:
            for warning in self._warnings_of(resource):
                logger.warning("%s %r: %s", resource.type.name, resource.name, warning)

    def log_topic_warnings(self) -> None:
        """Log which topics need the remote tier, if this broker has none; when it starts."""
        names = [
            resource.name
            for resource, overrides in self._image().configs.items()
            if resource.type is ConfigResourceType.TOPIC
            and not self.current.remote_log_storage_system_enable
            and notices.is_tiered(overrides)
        ]
        if names:
            shown = ", ".join(sorted(names)[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")
            logger.warning("%d topics (%s): %s", len(names), shown, notices.WITHOUT_TIER)

    def _warnings_of(self, resource: ConfigResource) -> Iterator[str]:
        definition = _DEFINITIONS.get(resource.type, {})
        overrides = self._image().config(resource)
        yield from notices.unserved_warnings(
            (name, text, definition[name]) for name, text in overrides.items() if name in definition
        )
        if (
            resource.type is ConfigResourceType.TOPIC
            and not self.current.remote_log_storage_system_enable
            and notices.is_tiered(overrides)
        ):
            yield notices.WITHOUT_TIER
        if (
            resource.type is ConfigResourceType.CLIENT_METRICS
            and overrides
            and not self.current.shows_client_metrics
        ):
            yield notices.WITHOUT_CLIENT_SERIES

"""What holds for a topic in the end, and where it comes from.

    its own override > this node's dynamic configuration > all nodes' > this node's properties > the default

A controller can only see its own node's properties: with other ones on other nodes its answer is a good
guess, as Kafka's is. Source: KafkaConfigSchema.resolveEffectiveTopicConfig of Kafka 4.3.1.
"""

from collections.abc import Mapping
from typing import NamedTuple

from protocol.config_def import ConfigSource, text_of
from protocol.metadata.image import ConfigResource, ConfigResourceType, MetadataImage
from storage.log_config import SERVER_SYNONYMS, TOPIC_CONFIGS


class EffectiveConfig(NamedTuple):
    """A value as text (None: there is none) and its origin."""

    value: str | None
    source: ConfigSource


class BrokerLayers(NamedTuple):
    """Where a topic's defaults come from, the first that has a key counts."""

    node: Mapping[str, str]
    cluster: Mapping[str, str]
    static: Mapping[str, str]

    @classmethod
    def of(cls, image: MetadataImage, *, node_id: int, static: Mapping[str, str]) -> "BrokerLayers":
        """As the image has them now."""
        return cls(
            image.config(ConfigResource(ConfigResourceType.BROKER, str(node_id))),
            image.config(ConfigResource(ConfigResourceType.BROKER, "")),
            static,
        )


_SOURCES = (ConfigSource.DYNAMIC_BROKER, ConfigSource.DYNAMIC_DEFAULT_BROKER, ConfigSource.STATIC_BROKER)


def resolve(key: str, overrides: Mapping[str, str], layers: BrokerLayers) -> EffectiveConfig:
    """What holds for one topic configuration."""
    if key in overrides:
        return EffectiveConfig(overrides[key], ConfigSource.TOPIC)
    for configs, source in zip(layers, _SOURCES, strict=True):
        for synonym in SERVER_SYNONYMS.get(key, ()):
            if (text := configs.get(synonym.name)) is not None:
                if synonym.factor != 1:
                    text = str(int(text) * synonym.factor)
                return EffectiveConfig(text, source)
    definition = TOPIC_CONFIGS[key]
    return EffectiveConfig(text_of(definition.type, definition.default), ConfigSource.DEFAULT)


def resolve_all(overrides: Mapping[str, str], layers: BrokerLayers) -> dict[str, EffectiveConfig]:
    """All topic configurations that a user may see, by name."""
    return {
        name: resolve(name, overrides, layers)
        for name in sorted(TOPIC_CONFIGS)
        if name in overrides or not TOPIC_CONFIGS[name].is_internal
    }

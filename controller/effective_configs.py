"""Effective topic configurations: the value that applies to a topic, and its source.

    topic override > this node's dynamic configuration > all nodes' > this node's static properties > the default

A controller sees the static properties of its own node only: if other nodes have different ones, its result is an
estimate, as in Kafka. Source: KafkaConfigSchema.resolveEffectiveTopicConfig of Kafka 4.3.1.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.config.config_def import ConfigSource, InvalidConfigValue, parse_value, text_of
from ottla.config.log_config import SERVER_SYNONYMS, TOPIC_CONFIGS
from ottla.metadata.image import ConfigResource, ConfigResourceType, MetadataImage

#: The broker keys that the controller itself uses, since defaults of topics derive from them.
CONTROLLER_BROKER_KEYS: Final = frozenset(
    each.name for synonyms in SERVER_SYNONYMS.values() for each in synonyms
)


class EffectiveConfig(NamedTuple):
    """A value as text (None: there is none) and its origin."""

    value: str | None
    source: ConfigSource


class TopicDefaults(dict[str, EffectiveConfig]):
    """Effective values for topics without overrides, by key; cached, so valid until a broker's configuration changes.

    >>> TopicDefaults(MetadataImage(), node_id=1, static={"log.retention.hours": "2"})["retention.ms"]
    EffectiveConfig(value='7200000', source=<ConfigSource.STATIC_BROKER: 4>)
    """

    def __init__(self, image: MetadataImage, *, node_id: int, static: Mapping[str, str]) -> None:
        super().__init__()
        #: In order of precedence: the first layer that has a key is used.
        self._layers = (
            (
                image.config(ConfigResource(ConfigResourceType.BROKER, str(node_id))),
                ConfigSource.DYNAMIC_BROKER,
            ),
            (
                image.config(ConfigResource(ConfigResourceType.BROKER, "")),
                ConfigSource.DYNAMIC_DEFAULT_BROKER,
            ),
            (static, ConfigSource.STATIC_BROKER),
        )

    def __missing__(self, key: str) -> EffectiveConfig:
        found = self[key] = self._find(key)
        return found

    def _find(self, key: str) -> EffectiveConfig:
        definition = TOPIC_CONFIGS[key]
        for configs, source in self._layers:
            for synonym in SERVER_SYNONYMS.get(key, ()):
                if (text := configs.get(synonym.name)) is None:
                    continue
                try:
                    value = parse_value(synonym.name, definition.type, text)
                except InvalidConfigValue:
                    continue  # Kafka's controllers write invalid values; brokers skip them, too
                if isinstance(value, int) and synonym.factor != 1:
                    text = str(value * synonym.factor)
                return EffectiveConfig(text, source)
        return EffectiveConfig(text_of(definition.type, definition.default), ConfigSource.DEFAULT)


def resolve(key: str, overrides: Mapping[str, str], defaults: TopicDefaults) -> EffectiveConfig:
    """The effective value of one topic configuration."""
    if key in overrides:
        return EffectiveConfig(overrides[key], ConfigSource.TOPIC)
    return defaults[key]


def resolve_all(overrides: Mapping[str, str], defaults: TopicDefaults) -> dict[str, EffectiveConfig]:
    """All topic configurations that a user may see, by name; internal ones only if they are overridden."""
    return {
        name: resolve(name, overrides, defaults)
        for name in _NAMES
        if name in overrides or not TOPIC_CONFIGS[name].is_internal
    }


_NAMES: Final = sorted(TOPIC_CONFIGS)

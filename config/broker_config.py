"""The configuration of one node: its static properties, overridden by dynamic configurations.

A `BrokerConfig` is immutable. When the metadata log has new dynamic configurations, `with_dynamic`
creates a new one, and the broker replaces the old one as a whole. Precedence, highest first:
this broker's dynamic values, the cluster's dynamic values, the node's static properties, the default.
Source: KafkaConfig and DynamicBrokerConfig of Kafka 4.3.1.
"""

from collections.abc import Mapping
from typing import Any, Self

from ottla.config.checks import check_config, check_served
from ottla.config.config_def import ConfigSource
from ottla.config.definitions import DYNAMIC_BROKER_CONFIGS
from ottla.config.names import synonyms_of
from ottla.config.overrides import usable_overrides
from ottla.config.parsed_config import ParsedConfig

__all__ = ["BrokerConfig"]


class BrokerConfig(ParsedConfig):
    """Parsed and validated configurations of this node, with the source of each value."""

    def __init__(
        self,
        properties: Mapping[str, str],
        *,
        cluster_overrides: Mapping[str, str] | None = None,
        broker_overrides: Mapping[str, str] | None = None,
    ) -> None:
        """Parse the node's static properties and the dynamic values that override them.

        Raises InvalidConfigValue for an invalid value, InvalidConfig for an invalid combination of values.
        """
        self.static = _with_node_id(properties)
        self.cluster_overrides = dict(cluster_overrides or {})
        self.broker_overrides = dict(broker_overrides or {})
        texts = dict(self.static)
        for overrides in (self.cluster_overrides, self.broker_overrides):
            _lay_over(texts, overrides)
        super().__init__(texts)
        #: Dynamic keys that this version cannot use; reported to the operator.
        self.ignored_overrides: tuple[str, ...] = ()
        check_config(self)
        check_served(self)

    def dynamic_value(self, name: str) -> Any:  # noqa: ANN401
        """The parsed value of a key that exists only dynamically, as the rates of throttled replication."""
        key = DYNAMIC_BROKER_CONFIGS[name]
        text = self.broker_overrides.get(name, self.cluster_overrides.get(name))
        return key.default if text is None else key.parse(text)

    def source(self, name: str) -> ConfigSource:
        """The source of the value of exactly this key."""
        for texts, source in (
            (self.broker_overrides, ConfigSource.DYNAMIC_BROKER),
            (self.cluster_overrides, ConfigSource.DYNAMIC_DEFAULT_BROKER),
            (self.static, ConfigSource.STATIC_BROKER),
        ):
            if name in texts:
                return source
        return ConfigSource.DEFAULT

    def with_dynamic(self, cluster_overrides: Mapping[str, str], broker_overrides: Mapping[str, str]) -> Self:
        """The configuration with other dynamic values; unusable ones are omitted.

        Values are validated when they are altered, but another version may have accepted values that this
        one cannot use. Raises InvalidConfig if the values contradict each other or the node's static
        properties: the caller then keeps its current configuration, as Kafka does.
        """
        cluster = usable_overrides(cluster_overrides, self.static, is_per_broker=False)
        own = usable_overrides(broker_overrides, self.static, is_per_broker=True)
        config = type(self)(self.static, cluster_overrides=cluster, broker_overrides=own)
        config.ignored_overrides = tuple(sorted({*cluster_overrides, *broker_overrides} - {*cluster, *own}))
        return config


def _with_node_id(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with both of the synonyms broker.id and node.id, if one of them is set."""
    static = dict(properties)
    if (node_id := static.get("node.id", static.get("broker.id"))) is not None:
        static.setdefault("node.id", node_id)
        static.setdefault("broker.id", node_id)
    return static


def _lay_over(texts: dict[str, str], overrides: Mapping[str, str]) -> None:
    """An override replaces all synonyms of lower levels: a dynamic log.retention.ms, a static log.retention.hours."""
    for name, text in overrides.items():
        for synonym in synonyms_of(name):
            texts.pop(synonym, None)
        texts[name] = text

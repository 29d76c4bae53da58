"""Dynamic broker configurations, altered while the broker runs (KIP-226).

The metadata log stores them at two levels: for one broker, under its id, and for the whole cluster, under
the empty name. Most keys are valid at both levels; those of listeners and security only under an id.
Source: DynamicBrokerConfig and its reconfigurables of Kafka 4.3.1.
"""

from collections.abc import Mapping
from typing import Final

from ottla.config.broker_config import BrokerConfig
from ottla.config.definitions import BROKER_CONFIGS
from ottla.config.log_config import check_copy_lag, check_local_retention
from ottla.config.names import base_key, listener_of, node_id_of
from ottla.config.overrides import (
    PER_LISTENER_ONLY,
    check_values,
    is_applicable,
    is_per_broker_only,
    unalterable,
)
from ottla.protocol.errors import InvalidConfig, InvalidRequest

#: Numbers of threads, which one change may at most halve or double: a typing error stays harmless.
_RESIZED_IN_STEPS = (
    "background.threads",
    "log.cleaner.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.reader.threads",
)

#: Keys that name classes which a running broker would load, and the classes whose task this broker does itself. Kafka
#: refuses what it cannot load, and this broker can load none.
_CLASSES: Final[Mapping[str, frozenset[str]]] = {
    "metric.reporters": frozenset({"org.apache.kafka.common.metrics.JmxReporter"}),
    "ssl.engine.factory.class": frozenset(),
}


def validate_broker_alter(config: BrokerConfig, resource_name: str, overrides: Mapping[str, str]) -> None:
    """Refuse dynamic values that this broker cannot use.

    `overrides` are all overrides of the resource after the change: of this broker if `resource_name` is
    its id, of the cluster if it is empty. Raises InvalidRequest: for broker resources Kafka returns that
    and not INVALID_CONFIG (KAFKA-13609).
    """
    is_per_broker = resource_name != ""
    if is_per_broker:
        _check_name(config, resource_name)
    _refuse(unalterable(overrides), "Cannot update these configs dynamically")
    _refuse(
        [name for name in overrides if name in PER_LISTENER_ONLY],
        "These security configs can be dynamically updated only per-listener using the listener prefix",
    )
    if not is_per_broker:
        _refuse(
            [name for name in overrides if is_per_broker_only(name)],
            "Cannot update these configs at default cluster level, broker id must be specified",
        )
    try:
        check_values(overrides)
        altered = (
            config.with_dynamic(config.cluster_overrides, overrides)
            if is_per_broker
            else config.with_dynamic(overrides, config.broker_overrides)
        )
        check_local_retention(altered.topic_defaults, prefix="log.")
        check_copy_lag(altered.topic_defaults, prefix="log.")
    except InvalidConfig as error:
        raise InvalidRequest(error.message) from None
    _refuse(
        [name for name, text in overrides.items() if not is_applicable(name, text, config.static)],
        "This broker does not yet change these configs while it runs; restart it with other properties",
    )
    _check_steps(config, altered)
    _check_connection_limits(config, altered)
    _check_classes(config, altered)


def _check_name(config: BrokerConfig, resource_name: str) -> None:
    if node_id_of(resource_name) != config.node_id:
        raise InvalidRequest(f"Unexpected broker id, expected {config.node_id}, but received {resource_name}")


def _refuse(names: list[str], sentence: str) -> None:
    if names:
        raise InvalidRequest(f"{sentence}: [{', '.join(sorted(names))}]")


def _check_connection_limits(config: BrokerConfig, altered: BrokerConfig) -> None:
    """Refuse a limit of zero connections, which a file may have: no connection could alter it back."""
    for key in ("max.connections", "max.connection.creation.rate"):
        of_listeners = [name for name in altered.texts if listener_of(name) and base_key(name) == key]
        for name in (key, *of_listeners):
            value = altered.get(key) if name == key else BROKER_CONFIGS.parse(key, altered.texts[name])
            if altered.texts.get(name) != config.texts.get(name) and isinstance(value, int) and value < 1:
                raise InvalidRequest(
                    f"Invalid value {value} for configuration {name}: it must be at least 1."
                )


def _check_classes(config: BrokerConfig, altered: BrokerConfig) -> None:
    """Refuse other classes than those of the node's properties, which are named in a warning at its start."""
    for name, known in _CLASSES.items():
        text = altered.texts.get(name)
        if text is None or text in (config.texts.get(name), config.static.get(name)):
            continue
        value = altered.get(name)
        missing = sorted({value} - known if isinstance(value, str) else set(value) - known)
        if missing:
            raise InvalidRequest(
                f"Invalid value '{text}' for configuration {name}: "
                f"this broker loads no Java classes: {', '.join(missing)}"
            )


def _check_steps(config: BrokerConfig, altered: BrokerConfig) -> None:
    sizes = {name: (config.get(name), altered.get(name)) for name in _RESIZED_IN_STEPS}
    # Kafka compares the former name's value with the default of the new one, and then refuses every change.
    sizes["remote.log.manager.follower.thread.pool.size"] = (
        config.remote_log_follower_tasks,
        altered.remote_log_follower_tasks,
    )
    for name, (current, asked) in sizes.items():
        if asked != current and not max(1, current // 2) <= asked <= current * 2:
            raise InvalidRequest(
                f"Invalid value {asked} for configuration {name}: it must be between half and double "
                f"the current value {current}, and at least 1."
            )

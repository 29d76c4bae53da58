"""Levels of loggers, described and altered through the resource type BROKER_LOGGER (KIP-412).

Loggers are Python's, by their own names; the root logger is named root. A package is a logger, too, whose level
applies to all its modules without a level of their own: ottla.remote. Changes last until the node stops, as in Kafka.
Python has no TRACE: it means all levels below DEBUG.
Source: RuntimeLoggerManager of Kafka 4.3.1.
"""

import logging
from collections.abc import Iterable

from ottla.config.broker_config import BrokerConfig
from ottla.config.config_def import AlterOperation, ConfigOperation
from ottla.config.names import node_id_of
from ottla.protocol.errors import InvalidConfig, InvalidRequest

__all__ = ["LEVELS", "alter_loggers", "check_logger_resource", "logger_levels", "validate_logger_alter"]

_ROOT = "root"
_TRACE = 5

#: Python's levels by Kafka's names, the highest first.
LEVELS = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": _TRACE,
}


def logger_levels() -> dict[str, str]:
    """The effective level of every existing logger and package, by Kafka's name of the level."""
    names = sorted(logging.root.manager.loggerDict)
    return {_ROOT: _word(logging.root), **{name: _word(logging.getLogger(name)) for name in names}}


def validate_logger_alter(operations: Iterable[ConfigOperation]) -> None:
    """Refuse unknown loggers and levels, and operations that levels do not support."""
    for name, operation, level in operations:
        if operation not in (AlterOperation.SET, AlterOperation.DELETE):
            raise InvalidRequest(f"{operation.name} operation is not allowed for the BROKER_LOGGER resource")
        if name != _ROOT and name not in logging.root.manager.loggerDict:
            raise InvalidConfig(f"Logger {name} does not exist!")
        if operation is AlterOperation.SET and level not in LEVELS:
            raise InvalidConfig(
                f"Cannot set the log level of {name} to {level}: it must be one of {', '.join(sorted(LEVELS))}."
            )
        if operation is AlterOperation.DELETE and name == _ROOT:
            raise InvalidRequest(f"Removing the log level of the {_ROOT} logger is not allowed")


def alter_loggers(operations: Iterable[ConfigOperation]) -> None:
    """Set or reset the levels of loggers, by validated operations."""
    for name, operation, level in operations:
        logger = logging.root if name == _ROOT else logging.getLogger(name)
        logger.setLevel(LEVELS[level or ""] if operation is AlterOperation.SET else logging.NOTSET)


def _word(logger: logging.Logger) -> str:
    level = logger.getEffectiveLevel()
    return next((word for word, number in LEVELS.items() if level >= number), "TRACE")


def check_logger_resource(config: BrokerConfig, resource_name: str) -> None:
    """The resource name must be this node's id. Raises InvalidRequest."""
    if not resource_name:
        raise InvalidRequest("Broker id must not be empty")
    if node_id_of(resource_name) != config.node_id:
        raise InvalidRequest(f"Unexpected broker id, expected {config.node_id} but received {resource_name}")

"""The configuration of a broker: definitions, parsing, dynamic changes and their description."""

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.listeners import Listener, SecurityProtocol

__all__ = ["BrokerConfig", "Listener", "SecurityProtocol"]

"""The configuration of a broker: definitions, parsing, dynamic changes and their description."""

from broker.config.broker_config import BrokerConfig
from broker.config.listeners import Listener, SecurityProtocol

__all__ = ["BrokerConfig", "Listener", "SecurityProtocol"]

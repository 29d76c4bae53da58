"""The node: network server, API handlers, replicas, coordinators, configuration, command line."""

from typing import Final

#: Ottla's version; pyproject.toml takes it from here, because a broker that asks for what is installed starts 15 ms later.
VERSION: Final = "0.1.0"

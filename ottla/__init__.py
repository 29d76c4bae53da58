"""Ottla, a Kafka broker in pure Python; each subpackage, as `ottla.broker`, is the top-level folder of its name."""

from typing import Final

#: Ottla's version. pyproject.toml takes it from here, because a broker that reads the version of the installed package
#: starts 15 ms later.
VERSION: Final = "0.1.0"

"""`python -m ottla.broker [server.properties] ...` starts a broker; other commands of `ottla` by their names."""

from ottla.broker.entry_point import main_of_module

main_of_module()

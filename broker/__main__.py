"""`python -m broker [server.properties] ...` starts a broker; other commands of `ottla` by their names."""

from broker.entry_point import main_of_module

main_of_module()

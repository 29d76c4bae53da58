"""`python -m ottla [server.properties] ...` starts a broker; other commands of `ottla` by their names."""

from ottla.command_line import run_module

run_module()

"""The commands that inspect log files (`ottla dump-log`, `ottla verify-log`), and the table with `ottla.broker.commands` and `bench`.

They are imported when one is called, which keeps the start of a broker fast.
Source: DumpLogSegments of Kafka 4.3.1.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final

import click

#: Module and function of each command.
TOOLS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "bench": ("ottla.broker.tools.checkout", "bench"),
        "cluster": ("ottla.broker.commands.cluster", "cluster"),
        "dump-log": ("ottla.broker.tools.dump_command", "dump_log"),
        "format": ("ottla.broker.commands.storage", "format_directories"),
        "info": ("ottla.broker.commands.storage", "show_info"),
        "partitions": ("ottla.broker.commands.partitions.command", "partitions"),
        "random-uuid": ("ottla.broker.commands.storage", "random_uuid"),
        "tier": ("ottla.broker.commands.tier.command", "tier"),
        "verify-log": ("ottla.broker.tools.verify_command", "verify_log"),
    }
)


class CommandsWithTools(click.Group):
    """A command group that imports the commands of `TOOLS` on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, for the help."""
        return sorted([*super().list_commands(ctx), *TOOLS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One command; a tool's module is imported here."""
        if cmd_name not in TOOLS:
            return super().get_command(ctx, cmd_name)
        module, name = TOOLS[cmd_name]
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command), command
        return command

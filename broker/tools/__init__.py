"""The commands that inspect log files (`ottla dump-log`, `ottla verify-log`), and the table with `broker.commands` and `bench`.

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
        "bench": ("broker.tools.checkout", "bench"),
        "cluster": ("broker.commands.cluster", "cluster"),
        "dump-log": ("broker.tools.dump_command", "dump_log"),
        "format": ("broker.commands.storage", "format_directories"),
        "info": ("broker.commands.storage", "show_info"),
        "partitions": ("broker.commands.partitions.command", "partitions"),
        "random-uuid": ("broker.commands.storage", "random_uuid"),
        "tier": ("broker.commands.tier.command", "tier"),
        "verify-log": ("broker.tools.verify_command", "verify_log"),
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

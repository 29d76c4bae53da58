"""The command `ottla`: the table of its commands, each of which is imported when it is called.

The import of a broker creates some 200,000 objects, all of which stay. Garbage collections among them would
find nothing, and take a seventh of the time until a broker serves: so collections are disabled during the import.
"""

import gc
import sys
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final

import click

from ottla import VERSION
from ottla.broker.cli.command_group import CommandGroup
from ottla.broker.cli.standard_streams import full_output_is_named, open_standard_streams

#: The module and the function of each command, by the command's name.
COMMANDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "bench": ("ottla.bench.command", "bench"),
        "broker": ("ottla.broker.cli.broker", "start_broker"),
        "cluster": ("ottla.broker.cli.cluster", "cluster"),
        "configs": ("ottla.broker.cli.admin.configs_command", "configs"),
        "consume": ("ottla.broker.cli.records.consume_command", "consume"),
        "container": ("ottla.broker.cli.container", "run_container"),
        "dashboards": ("ottla.broker.cli.dashboards", "dashboards"),
        "docs": ("ottla.stories.docs_command", "docs"),
        "dump-log": ("ottla.broker.cli.files.dump", "dump_log"),
        "format": ("ottla.broker.cli.storage", "format_directories"),
        "groups": ("ottla.broker.cli.admin.groups_command", "groups"),
        "info": ("ottla.broker.cli.storage", "show_info"),
        "partitions": ("ottla.broker.cli.partitions.command", "partitions"),
        "play": ("ottla.stories.play_command", "play"),
        "produce": ("ottla.broker.cli.records.produce_command", "produce"),
        "random-uuid": ("ottla.broker.cli.storage", "random_uuid"),
        "test-broker": ("ottla.testing.command", "start_test_broker"),
        "tier": ("ottla.broker.cli.tier.command", "tier"),
        "topics": ("ottla.broker.cli.admin.topics_command", "topics"),
        "verify-log": ("ottla.broker.cli.files.verify_command", "verify_log"),
    }
)


#: The columns of a help text, if the terminal has so many.
_MAX_WIDTH: Final = 120


class _Commands(CommandGroup):
    """A group of commands, each of which is imported when it is called, and not for the help or another
    command.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, for the help."""
        return sorted([*super().list_commands(ctx), *COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command; None: there is none of this name."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, name = COMMANDS[cmd_name]
        gc.disable()
        command = getattr(import_module(module), name)
        # Later collections skip what has been imported.
        gc.freeze()
        gc.enable()
        assert isinstance(command, click.Command), command
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run the command that the arguments name."""
        open_standard_streams()
        with full_output_is_named():
            return super().invoke(ctx)


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _MAX_WIDTH}
)
@click.version_option(VERSION, message="ottla %(version)s")
def main() -> None:
    """Ottla, a Kafka broker in pure Python."""


@main.command("version")
def show_version() -> None:
    """Print the version of Ottla."""
    click.echo(f"ottla {VERSION}")


@main.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def show_completion(shell: str) -> None:
    """Print what completes commands and options in a shell.

    Bash and zsh: eval "$(ottla completion bash)" in ~/.bashrc, or zsh in ~/.zshrc. Fish:
    ottla completion fish > ~/.config/fish/completions/ottla.fish
    """
    from click.shell_completion import (
        get_completion_class,
    )  # imported here: a broker's start does not need it

    found = get_completion_class(shell)
    assert found is not None, shell
    click.echo(found(main, {}, "ottla", "_OTTLA_COMPLETE").source())


def run_module() -> None:
    """Run `python -m ottla ...` as `ottla ...`; without a command's name it starts a broker."""
    arguments = sys.argv[1:]
    if not (arguments and arguments[0] in (*main.commands, *COMMANDS, "--version", "--help", "-h")):
        arguments = ["broker", *arguments]
    main(arguments, prog_name="python -m ottla")

"""The command `ottla bench`: loads, measurements and reports of Kafka-compatible clusters.

Each command is imported when it is called.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final

import click

from ottla.config.extras import missing_extra

#: The module, function and description of each command that is elsewhere.
_COMMANDS: Final[Mapping[str, tuple[str, str, str]]] = MappingProxyType(
    {
        "calibrate": (
            "ottla.bench.runs.calibrate_command",
            "calibrate",
            "Measure the load generator itself, against a broker that drops everything.",
        ),
        "compare": (
            "ottla.bench.aggregation.command",
            "compare",
            "Compare results: medians, spread, and whether a difference exceeds the noise.",
        ),
        "list": ("ottla.bench.runs.list_command", "list_workloads", "List the workloads that are shipped."),
        "report": ("ottla.bench.page.command", "report", "Write the page and the pictures of results again."),
        "run": (
            "ottla.bench.runs.command",
            "run_workload",
            "Run a workload on some targets, and write the result.",
        ),
    }
)


class _Commands(click.Group):
    """A group whose help needs none of the libraries that its commands need."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name, _ = _COMMANDS[cmd_name]
        try:
            command = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            raise click.ClickException(
                f"`ottla bench {cmd_name}` {missing_extra('bench', error)}, in a checkout `make setup-bench`"
            ) from error
        assert isinstance(command, click.Command), command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in sorted(_COMMANDS.items())])


@click.group("bench", cls=_Commands)
def bench() -> None:
    """Measure Kafka-compatible clusters: loads, results and reports."""

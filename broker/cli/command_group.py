"""Groups of commands, whose help shows the first sentence of each command as a whole."""

from typing import Final

import click

#: Longer than any first sentence: click cuts those that are longer than what is left of a line.
_WHOLE: Final = 1_000


class CommandGroup(click.Group):
    """A group whose help wraps the first sentence of a command where click would cut it."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of the group's commands."""
        named = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(_WHOLE))
            for name, command in named
            if command is not None and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

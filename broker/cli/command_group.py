"""Groups of commands: their help shows whole sentences, and an unknown command suggests similar ones."""

from typing import Final

import click

#: Longer than any first sentence: click cuts those that are longer than what is left of a line.
_WHOLE: Final = 1_000


class CommandGroup(click.Group):
    """A group whose help wraps the first sentence of a command, which click would cut."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names. Raises UsageError, with the names of similar ones."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from ottla.broker.cli.similar import similar  # imported here: a broker's start does not need it

            hint = similar(args[0], self.list_commands(ctx))
            raise click.UsageError(f"{error.message} {hint}".rstrip(), ctx) from None

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

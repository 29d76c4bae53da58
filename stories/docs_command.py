"""`ottla docs build DIR`: the stories as a static site."""

from pathlib import Path

import click

from ottla.broker.cli.command_group import CommandGroup
from ottla.stories import site
from ottla.stories.quiet import quiet
from ottla.stories.traces import all_traces


@click.group("docs", cls=CommandGroup)
def docs() -> None:
    """The stories of the KIPs as a site."""


@docs.command("build")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--json", "with_json", is_flag=True, help="Write each trace as JSON, too, for other programs.")
def build(directory: Path, with_json: bool) -> None:
    """Write a static site of all stories, step by step.

    It works from the folder itself (open DIR/index.html), and from any web server; it needs no broker and no network.
    """
    with quiet():
        traces = all_traces()
    try:
        size = site.build(directory, traces, with_json=with_json)
    except OSError as error:
        path = error.filename or directory
        raise click.ClickException(
            f"The site cannot be written: {path}: {error.strerror or error}. "
            "Name a directory that this user can write to, on a disk with room."
        ) from error
    click.echo(f"{directory}: {len(traces)} stories, {size / 1_000_000:.1f} MB")

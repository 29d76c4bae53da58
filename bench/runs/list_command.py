"""The command `ottla bench list`, which lists the workloads that are shipped."""

import click

from ottla.bench.runs.parse import load, shipped


@click.command("list")
def list_workloads() -> None:
    """List the workloads that are shipped: the questions that they answer."""
    paths = shipped()
    width = max(len(path.stem) for path in paths)
    for path in paths:
        click.echo(f"{path.stem:{width}}  {load(path.stem).title}")

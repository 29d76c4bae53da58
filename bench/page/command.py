"""`ottla bench report`: the page and the pictures of results that are there."""

from pathlib import Path

import click

from ottla.bench.page.files import PAGE, NotAResult, write_pages


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of the pages; by default each one is beside its result.",
)
def report(results: tuple[Path, ...], out: Path | None) -> None:
    """Write report.html and pictures (PNG) of RESULTS: result folders, or JSON files of bench/results."""
    for result in results:
        folder = result if result.is_dir() else result.parent / result.stem
        try:
            path = write_pages(result, out=(out / folder.resolve().name if out else folder) / PAGE)
        except NotAResult as error:
            raise click.ClickException(str(error)) from error
        click.echo(path)

"""`ottla dashboards`: writes the shipped dashboards for Grafana and the rules for Prometheus to a folder.

They are files of the package, `ottla/broker/metrics/dashboards`; a test holds their expressions against what a node
serves.
"""

from importlib.resources import files
from pathlib import Path

import click


@click.command("dashboards")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def dashboards(directory: Path) -> None:
    """Write dashboards for Grafana (JSON) and rules for Prometheus (ottla-rules.yml) to DIRECTORY.

    Import the dashboards in Grafana, or name DIRECTORY in a provider of dashboards; name ottla-rules.yml under
    rule_files of prometheus.yml. Files of the same names are replaced.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for source in sorted(files("ottla.broker.metrics").joinpath("dashboards").iterdir(), key=str):
            target = directory / source.name
            target.write_bytes(source.read_bytes())
            click.echo(target)
    except OSError as error:
        raise click.ClickException(
            f"{directory} cannot be written: {error.strerror}. Name another folder."
        ) from None

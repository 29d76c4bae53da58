"""`ottla format`, `ottla info`, `ottla random-uuid`: the commands of kafka-storage.sh (StorageTool), same files."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import click

from ottla.broker.roles.formatting import (
    FormatOptions,
    FormatterError,
    format_node,
    parse_initial_controllers,
)
from ottla.config.broker_config import BrokerConfig
from ottla.config.load import load_config
from ottla.protocol import kafka_uuid
from ottla.protocol.errors import KafkaError
from ottla.runtime.production import random_bytes, wall_clock_ms
from ottla.storage.files import Files
from ottla.storage.manager import meta_properties
from ottla.storage.manager.meta_properties import InconsistentMetaProperties


def new_uuid() -> UUID:
    """A random id whose text does not begin with a dash, which a command line would parse as an option."""
    while kafka_uuid.to_text(found := UUID(bytes=random_bytes(16), version=4)).startswith("-"):
        pass
    return found


def _with_config(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "-c",
        "--config",
        "properties",
        required=True,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="The node's server.properties.",
    )(command)


@click.command("random-uuid")
def random_uuid() -> None:
    """Print a random id: for a cluster, or a directory of --initial-controllers."""
    click.echo(kafka_uuid.to_text(new_uuid()))


@click.command("format")
@_with_config
@click.option("-t", "--cluster-id", required=True, help="The cluster's id; `ottla random-uuid` draws one.")
@click.option("-r", "--release-version", help="The Kafka release whose features the cluster starts with.")
@click.option(
    "-f",
    "--feature",
    "features",
    multiple=True,
    metavar="NAME=LEVEL",
    help="Set the level of a feature; may be repeated.",
)
@click.option(
    "-S", "--add-scram", multiple=True, help="Create a user: 'SCRAM-SHA-256=[name=alice,password=secret]'."
)
@click.option("-s", "--standalone", is_flag=True, help="This controller is the only voter of a new quorum.")
@click.option(
    "-I",
    "--initial-controllers",
    metavar="ID@HOST:PORT:DIRECTORY,...",
    help="The voters of a new quorum; the same for all of its nodes.",
)
@click.option("-N", "--no-initial-controllers", is_flag=True, help="This node joins an existing quorum.")
@click.option("-g", "--ignore-formatted", is_flag=True, help="Leave formatted directories as they are.")
def format_directories(
    properties: Path,
    cluster_id: str,
    release_version: str | None,
    features: tuple[str, ...],
    add_scram: tuple[str, ...],
    standalone: bool,
    initial_controllers: str | None,
    no_initial_controllers: bool,
    ignore_formatted: bool,
) -> None:
    """Format a node's log directories for a cluster, as kafka-storage.sh does.

    A node that is a cluster by itself (`ottla broker` without a file) needs none of this.
    """
    if sum((standalone, initial_controllers is not None, no_initial_controllers)) > 1:
        raise click.UsageError(
            "Only one of --standalone, --initial-controllers and --no-initial-controllers can be given."
        )
    try:
        options = FormatOptions(
            cluster_id=cluster_id,
            release_version=release_version,
            features=dict(_name_and_level(each) for each in features),
            add_scram=add_scram,
            is_standalone=standalone,
            initial_controllers=parse_initial_controllers(initial_controllers) if initial_controllers else (),
            no_initial_controllers=no_initial_controllers,
            ignore_formatted=ignore_formatted,
        )
        format_here(load_config(properties), options, say=click.echo)
    except (FormatterError, InconsistentMetaProperties, KafkaError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(sentence_of(error)) from None


def sentence_of(error: OSError) -> str:
    """An I/O error as a sentence, with the file if the system names it."""
    return f"{error.filename or 'A file of the log directories cannot be used'}: {error.strerror}"


def format_here(config: BrokerConfig, options: FormatOptions, *, say: Callable[[str], Any]) -> None:
    """Format directories of this machine. Raises as `format_node`."""
    format_node(
        config,
        options,
        files=Files(),
        now_ms=wall_clock_ms(),
        new_uuid=new_uuid,
        random_bytes=random_bytes,
        say=say,
    )


@click.command("info")
@_with_config
def show_info(properties: Path) -> None:
    """Show the cluster and node for which the log directories are formatted; fails if there is any problem."""
    try:
        config = load_config(properties)
    except KafkaError as error:
        raise click.ClickException(str(error)) from None
    found, problems, formatted = [], [], []
    for path in sorted({*map(Path, config.log_dirs), Path(config.metadata_log_dir)}):
        if not path.is_dir():
            problems.append(f"{path} is not a directory" if path.exists() else f"{path} does not exist")
            continue
        found.append(str(path))
        try:
            known = meta_properties.read(path, Files())
        except (InconsistentMetaProperties, OSError) as error:
            problems.append(f"Error loading {path / meta_properties.FILE_NAME}: {error}")
            continue
        if known is None:
            problems.append(f"{path} is not formatted.")
        else:
            formatted.append(known)
    if len({each.cluster_id for each in formatted}) > 1:
        problems.append("Mismatched cluster IDs between storage directories.")
    elif len({each.node_id for each in formatted}) > 1:
        problems.append("Mismatched node IDs between storage directories.")
    _echo_list("Found log directory:", "Found log directories:", found)
    if formatted:
        click.echo(f"Found metadata: {_shown(formatted[0])}\n")
    _echo_list("Found problem:", "Found problems:", problems)
    if problems:
        sys.exit(1)


def _echo_list(one: str, several: str, lines: list[str]) -> None:
    if lines:
        click.echo(one if len(lines) == 1 else several)
        for line in lines:
            click.echo(f"  {line}")
        click.echo()


def _shown(properties: meta_properties.MetaProperties) -> str:
    rows = {"cluster.id": properties.cluster_id, "node.id": properties.node_id, "version": "1"}
    if properties.directory_id is not None:
        rows["directory.id"] = kafka_uuid.to_text(properties.directory_id)
    return "{" + ", ".join(f"{name}={value}" for name, value in sorted(rows.items())) + "}"


def _name_and_level(text: str) -> tuple[str, int]:
    name, equals, level = text.partition("=")
    if not equals:
        raise FormatterError(f"Can't parse feature=level string {text}: equals sign not found.")
    try:
        return name.strip(), int(level)
    except ValueError:
        raise FormatterError(
            f"Can't parse feature=level string {text}: unable to parse {level.strip()} as a short."
        ) from None

"""`ottla container`: the command of the image. It determines a node's properties, formats its folder, and runs it.

The rules of the variables are in `environment.py`. A new folder is formatted before the first start, since a
container has no other moment for it; a formatted one is checked only.
"""

import logging
import os
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import click

from ottla.broker.cli.broker import log_options, run_node, write_log
from ottla.broker.cli.environment import ContainerSettings, read_environment
from ottla.broker.cli.storage import format_here, new_uuid, sentence_of
from ottla.broker.node import CannotStart
from ottla.broker.roles.formatting import (
    FormatOptions,
    FormatterError,
    InitialController,
    parse_initial_controllers,
)
from ottla.config import notices
from ottla.config.broker_config import BrokerConfig
from ottla.config.load import config_with_tier, properties_text, read_properties
from ottla.protocol.errors import InvalidConfig, KafkaError
from ottla.storage.files import Files
from ottla.storage.manager import meta_properties
from ottla.storage.manager.meta_properties import InconsistentMetaProperties

logger = logging.getLogger(__name__)

#: The id of a cluster of several nodes without CLUSTER_ID, the same for all of them: that of Apache Kafka's image.
DEFAULT_CLUSTER_ID: Final = "5L6g3nShT-eMCtK--X86sw"


@click.command("container")
@click.option(
    "--mounted",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("/mnt/shared/config/server.properties"),
    show_default=True,
    help="A server.properties that is read first, if it exists; it is never written.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/data"),
    show_default=True,
    help="The folder of all data, if neither the file nor KAFKA_LOG_DIRS names others.",
)
@click.option("--print", "is_shown", is_flag=True, help="Print the node's properties, and start nothing.")
@log_options
def run_container(mounted: Path, data_dir: Path, is_shown: bool, log_level: str, log_format: str) -> None:
    """Start a node in a container, with the variables of Apache Kafka's own image.

    KAFKA_NODE_ID sets node.id, and so on. Without KAFKA_PROCESS_ROLES and a mounted file, the node is a cluster by
    itself. docker/README.md lists all variables.
    """
    write_log(log_format, log_level)
    try:
        settings = read_environment(
            os.environ,
            mounted=read_properties(mounted) if mounted.exists() else None,
            hostname=os.uname().nodename,
            data_dir=str(data_dir),
        )
        config = config_with_tier(settings.properties, settings.tier)
        if is_shown:
            static = sorted(config.static.items())
            click.echo(
                properties_text({name: notices.shown(config, name, text) for name, text in static}), nl=False
            )
            return
        for warning in (*settings.warnings, *_health_warnings(config, settings.metrics_port)):
            logger.warning("%s", warning)
        _format(config, settings)
        run_node(config)
    except (CannotStart, FormatterError, InconsistentMetaProperties, KafkaError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(sentence_of(error)) from None


def _health_warnings(config: BrokerConfig, port: int) -> Iterator[str]:
    if not any(_is_local(host) and at == port for host, at in config.metrics_listeners):
        shown = ",".join(config.get("metrics.listeners")) or "empty"
        yield (
            f"metrics.listeners is {shown}: the image's health check asks 127.0.0.1:{port} and will fail. "
            "Set METRICS_PORT to the port of metrics.listeners, or define another health check."
        )


def _is_local(host: str) -> bool:
    """Whether a listener at this host is reached at 127.0.0.1."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_unspecified or address == ip_address("127.0.0.1")


def _format(config: BrokerConfig, settings: ContainerSettings) -> None:
    """Format new folders. Raises CannotStart, FormatterError, InconsistentMetaProperties, KafkaError, OSError."""
    found = meta_properties.read(Path(config.metadata_log_dir), Files())
    cluster_id = settings.cluster_id or (None if found is None else found.cluster_id)
    if cluster_id is None and config.is_whole_cluster:
        return  # the node formats its folder itself, with an id of its own
    voters: tuple[InitialController, ...] = ()
    if config.is_controller and not config.quorum_voters and found is None:
        voters = initial_voters(config, settings.initial_controllers)
    options = FormatOptions(
        cluster_id=cluster_id or DEFAULT_CLUSTER_ID,
        initial_controllers=voters,
        no_initial_controllers=not voters,
        ignore_formatted=True,
    )
    try:
        format_here(config, options, say=lambda line: logger.info("%s", line))
    except OSError as error:
        raise CannotStart(
            f"{sentence_of(error)}. log.dirs, {','.join(config.log_dirs)}, must name folders that the user "
            f"{os.getuid()} can write."
        ) from error


def initial_voters(config: BrokerConfig, text: str | None) -> tuple[InitialController, ...]:
    """The voters of a new quorum whose metadata log holds them (KIP-853). Raises FormatterError, InvalidConfig.

    Without INITIAL_CONTROLLERS a controller is the only voter if the one address of the quorum can be its own, as in
    Apache Kafka's image. The voter has that address, which other containers can resolve.
    """
    if text is not None:
        return parse_initial_controllers(text)
    if config.get("controller.quorum.auto.join.enable"):
        return ()  # it joins a quorum that exists
    servers = config.quorum_bootstrap_servers
    own_ports = {listener.port for listener in config.controller_listeners}
    if len(servers) == 1 and servers[0][1] in own_ports:
        return (InitialController(config.node_id, *servers[0], new_uuid()),)
    raise InvalidConfig(
        f"The folder of node {config.node_id} is new, and nothing names the voters of the quorum: set "
        "KAFKA_CONTROLLER_QUORUM_VOTERS=ID@HOST:PORT,... or INITIAL_CONTROLLERS=ID@HOST:PORT:DIRECTORY,..., the same "
        "for all controllers (`ottla random-uuid` draws the id of a DIRECTORY), or "
        "KAFKA_CONTROLLER_QUORUM_AUTO_JOIN_ENABLE=true for one that joins an existing quorum."
    )

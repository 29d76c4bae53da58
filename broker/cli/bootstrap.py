"""Parts of all commands that ask a cluster: --bootstrap-server, the run of a question, errors that end a command.

    answer = ask_cluster(bootstrap, lambda client: client.topics(["orders"]))

Exit status of such a command: 2 if it could not be carried out.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, TypeVar

import click

from ottla.broker.cli.similar import similar
from ottla.broker.cluster_client.client import ClusterClient, Waits, addresses_of
from ottla.broker.cluster_client.errors import ClusterError, NoBrokerAnswers, error_name
from ottla.broker.cluster_client.topics import names_of
from ottla.broker.network.client import ClientSettings
from ottla.config.load import DEFAULT_PORT
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.remote.errors import RemoteStorageError
from ottla.runtime.production import ProductionRuntime, run

T = TypeVar("T")

_CANNOT: Final = 2
_CLIENT_ID: Final = "ottla-cli"
#: A broker that does not answer is given up sooner than a cluster.
_SETTINGS: Final = ClientSettings(connect_timeout_ms=5_000)


class CannotBeDone(click.ClickException):
    """The command could not be carried out; the message is a sentence."""

    exit_code = _CANNOT


bootstrap_option = click.option(
    "--bootstrap-server",
    "bootstrap",
    default=f"127.0.0.1:{DEFAULT_PORT}",
    show_default=True,
    metavar="HOST:PORT,...",
    help="Brokers of the cluster.",
)
json_option = click.option("--json", "is_json", is_flag=True, help="Print one JSON object per line.")
internal_option = click.option(
    "--internal", "is_internal", is_flag=True, help="Include internal topics, such as __consumer_offsets."
)

set_option = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set a configuration; may be repeated."
)
unset_option = click.option(
    "--unset", "unset", multiple=True, metavar="KEY", help="Remove the value of a key; may be repeated."
)


def ask_cluster(
    bootstrap: str, question: Callable[[ClusterClient], Awaitable[T]], *, waits: Waits | None = None
) -> T:
    """Run a command's question with a client of the cluster that --bootstrap-server names. Raises CannotBeDone."""
    _check_text()

    async def main(runtime: ProductionRuntime) -> T:
        runtime.stalls.stop()  # a node's long turns delay others; a command's delay itself
        addresses = addresses_of(bootstrap)
        client = ClusterClient(
            runtime, lambda: addresses, client_id=_CLIENT_ID, waits=waits, settings=_SETTINGS
        )
        try:
            return await question(client)
        finally:
            await client.close()

    try:
        return run(main)
    except NoBrokerAnswers as error:
        raise CannotBeDone(f"{error} Start one, or name another address by --bootstrap-server.") from error
    except (ClusterError, RemoteStorageError, KafkaError) as error:
        raise CannotBeDone(str(error)) from error


def _check_text() -> None:
    """Check that the command's arguments are text: a shell passes any bytes, of which no name consists.

    Raises CannotBeDone.
    """
    context = click.get_current_context(silent=True)
    for name, value in (context.params if context is not None else {}).items():
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and (shown := text.encode("utf-8", "replace").decode()) != text:
                raise CannotBeDone(f"{name.upper()} {shown!r} is not UTF-8: names and values are text.")


async def existing_topics(
    client: ClusterClient, names: Sequence[str], *, remedy: str = ""
) -> MetadataResponse:
    """Return the metadata of these topics; if there are no names, of all.

    Raises ClusterError for a topic that the cluster does not have, with similar names, and for one that
    cannot be described.
    """
    found = await client.metadata(names or None)
    errors = {topic.name: topic.error_code for topic in found.topics}
    unknown = (ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception)
    if missing := [name for name in names if errors.get(name, ErrorCode.none) in unknown]:
        everything = await client.metadata()
        check_names("topic", missing, names_of(everything.topics), remedy=remedy)
    for name in names:
        if errors.get(name):
            raise ClusterError(f"The topic {name} cannot be described: {error_name(errors[name])}.")
    return found


def check_names(kind: str, names: Sequence[str], known: Collection[str], *, remedy: str = "") -> None:
    """Check that the cluster has things of these names. Raises ClusterError, which suggests similar names."""
    if missing := [name for name in names if name not in known]:
        hints = [similar(missing[0], known) if len(missing) == 1 else "", remedy]
        shown = ", ".join(each or "''" for each in missing)
        raise ClusterError(" ".join([f"The cluster has no {kind} {shown}.", *filter(None, hints)]))

"""Parts of all commands that ask a cluster: --bootstrap-server, the run of a question, errors that end a command.

Exit status of such a command: 2 if it could not be carried out.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, TypeVar

import click

from ottla.broker.cli.similar import similar
from ottla.broker.network.client import Address
from ottla.config.load import DEFAULT_PORT
from ottla.protocol.errors import KafkaError
from ottla.remote.errors import RemoteStorageError
from ottla.runtime import Runtime
from ottla.runtime.production import run

T = TypeVar("T")

_CANNOT: Final = 2


class CannotBeDone(click.ClickException):
    """The command could not be carried out; the message is a sentence."""

    exit_code = _CANNOT


class ClusterError(Exception):
    """The cluster cannot be asked; the message is a sentence for an operator."""


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


def addresses_of(text: str) -> tuple[Address, ...]:
    """The value of --bootstrap-server. Raises CannotBeDone."""
    found = []
    for part in text.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise CannotBeDone(
                f"--bootstrap-server {text}: '{part}' is no address of a broker: it must be HOST:PORT."
            )
        found.append((host.removeprefix("[").removesuffix("]"), int(port)))
    return tuple(found)


def ask(question: Callable[[Runtime], Awaitable[T]]) -> T:
    """Run a command's question on an event loop and return its result. Raises CannotBeDone."""

    async def main(runtime: Runtime) -> T:
        return await question(runtime)

    try:
        return run(main)
    except (ClusterError, RemoteStorageError, KafkaError) as error:
        raise CannotBeDone(str(error)) from error


def check_names(kind: str, names: Sequence[str], known: Collection[str], *, remedy: str = "") -> None:
    """Check that the cluster has things of these names. Raises ClusterError, which suggests similar names."""
    if missing := [name for name in names if name not in known]:
        hints = [similar(missing[0], known) if len(missing) == 1 else "", remedy]
        raise ClusterError(
            " ".join([f"The cluster has no {kind} {', '.join(missing)}.", *filter(None, hints)])
        )

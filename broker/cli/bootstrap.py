"""Parts of all commands that ask a cluster: --bootstrap-server, the run of a question, errors that end a command.

Exit status of such a command: 2 if it could not be carried out.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import click

from ottla.broker.network.client import Address, NodeClient
from ottla.config.load import DEFAULT_PORT
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.remote.errors import RemoteStorageError
from ottla.runtime import Runtime
from ottla.runtime.production import run

T = TypeVar("T")

#: The timeout of one request.
TIMEOUT_S: Final = 30.0

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


def addresses_of(text: str) -> tuple[Address, ...]:
    """The value of --bootstrap-server. Raises CannotBeDone."""
    found = []
    for part in text.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit()):
            raise CannotBeDone(f"'{part}' is no address of a broker: it must be HOST:PORT.")
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


async def metadata(
    client: NodeClient, bootstrap: Sequence[Address], request: MetadataRequest
) -> tuple[Address, MetadataResponse]:
    """The response of the first of these brokers that answers, and its address. Raises ClusterError."""
    problems = []
    for address in bootstrap:
        try:
            response: Any = await client.request(address, ApiKey.METADATA, request, timeout_s=TIMEOUT_S)
        except (OSError, TimeoutError, KafkaError) as error:
            problems.append(str(error))
            continue
        return address, response
    raise ClusterError(f"No broker answers: {'; '.join(problems)}.")


def check_topics(names: Sequence[str], known: Callable[[str], bool]) -> None:
    """Check that the cluster has topics of these names. Raises ClusterError."""
    if missing := [name for name in names if not known(name)]:
        raise ClusterError(f"The cluster has no topic {', '.join(missing)}")

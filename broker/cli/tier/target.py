"""The cluster and the store that an `ottla tier` command works on: its options, and both sides opened."""

from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from ottla.broker.cli.bootstrap import CannotBeDone, addresses_of, ask, bootstrap_option
from ottla.broker.cli.tier.cluster_client import ClusterClient
from ottla.broker.network.client import Address
from ottla.config.load import read_properties
from ottla.config.tier_text import tier_properties
from ottla.protocol.errors import InvalidConfig
from ottla.remote.plugins import storage_manager_of
from ottla.remote.storage_manager import RemoteStorageManager
from ottla.remote.stores.object_storage import ObjectStorage
from ottla.runtime import Runtime

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(slots=True, frozen=True, kw_only=True)
class Target:
    """The cluster's addresses and the store's configuration that a command's options name."""

    bootstrap: tuple[Address, ...]
    #: None: neither --tier nor --config names a store.
    store: dict[str, str] | None

    @classmethod
    def of(cls, bootstrap: str, tier: str | None, properties: Path | None) -> "Target":
        """Create the target that these options name. Raises CannotBeDone."""
        try:
            store = None if properties is None else read_properties(properties)
            if tier is not None:
                store = (store or {}) | tier_properties(tier)
            return cls(bootstrap=addresses_of(bootstrap), store=store)
        except InvalidConfig as error:
            raise CannotBeDone(str(error)) from None

    def ask(self, question: Callable[[Runtime, ClusterClient], Awaitable[T]]) -> T:
        """Run with a client of the cluster. Raises CannotBeDone."""

        async def main(runtime: Runtime) -> T:
            client = ClusterClient(runtime, self.bootstrap)
            try:
                return await question(runtime, client)
            finally:
                await client.close()

        return ask(main)

    def ask_both(self, question: Callable[[Runtime, ClusterClient, ObjectStorage], Awaitable[T]]) -> T:
        """Run with a client of the cluster, and the store. Raises CannotBeDone."""
        with closing(self._storage()) as storage:
            if not isinstance(storage, ObjectStorage):
                raise CannotBeDone(
                    f"The objects of {type(storage).__name__} cannot be listed: "
                    "this command knows directory, s3 and minio."
                )
            known: ObjectStorage = storage  # bound for the closure
            return self.ask(lambda runtime, client: question(runtime, client, known))

    def _storage(self) -> RemoteStorageManager:
        if self.store is None:
            raise CannotBeDone("Which store? Name it by --tier, or a broker's server.properties by --config.")
        try:
            return storage_manager_of(self.store)
        except InvalidConfig as error:
            raise CannotBeDone(str(error)) from None


def with_target(command: Command) -> Command:
    """Add the options that every `ottla tier` command has: those of the cluster and of the store."""
    for option in (
        click.option(
            "-c",
            "--config",
            "properties",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A broker's server.properties, which names the store.",
        ),
        click.option("--tier", metavar="DIR|URL", help="The store, as of `ottla broker --tier`."),
        bootstrap_option,
    ):
        command = option(command)
    return command

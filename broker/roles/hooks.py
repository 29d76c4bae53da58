"""The hooks of a node: where a test, or the simulation, puts something between the node and its surroundings.

clients --frames--> around_requests(dispatch) --> handlers
remote log manager --copies--> around_store(store) --> object store
logs --> files --> disk
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.broker.network import Dispatch
from ottla.storage.files import Files

if TYPE_CHECKING:
    from ottla.remote.storage_manager import RemoteStorageManager


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The hooks of one life of a node; without arguments there are none."""

    #: The file system; None is the operating system's.
    files: Files | None = None
    #: Returns what handles the requests of clients and other brokers instead of the broker's own dispatch.
    around_requests: Callable[[Dispatch], Dispatch] = lambda dispatch: dispatch
    #: Returns what the broker calls instead of the store of its remote tier, but for what a transfer process does.
    around_store: "Callable[[RemoteStorageManager], RemoteStorageManager]" = lambda store: store


NO_HOOKS = Hooks()

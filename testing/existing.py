"""A cluster that is not started by the test: another one of a person, or one that several processes share."""

from types import TracebackType
from typing import Final, NoReturn, Self

from ottla.testing.cluster_methods import ClusterMethods

_REMEDY: Final = (
    "the fixture ottla_cluster starts a broker of the test's own, --ottla-scope=worker one for each worker"
)


class Existing(ClusterMethods):
    """A cluster that runs already, Ottla's or Apache Kafka's: it can be asked, not controlled."""

    def __init__(self, bootstrap_servers: str, *, is_shared: bool = False) -> None:
        """`is_shared`: other processes of the same test run use it, too."""
        super().__init__()
        self._bootstrap_servers = bootstrap_servers
        self._is_shared = is_shared

    @property
    def bootstrap_servers(self) -> str:
        """The addresses for clients' `bootstrap.servers`."""
        return self._bootstrap_servers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close_operations()

    def reset(self) -> None:
        """Raise AttributeError: the topics and groups of the cluster are not only this test's."""
        self._refuse("reset")

    def __getattr__(self, name: str) -> NoReturn:
        """Say why a method of `ottla.testing.Broker` is missing."""
        from ottla.testing.broker import Broker  # imported here: only for the message

        if not name.startswith("_") and hasattr(Broker, name):
            self._refuse(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _refuse(self, name: str) -> NoReturn:
        whose = (
            "is shared by all workers of pytest-xdist, whose tests it would meet"
            if self._is_shared
            else "is not this test's own"
        )
        raise AttributeError(f"{name}: the cluster at {self._bootstrap_servers} {whose}; {_REMEDY}.")

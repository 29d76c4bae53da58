"""The place of Spark's tasks by `--master`, checked before Spark is started, which would try for minutes."""

import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import Final

from ottla.bench.spark.errors import SparkCannotStart

_LOCAL: Final = re.compile(r"local(?:\[(?P<threads>\*|[1-9][0-9]*)\])?")
_STANDALONE: Final = re.compile(r"spark://(?P<masters>[^:/,\s]+:[0-9]+(?:,[^:/,\s]+:[0-9]+)*)")
_CONNECT_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Master:
    """A Spark in the JVM of this session, or a standalone cluster."""

    url: str
    #: (host, port) of each master of the cluster; empty without one.
    addresses: tuple[tuple[str, int], ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether tasks run in the session's own JVM."""
        return not self.addresses

    @property
    def is_on_loopback(self) -> bool:
        """Whether all of it is on this machine, and is reached by 127.0.0.1."""
        return all(_is_loopback(host) for host, _ in self.addresses)

    def check(self) -> None:
        """Raise SparkCannotStart if no master of the cluster accepts a connection."""
        failures = [failure for address in self.addresses if (failure := _failure_at(address))]
        if self.addresses and len(failures) == len(self.addresses):
            raise SparkCannotStart(
                f"no Spark master can be reached at {self.url} ({failures[0]}): start one, or use --master local[2]"
            )


def parse_master(text: str) -> Master:
    """Parse the value of `--master`. Raises SparkCannotStart.

    >>> parse_master("local[2]").is_local
    True
    >>> parse_master("spark://a:7077,b:7077").addresses
    (('a', 7077), ('b', 7077))
    """
    if _LOCAL.fullmatch(text):
        return Master(url=text)
    if found := _STANDALONE.fullmatch(text):
        pairs = (each.rsplit(":", 1) for each in found["masters"].split(","))
        addresses = tuple((host, int(port)) for host, port in pairs)
        if all(0 < port < 1 << 16 for _, port in addresses):
            return Master(url=text, addresses=addresses)
    raise SparkCannotStart(
        f"{text!r} is no Spark master: use local[N] for N tasks at the same time on this machine, or spark://HOST:PORT"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _failure_at(address: tuple[str, int]) -> str | None:
    try:
        socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return None

"""Listeners and advertised listeners of a node, parsed from its configurations.

`listeners` are the addresses of the sockets; clients get `advertised.listeners`, or else the listeners
themselves. Both are lists of NAME://host:port, and `listener.security.protocol.map` has the security
protocol of each name. An empty host means every interface; IPv6 addresses are in brackets.
Source: SocketServerConfigs.listenerListToEndPoints, AbstractKafkaConfig, KafkaConfig.effectiveAdvertised*.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from ottla.config.config_def import InvalidConfigValue
from ottla.protocol.errors import InvalidConfig

__all__ = [
    "Listener",
    "SecurityProtocol",
    "advertised_controller_listeners",
    "advertised_listeners",
    "check_protocols",
    "not_served",
    "parse_listeners",
    "parse_security_map",
    "with_bound_addresses",
]


class SecurityProtocol(IntEnum):
    """The security protocol of a listener; the numbers are those of a registration's endpoints."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener: its name and address. An empty host means every interface, port 0 one that the system chooses."""

    name: str
    host: str
    port: int
    security_protocol: SecurityProtocol

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


_ENTRY = re.compile(r"(?P<name>.+)://\[?(?P<host>[0-9a-zA-Z\-%._:]*)\]?:(?P<port>[0-9]{1,5})")
_ANY_IPV4 = "0.0.0.0"  # noqa: S104 (compared, never bound)
#: The hosts of a socket that accepts connections to all addresses of its machine.
_WILDCARDS = ("", _ANY_IPV4, "::")
_ALLOWED = "a list of NAME://host:port entries with ports up to 65535"


def parse_security_map(
    text: str, *, is_default: bool, controller_names: Sequence[str], listener_entries: Sequence[str]
) -> dict[str, SecurityProtocol]:
    """The security protocol of each listener name, names in capitals.

    With the default map, controller listeners that are not in it are PLAINTEXT, unless a listener has the
    name of a TLS or SASL protocol: then the operator must set the map.
    Raises InvalidConfigValue.
    """
    protocols: dict[str, SecurityProtocol] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = (part.strip() for part in pair.rpartition(":"))
        if not name or protocol.upper() not in SecurityProtocol.__members__:
            allowed = (
                f"a list of NAME:PROTOCOL entries, PROTOCOL one of {', '.join(SecurityProtocol.__members__)}"
            )
            raise InvalidConfigValue("listener.security.protocol.map", text, allowed)
        protocols[name.upper()] = SecurityProtocol[protocol.upper()]
    if is_default:
        names = [*controller_names, *(entry.partition(":")[0] for entry in listener_entries)]
        if not any(name.upper() in ("SSL", "SASL_PLAINTEXT", "SASL_SSL") for name in names):
            for name in controller_names:
                protocols.setdefault(name.upper(), SecurityProtocol.PLAINTEXT)
    return protocols


def not_served(key: str, value: str, protocol: SecurityProtocol) -> InvalidConfigValue:
    """The error for a security protocol that this broker does not serve yet, with the remedy."""
    proxy = ", or behind a proxy that terminates TLS" if protocol is SecurityProtocol.SSL else ""
    return InvalidConfigValue(
        key,
        value,
        f"PLAINTEXT: {protocol.name} listeners are not yet served, and this broker does not open them without "
        f"protection. Use PLAINTEXT on a trusted network{proxy}",
    )


def check_protocols(entries: Sequence[str], protocols: Mapping[str, SecurityProtocol]) -> None:
    """Refuse entries of `listeners` with another protocol than PLAINTEXT. Raises InvalidConfigValue.

    A listener that the map lacks, and that has the name of a TLS or SASL protocol, means that protocol: the error
    about the map would only lead to this one.
    """
    for entry in entries:
        name = entry.partition("://")[0].strip().upper()
        protocol = protocols.get(name, SecurityProtocol.__members__.get(name))
        if protocol not in (None, SecurityProtocol.PLAINTEXT):
            raise not_served("listeners", entry, protocol)


def parse_listeners(
    key: str,
    entries: Sequence[str],
    protocols: Mapping[str, SecurityProtocol],
    *,
    are_ports_distinct: bool = True,
) -> tuple[Listener, ...]:
    """Parse the entries of `listeners` or `advertised.listeners`; `key` is the one for error messages.

    Names must differ, and for `listeners` also ports: but one IPv4 and one IPv6 address may share a
    port, and port 0 may be repeated. Raises InvalidConfigValue.
    """
    text = ",".join(entries)
    listeners: list[Listener] = []
    for entry in entries:
        match = _ENTRY.fullmatch(entry)
        if match is None or int(match["port"]) > 65535:
            raise InvalidConfigValue(key, text, _ALLOWED)
        name = match["name"].upper()
        if name not in protocols:
            raise InvalidConfigValue(
                key,
                text,
                f"listeners that listener.security.protocol.map knows ({', '.join(sorted(protocols))})",
            )
        listeners.append(Listener(name, match["host"], int(match["port"]), protocols[name]))
    if len({listener.name for listener in listeners}) != len(listeners):
        raise InvalidConfigValue(key, text, "a list of listeners with different names")
    if are_ports_distinct:
        _check_ports(key, text, listeners)
    return tuple(listeners)


def _check_ports(key: str, text: str, listeners: Sequence[Listener]) -> None:
    by_port: dict[int, list[Listener]] = {}
    for listener in listeners:
        if listener.port:
            by_port.setdefault(listener.port, []).append(listener)
    for port, sharing in by_port.items():
        if len(sharing) > 1 and sorted(_ip_version(listener.host) for listener in sharing) != [4, 6]:
            allowed = f"listeners with different ports, or one IPv4 and one IPv6 address at port {port}"
            raise InvalidConfigValue(key, text, allowed)


def _ip_version(host: str) -> int:
    """Return the IP version of a host, 4 or 6; 0 for names and wildcards."""
    for version, address in ((4, IPv4Address), (6, IPv6Address)):
        try:
            address(host)
        except AddressValueError:
            continue
        return version
    return 0


def advertised_listeners(
    listeners: Sequence[Listener], advertised: Sequence[Listener] | None, controller_names: Sequence[str]
) -> tuple[Listener, ...]:
    """The advertised listeners for clients and other brokers, without the controller's.

    Raises InvalidConfig if an advertised listener does not exist or is a wildcard.
    """
    hidden = {name.upper() for name in controller_names}
    found = [
        listener
        for listener in (listeners if advertised is None else advertised)
        if listener.name not in hidden
    ]
    bound = {listener.name for listener in listeners}
    if unknown := [listener.name for listener in found if listener.name not in bound]:
        raise InvalidConfig(
            f"advertised.listeners names {', '.join(unknown)}, but listeners only has {', '.join(sorted(bound))}."
        )
    if any(listener.host == _ANY_IPV4 for listener in found):
        raise InvalidConfig(
            "advertised.listeners must not be the wildcard address 0.0.0.0: give an address that clients can reach."
        )
    return tuple(found)


def advertised_controller_listeners(
    listeners: Sequence[Listener],
    advertised: Sequence[Listener] | None,
    controller_names: Sequence[str],
    *,
    voter: tuple[str, int] | None,
) -> tuple[Listener, ...]:
    """The advertised listeners of this controller, in the order of controller.listener.names.

    A listener that is not in advertised.listeners is advertised as it is bound; a wildcard address of the first one
    is replaced by this node's entry in controller.quorum.voters (`voter`), or else by this machine's name.
    Raises InvalidConfig for an advertised wildcard.
    """
    bound = {listener.name: listener for listener in listeners}
    by_name = {listener.name: listener for listener in advertised or ()}
    found: list[Listener] = []
    for position, name in enumerate(name.upper() for name in controller_names):
        if name in by_name:
            if by_name[name].host == _ANY_IPV4:
                raise InvalidConfig("advertised.listeners cannot use the nonroutable meta-address 0.0.0.0.")
            found.append(by_name[name])
        elif name in bound:
            is_wildcard = bound[name].host in _WILDCARDS
            host, port = (
                voter if position == 0 and is_wildcard and voter else (bound[name].host, bound[name].port)
            )
            found.append(replace(bound[name], host="" if host in _WILDCARDS else host, port=port))
    return tuple(found)


def with_bound_addresses(
    advertised: Sequence[Listener], bound_ports: Mapping[str, int], hostname: Callable[[], str]
) -> tuple[Listener, ...]:
    """Return the advertised listeners once sockets are open: port 0 and missing hosts are filled in.

    `bound_ports` are the bound ports by listener name, `hostname` returns what replaces an empty host: it may
    ask a name server, so it is called only for that.
    """
    return tuple(
        replace(
            listener,
            host=listener.host or hostname(),
            port=listener.port or bound_ports.get(listener.name, 0),
        )
        for listener in advertised
    )

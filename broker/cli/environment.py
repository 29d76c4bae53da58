"""The environment of a container as a node's properties: KAFKA_NODE_ID=1 is node.id=1, as in Apache Kafka's own image.

    KAFKA_LOG_DIRS             log.dirs: `_` is `.`, `__` is `_`, `___` is `-`
    CLUSTER_ID                 the cluster for which a new folder is formatted
    INITIAL_CONTROLLERS        the voters of a new quorum without controller.quorum.voters: id@host:port:directory,...
    TIER                       the remote tier (`--tier`)
    ADVERTISED_HOST            where clients outside find a node that is a cluster by itself: localhost
    METRICS_PORT               where Prometheus and the image's health check find the node: 9404

A mounted server.properties is read first; variables override it, and nothing is written to it. Keys that neither
of them sets have the image's defaults. Without a file and without KAFKA_PROCESS_ROLES, the node is a cluster by itself
with two listeners: HOST for clients outside of the container network, PLAINTEXT for those inside.

Different from Apache Kafka's image: a variable that is no configuration is refused, and similar ones are named.
Source: docker/ of Apache Kafka, KafkaDockerWrapper.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final

from ottla.broker.cli.similar import similar
from ottla.config.definitions import BROKER_CONFIGS, DYNAMIC_BROKER_CONFIGS
from ottla.config.listeners import SecurityProtocol
from ottla.config.load import DEFAULT_CONTROLLER_PORT, DEFAULT_PORT
from ottla.config.names import base_key
from ottla.protocol.errors import InvalidConfig

__all__ = ["DEFAULT_METRICS_PORT", "ContainerSettings", "property_name", "read_environment", "variable_name"]

_PREFIX: Final = "KAFKA_"
DEFAULT_METRICS_PORT: Final = 9404
#: The port of the listener for clients and nodes in the container network.
_INSIDE_PORT: Final = 19092
_CONTROLLER: Final = "CONTROLLER"

#: Variables of Apache Kafka's image for the JVM, Log4j, and files of TLS.
_OF_KAFKAS_IMAGE: Final = frozenset(
    {
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_HEAP_OPTS",
        "KAFKA_JMX_HOSTNAME",
        "KAFKA_JMX_OPTS",
        "KAFKA_JMX_PORT",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_OPTS",
        "KAFKA_SSL_KEYSTORE_CREDENTIALS",
        "KAFKA_SSL_KEYSTORE_FILENAME",
        "KAFKA_SSL_KEY_CREDENTIALS",
        "KAFKA_SSL_TRUSTSTORE_CREDENTIALS",
        "KAFKA_SSL_TRUSTSTORE_FILENAME",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_VERSION",
    }
)
#: Variables that Kubernetes defines in each container for a Service whose name begins with kafka.
_OF_A_SERVICE: Final = re.compile(
    r"KAFKA_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?)"
)
_ADDRESS_OF_A_SERVICE: Final = re.compile(r"(tcp|udp|sctp)://.*")
#: Keys that compose files leave empty to leave them unset, as the scripts of Apache Kafka's image understand it.
_UNSET_IF_EMPTY: Final = ("listeners", "advertised.listeners")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSettings:
    """A node as its container's environment determines it. An empty variable is one that is not set."""

    properties: Mapping[str, str]
    #: None: that of the formatted folder, or else the node chooses one.
    cluster_id: str | None
    #: The text of INITIAL_CONTROLLERS.
    initial_controllers: str | None
    tier: str | None
    #: The port that the image's health check asks.
    metrics_port: int
    #: Sentences for the log.
    warnings: tuple[str, ...]


def property_name(variable: str) -> str:
    """The configuration that a variable sets.

    >>> property_name("KAFKA_NODE_ID"), property_name("KAFKA_LISTENER_NAME_A__B___C_MAX_CONNECTIONS")
    ('node.id', 'listener.name.a_b-c.max.connections')
    """
    marks = {"_": ".", "__": "_", "___": "-"}
    name = variable.removeprefix(_PREFIX).lower()
    return re.sub("_{1,3}", lambda found: marks[found[0]], name)


def variable_name(name: str) -> str:
    """The variable that sets a configuration: the inverse of `property_name`.

    >>> variable_name("log.dirs")
    'KAFKA_LOG_DIRS'
    """
    marks = {".": "_", "_": "__", "-": "___"}
    return _PREFIX + "".join(marks.get(each, each) for each in name).upper()


def read_environment(
    variables: Mapping[str, str], *, mounted: Mapping[str, str] | None, hostname: str, data_dir: str
) -> ContainerSettings:
    """The settings of a node in a container. Raises InvalidConfig.

    `mounted` are the properties of a mounted file, None without one; `hostname` is the container's name in its
    network, `data_dir` the folder of the image's volume.
    """
    known, ignored = _configurations(variables)
    metrics_port = _metrics_port(variables)
    given = {**(mounted or {}), **known}
    is_by_itself = mounted is None and "process.roles" not in given
    advertised_host = variables.get("ADVERTISED_HOST")
    if advertised_host and not (is_by_itself and given.keys().isdisjoint(_UNSET_IF_EMPTY)):
        raise InvalidConfig(
            f"ADVERTISED_HOST={advertised_host} has no effect beside a mounted server.properties, KAFKA_PROCESS_ROLES, "
            "KAFKA_LISTENERS or KAFKA_ADVERTISED_LISTENERS: remove it, and name the host in KAFKA_ADVERTISED_LISTENERS."
        )
    if "listeners" not in given and "advertised.listeners" in given:
        given["listeners"] = _bound(given["advertised.listeners"])
    initial_controllers = variables.get("INITIAL_CONTROLLERS") or None
    if initial_controllers and given.get("controller.quorum.voters"):
        raise InvalidConfig(
            f"INITIAL_CONTROLLERS={initial_controllers} has no effect beside controller.quorum.voters: "
            "remove one of them."
        )
    if is_by_itself:
        given = _cluster_by_itself(given, advertised_host or "localhost", hostname)
    properties = {**_defaults(given, metrics_port, data_dir), **given}
    return ContainerSettings(
        properties=properties,
        cluster_id=variables.get("CLUSTER_ID") or None,
        initial_controllers=initial_controllers,
        tier=variables.get("TIER") or None,
        metrics_port=metrics_port,
        warnings=(_without_effect(ignored),) if ignored else (),
    )


def _configurations(variables: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The configurations of the variables, and the names of those without effect. Raises InvalidConfig."""
    found, ignored, refused = {}, [], []
    for variable, value in sorted(variables.items()):
        name = property_name(variable)
        if not variable.startswith(_PREFIX) or (name in _UNSET_IF_EMPTY and not value.strip()):
            continue
        if variable in _OF_KAFKAS_IMAGE:
            ignored.append(variable)
        elif _is_known(name):
            found[name] = value.strip()
        elif _OF_A_SERVICE.fullmatch(variable) or _ADDRESS_OF_A_SERVICE.fullmatch(value):
            ignored.append(variable)
        else:
            refused.append(variable)
    if refused:
        raise InvalidConfig(" ".join(_refusals(refused)))
    return found, ignored


def _is_known(name: str) -> bool:
    """Whether it is a broker's configuration, one of a listener, or one for the managers of the remote tier."""
    prefixes = [
        str(BROKER_CONFIGS[f"remote.log.{manager}.manager.impl.prefix"].default)
        for manager in ("storage", "metadata")
    ]
    return (
        base_key(name) in BROKER_CONFIGS or name in DYNAMIC_BROKER_CONFIGS or name.startswith(tuple(prefixes))
    )


def _refusals(refused: list[str]) -> Iterator[str]:
    """Yield a sentence for each variable that is no configuration; its value may be a secret."""
    known = [variable_name(name) for name in BROKER_CONFIGS]
    for variable in refused:
        yield f"{variable} is set, but there is no configuration {property_name(variable)}."
        yield similar(variable, known) or "Remove the variable."


def _without_effect(ignored: list[str]) -> str:
    return (
        f"These variables have no effect, since they are for a JVM, for Log4j, for files of TLS or of a Service: "
        f"{', '.join(ignored)}. OTTLA_LOG_LEVEL sets the level of the log."
    )


def _metrics_port(variables: Mapping[str, str]) -> int:
    text = variables.get("METRICS_PORT") or str(DEFAULT_METRICS_PORT)
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise InvalidConfig(f"METRICS_PORT={text} is no port: it must be 1 to 65535.")
    return int(text)


def _defaults(given: Mapping[str, str], metrics_port: int, data_dir: str) -> dict[str, str]:
    """The image's own defaults."""
    buffers = dict.fromkeys(("socket.send.buffer.bytes", "socket.receive.buffer.bytes"), "-1")
    if "broker" in given.get("process.roles", ""):
        buffers["replica.socket.receive.buffer.bytes"] = "-1"
    return {
        "metrics.listeners": f"http://0.0.0.0:{metrics_port}",
        # The system's self-tuning buffers, as in the standalone profile.
        **buffers,
        **({} if "log.dir" in given else {"log.dirs": data_dir}),
    }


def _bound(advertised: str) -> str:
    """The listeners of these advertised ones, on all interfaces.

    >>> _bound("PLAINTEXT://broker:19092, HOST://[::1]:9092")
    'PLAINTEXT://0.0.0.0:19092,HOST://0.0.0.0:9092'
    """
    parts = (each.strip().partition("://") for each in advertised.split(","))
    return ",".join(f"{name}://0.0.0.0:{address.rpartition(':')[2]}" for name, _, address in parts)


def _cluster_by_itself(given: Mapping[str, str], advertised_host: str, hostname: str) -> dict[str, str]:
    """The properties of a node that is broker and controller of a cluster of its own, under the given ones."""
    found = {
        "process.roles": "broker,controller",
        "node.id": given.get("broker.id", "1"),
        "controller.listener.names": _CONTROLLER,
    }
    listeners = given.get("listeners")
    if listeners is None:
        listeners = f"HOST://0.0.0.0:{DEFAULT_PORT},PLAINTEXT://0.0.0.0:{_INSIDE_PORT}"
        found["advertised.listeners"] = (
            f"HOST://{advertised_host}:{DEFAULT_PORT},PLAINTEXT://{hostname}:{_INSIDE_PORT}"
        )
        found["inter.broker.listener.name"] = "PLAINTEXT"
    else:
        found["inter.broker.listener.name"] = listeners.partition(":")[0].strip()
    port = DEFAULT_CONTROLLER_PORT
    if f"{_CONTROLLER}://" not in listeners.upper():
        taken = {each.rpartition(":")[2].strip() for each in listeners.split(",")}
        port = next(each for each in count(DEFAULT_CONTROLLER_PORT) if str(each) not in taken)
        listeners = f"{listeners},{_CONTROLLER}://127.0.0.1:{port}"
    names = [each.partition(":")[0].strip().upper() for each in listeners.split(",")]
    found["listener.security.protocol.map"] = ",".join(
        f"{name}:{name if name in SecurityProtocol.__members__ else 'PLAINTEXT'}" for name in names
    )
    if "controller.quorum.voters" not in given:
        found["controller.quorum.bootstrap.servers"] = f"127.0.0.1:{port}"
    protocols = given.get("listener.security.protocol.map", "")
    if protocols and f"{_CONTROLLER}:" not in protocols.upper():
        given = {**given, "listener.security.protocol.map": f"{protocols},{_CONTROLLER}:PLAINTEXT"}
    return {
        # One broker has one replica, and a new group rarely has further members that are worth a wait of 3 s.
        "offsets.topic.replication.factor": "1",
        "group.initial.rebalance.delay.ms": "0",
        **found,
        **given,
        "listeners": listeners,
    }

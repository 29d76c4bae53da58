"""Loads a node's properties from files, the command line, and the built-in standalone profile.

Files are Java properties, as Kafka's server.properties: later ones override earlier ones, and settings
of the command line override all of them. Without a file the standalone profile is used: the properties
of a node that is broker and controller of a cluster of its own.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from ottla.config.broker_config import BrokerConfig
from ottla.config.tier_text import metadata_topic_properties, tier_properties
from ottla.protocol.errors import InvalidConfig

__all__ = [
    "config_with_tier",
    "load_config",
    "parse_settings",
    "properties_text",
    "read_properties",
    "standalone_profile",
]

DEFAULT_PORT = 9092
DEFAULT_CONTROLLER_PORT = 9093


def load_config(
    properties: Path | Iterable[Path] | None = None,
    *,
    overrides: Iterable[str] = (),
    port: int | None = None,
    data_dir: Path | str | None = None,
    tier: str | Path | None = None,
) -> BrokerConfig:
    """The configuration of a node to be started. Raises InvalidConfig.

    `overrides` are KEY=VALUE texts. With `port` the node listens at that port of 127.0.0.1 only; 0 means free ports.
    `tier` is the remote tier, as in `ottla.config.tier_text`.
    """
    chosen = parse_settings(overrides)
    files = [properties] if isinstance(properties, Path) else list(properties or ())
    if files:
        settings: dict[str, str] = {}
        for file in files:
            settings |= read_properties(file)
        if port is not None:
            settings |= _listening_at(port)
            settings.pop("advertised.listeners", None)
    else:
        settings = standalone_profile(DEFAULT_PORT if port is None else port)
        if "listeners" in chosen and "CONTROLLER://" not in chosen["listeners"].upper():
            # If only the clients' listeners are set, the profile's controller listener is kept.
            chosen["listeners"] += ",CONTROLLER://127.0.0.1:0"
    if data_dir is not None:
        settings["log.dirs"] = str(data_dir)
        settings.pop("metadata.log.dir", None)
    return config_with_tier(settings, tier, overrides=chosen)


def config_with_tier(
    settings: Mapping[str, str], tier: str | Path | None, *, overrides: Mapping[str, str] | None = None
) -> BrokerConfig:
    """The configuration of these properties and this remote tier, under `overrides`. Raises InvalidConfig."""
    chosen = dict(overrides or {})
    if tier is None:
        return BrokerConfig({**settings, **chosen})
    config = BrokerConfig({**settings, **tier_properties(str(tier)), **chosen})
    _refuse_tier_in_log_dirs(config)
    if config.is_whole_cluster:
        return BrokerConfig(metadata_topic_properties(broker_count=1) | config.static)
    return config


def _refuse_tier_in_log_dirs(config: BrokerConfig) -> None:
    """Refuse a remote tier inside of a log directory, as Kafka starts with folders of logs only in there."""
    directory = config.texts.get("rsm.config.dir")
    for log_dir in config.log_dirs if directory is not None else ():
        if Path(str(directory)).absolute().is_relative_to(Path(log_dir).absolute()):
            raise InvalidConfig(
                f"The remote tier {directory} is inside of the log directory {log_dir}: choose a directory beside it."
            )


def standalone_profile(port: int = DEFAULT_PORT) -> dict[str, str]:
    """Properties of a node that is a whole cluster, on this machine's loopback address.

    Internal topics have one replica, as in the server.properties that Kafka ships.
    """
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        **_listening_at(port),
        "log.dirs": "data",
        # The system's self-tuning buffers: Kafka's 100 KiB cost two and a half times the processor time per 1 MB frame.
        "socket.send.buffer.bytes": "-1",
        "socket.receive.buffer.bytes": "-1",
        "replica.socket.receive.buffer.bytes": "-1",
        "offsets.topic.replication.factor": "1",
        # Kafka's default of 3 s waits for further members of a new group; a standalone node rarely has any.
        "group.initial.rebalance.delay.ms": "0",
    }


def _listening_at(port: int) -> dict[str, str]:
    # Kafka's controller port with Kafka's port; else any free one, so that two nodes never share one by accident.
    controller_port = DEFAULT_CONTROLLER_PORT if port == DEFAULT_PORT else 0
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
    }


def read_properties(file: Path) -> dict[str, str]:
    """A Java properties file, in ISO 8859-1 as java.util.Properties reads it. Raises InvalidConfig."""
    from jproperties import Properties, PropertyError  # imported here: a start without a file saves 20 ms

    properties = Properties()
    try:
        with file.open("rb") as stream:
            properties.load(stream, "iso-8859-1")
    except OSError as error:
        raise InvalidConfig(f"Cannot read {file}: {error.strerror}.") from None
    except PropertyError as error:
        raise InvalidConfig(f"{file} is not a properties file: {error}") from None
    return dict(properties.properties)


def properties_text(properties: Mapping[str, str]) -> str:
    r"""Return the lines of a Java properties file, in ASCII: other characters are Unicode escapes.

    >>> properties_text({"broker.rack": "a\\b", "log.dirs": " Zoë"})
    'broker.rack=a\\\\b\nlog.dirs=\\ Zo\\u00eb\n'
    """
    return "".join(f"{name}={_escaped(value)}\n" for name, value in properties.items())


def _escaped(value: str) -> str:
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    if text.startswith((" ", "\t")):
        text = f"\\{text}"
    return "".join(each if each.isascii() else _unicode_escape(each) for each in text)


def _unicode_escape(character: str) -> str:
    """Return the escapes of one character: two, of UTF-16, where one has too few digits."""
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def parse_settings(settings: Iterable[str]) -> dict[str, str]:
    """Parse the KEY=VALUE texts of a command line. Raises InvalidConfig."""
    parsed: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise InvalidConfig(f"'{setting}' is not a setting: it must be KEY=VALUE.")
        parsed[name.strip()] = value.strip()
    return parsed

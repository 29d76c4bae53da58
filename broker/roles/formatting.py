"""Storage formatting: the files that a node needs in its log directories before it can join a cluster.

    meta.properties              in each directory: cluster id, node id, directory id
    bootstrap.checkpoint         in each: the initial feature levels (and SCRAM users) of a new cluster
    __cluster_metadata-0/0-0     in the metadata log's: the initial voters, if the log holds the voters (KIP-853)

Files and errors are those of `kafka-storage.sh format`.
Source: StorageTool, Formatter, DynamicVoters of Kafka 4.3.1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from ottla.config.broker_config import BrokerConfig
from ottla.controller.formatting import FormatterError, bootstrap_records, feature_levels, parse_scram
from ottla.controller.metadata_log import snapshots
from ottla.metadata.features import (
    KRAFT_VERSION,
    METADATA_VERSION,
    METADATA_VERSIONS,
    UNDERSTOOD_FEATURES,
)
from ottla.protocol import kafka_uuid
from ottla.protocol.messages.voters_record import Endpoint, KRaftVersionFeature, Voter, VotersRecord
from ottla.storage.files import Files
from ottla.storage.manager import meta_properties

__all__ = ["FormatOptions", "FormatterError", "InitialController", "format_node", "parse_initial_controllers"]

_METADATA_LOG = "__cluster_metadata-0"


class InitialController(NamedTuple):
    """An initial voter of a new quorum."""

    node_id: int
    host: str
    port: int
    directory_id: UUID

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.node_id}@{host}:{self.port}:{kafka_uuid.to_text(self.directory_id)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatOptions:
    """The options of the command line, named as kafka-storage's."""

    cluster_id: str
    release_version: str | None = None
    features: Mapping[str, int] = field(default_factory=dict)
    add_scram: Sequence[str] = ()
    is_standalone: bool = False
    initial_controllers: tuple[InitialController, ...] = ()
    no_initial_controllers: bool = False
    ignore_formatted: bool = False


def format_node(
    config: BrokerConfig,
    options: FormatOptions,
    *,
    files: Files,
    now_ms: int,
    new_uuid: Callable[[], UUID],
    random_bytes: Callable[[int], bytes],
    say: Callable[[str], None],
) -> None:
    """Format every directory that is not formatted yet.

    Raises FormatterError, InconsistentMetaProperties for directories of another cluster or node, and OSError.
    """
    voters = _voters(config, options, new_uuid)
    levels = feature_levels(
        options.release_version, options.features, has_dynamic_quorum=not config.quorum_voters
    )
    credentials = [parse_scram(each, random_salt=random_bytes(32)) for each in options.add_scram]
    records = bootstrap_records(levels, credentials)
    metadata_dir = Path(config.metadata_log_dir)
    paths = sorted({*map(Path, config.log_dirs), metadata_dir})
    new = _not_formatted(paths, config, options, files)
    if not new:
        say("All of the log directories are already formatted.")
        return
    shown = ", ".join(f"{name}={level}" for name, level in levels.items() if level)
    say(f"Bootstrap metadata: {shown}")
    release = METADATA_VERSIONS[levels[METADATA_VERSION]].name
    for path in new:
        own = next((voter for voter in voters if voter.node_id == config.node_id), None)
        is_metadata, is_voter = path == metadata_dir, path == metadata_dir and own is not None
        kind = "data directory"
        if is_metadata:
            kind = "metadata directory"
            if voters:
                kind = "dynamic metadata voter directory" if is_voter else "dynamic metadata directory"
        say(f"Formatting {kind} {path} with {METADATA_VERSION} {release}.")
        files.make_dir(path)
        snapshots.write_bootstrap(path, records, files, now_ms=now_ms)
        if is_metadata and voters:
            files.make_dir(path / _METADATA_LOG)
            record = _voters_record(voters, config.controller_listener_names[0].upper())
            snapshots.write_voters(path / _METADATA_LOG, record, files, now_ms=now_ms)
        # Last: a directory with this file counts as formatted.
        properties = meta_properties.MetaProperties(
            cluster_id=options.cluster_id,
            node_id=config.node_id,
            directory_id=own.directory_id if own is not None and is_voter else new_uuid(),
        )
        meta_properties.write(path, properties, files)


def parse_initial_controllers(text: str) -> tuple[InitialController, ...]:
    """Parse --initial-controllers: id@host:port:directory, separated by commas. Raises FormatterError.

    >>> parse_initial_controllers("0@[::1]:8082:JEXY6aqzQY-32P5TStzaFg")[0].host
    '::1'
    """
    controllers = [_parse_controller(each.strip()) for each in text.split(",") if each.strip()]
    if not controllers:
        raise FormatterError("No voters given.")
    ids = [each.node_id for each in controllers]
    if duplicates := [each for each in ids if ids.count(each) > 1]:
        raise FormatterError(f"Node id {duplicates[0]} was specified more than once.")
    return tuple(controllers)


def _parse_controller(text: str) -> InitialController:
    """Parse one entry; error messages begin with Kafka's text."""

    def wrong(what: str) -> FormatterError:
        return FormatterError(
            f"{what} in dynamic voter string '{text}': each of --initial-controllers must be ID@HOST:PORT:DIRECTORY, "
            "with a directory id as `ottla random-uuid` draws it."
        )

    node_id, at, address = text.partition("@")
    if not at:
        raise wrong("No @ found")
    if not node_id.isdecimal():
        raise wrong("Failed to parse node id")
    host_and_port, _, directory = address.rpartition(":")
    host, colon, port = host_and_port.rpartition(":")
    if not colon or not host:
        raise wrong("No colon following hostname could be found")
    if not port.isdecimal() or int(port) > 65535:
        raise wrong("Failed to parse port")
    try:
        directory_id = kafka_uuid.from_text(directory)
    except ValueError:
        raise wrong("Failed to parse directory ID") from None
    return InitialController(int(node_id), host.removeprefix("[").removesuffix("]"), int(port), directory_id)


def _voters(
    config: BrokerConfig, options: FormatOptions, new_uuid: Callable[[], UUID]
) -> tuple[InitialController, ...]:
    """The initial voters of a dynamic quorum; empty for a static quorum, or if none are specified."""
    if config.quorum_voters:
        if options.initial_controllers or options.is_standalone:
            raise FormatterError(
                "You cannot specify controller.quorum.voters and format the node with --initial-controllers or "
                "--standalone. If you want to use dynamic quorum, please remove controller.quorum.voters and "
                "specify controller.quorum.bootstrap.servers instead."
            )
        return ()
    if options.is_standalone:
        if not config.is_controller:
            raise FormatterError("You can only use --standalone on a controller.")
        listener = config.advertised_controller_listeners[0]
        host = listener.host or "localhost"
        return (InitialController(config.node_id, host, listener.port, new_uuid()),)
    if config.is_controller and not options.initial_controllers and not options.no_initial_controllers:
        raise FormatterError(
            "Because controller.quorum.voters is not set on this controller, you must specify one of the "
            "following: --standalone, --initial-controllers, or --no-initial-controllers."
        )
    return options.initial_controllers


def _voters_record(voters: Sequence[InitialController], listener_name: str) -> VotersRecord:
    levels = UNDERSTOOD_FEATURES[KRAFT_VERSION]
    return VotersRecord(
        voters=[
            Voter(
                voter_id=voter.node_id,
                voter_directory_id=voter.directory_id,
                endpoints=[Endpoint(name=listener_name, host=voter.host, port=voter.port)],
                k_raft_version_feature=KRaftVersionFeature(
                    min_supported_version=levels.start, max_supported_version=levels.stop - 1
                ),
            )
            for voter in sorted(voters)
        ]
    )


def _not_formatted(
    paths: Sequence[Path], config: BrokerConfig, options: FormatOptions, files: Files
) -> list[Path]:
    """The directories to format. Raises FormatterError if others are formatted, without --ignore-formatted."""
    new = []
    for path in paths:
        found = meta_properties.read(path, files)
        if found is None:
            new.append(path)
            continue
        meta_properties.check(path, found, cluster_id=options.cluster_id, node_id=config.node_id)
        if not options.ignore_formatted:
            raise FormatterError(
                f"Log directory {path} is already formatted. Use --ignore-formatted to ignore this directory and "
                "format the others."
            )
    return new

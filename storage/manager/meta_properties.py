"""`meta.properties`: the cluster and node that a log directory belongs to, and its directory id.

Source: MetaProperties and MetaPropertiesEnsemble of Kafka; version 1 is the KRaft one.
"""

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from ottla.protocol import kafka_uuid
from ottla.storage.files import Files

FILE_NAME = "meta.properties"
VERSION = "1"


class InconsistentMetaProperties(RuntimeError):
    """The directory belongs to another cluster or node; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """The content of the file. `directory_id` is None in a file that was written before Kafka 3.7."""

    cluster_id: str
    node_id: int
    directory_id: UUID | None


def read(log_dir: Path, files: Files) -> MetaProperties | None:
    """The file's content, None without a file. Raises InconsistentMetaProperties if it is invalid."""
    path = log_dir / FILE_NAME
    try:
        text = files.read(path).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise InconsistentMetaProperties(f"{path} is not a text file: {error}") from error
    fields = dict(
        line.replace("\\:", ":").split("=", 1)
        for line in text.splitlines()
        if "=" in line and not line.startswith("#")
    )
    try:
        if fields["version"] != VERSION:
            raise InconsistentMetaProperties(f"{path} has version {fields['version']}, not {VERSION} (KRaft)")
        directory_id = fields.get("directory.id")
        return MetaProperties(
            cluster_id=fields["cluster.id"],
            node_id=int(fields["node.id"]),
            directory_id=kafka_uuid.from_text(directory_id) if directory_id else None,
        )
    except KeyError as error:
        raise InconsistentMetaProperties(f"{path} has no property {error.args[0]}") from error
    except ValueError as error:
        raise InconsistentMetaProperties(f"{path}: {error}") from error


def write(log_dir: Path, properties: MetaProperties, files: Files) -> None:
    """Replace the file, durably."""
    lines = ["#", f"cluster.id={properties.cluster_id}", f"version={VERSION}"]
    if properties.directory_id is not None:
        lines.append(f"directory.id={kafka_uuid.to_text(properties.directory_id)}")
    lines += [f"node.id={properties.node_id}", ""]
    files.write_atomically(log_dir / FILE_NAME, "\n".join(lines).encode())


def check(log_dir: Path, found: MetaProperties, *, cluster_id: str | None, node_id: int) -> None:
    """Check that the directory belongs to this cluster and node. `cluster_id` None: any cluster.

    Raises InconsistentMetaProperties.
    """
    if cluster_id is not None and found.cluster_id != cluster_id:
        raise InconsistentMetaProperties(
            f"Log directory {log_dir} belongs to cluster {found.cluster_id}, but this node is of cluster {cluster_id}: "
            "set log.dirs to the folders of this node, or move this one away"
        )
    if found.node_id != node_id:
        raise InconsistentMetaProperties(
            f"Log directory {log_dir} belongs to node {found.node_id}, but node.id is {node_id}: "
            "correct node.id, or set log.dirs to the folders of this node"
        )

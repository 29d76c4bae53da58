"""`quorum-state`: the last epoch of the metadata quorum that this node knows, its leader and this node's vote.

It is written before the node acts in a new epoch, so that no node acts twice in one epoch after a restart:
otherwise it could vote for two candidates. Version 0 of the file belongs to kraft.version 0 (voters are configured),
1 to kraft.version 1 (voters are in the log, and have directory ids).
Source: FileQuorumStateStore, ElectionState of Kafka 4.3.1, KIP-595.
"""

import json
from pathlib import Path
from typing import Any, Final

from ottla.controller.raft.types import ElectionState
from ottla.metadata.image import InvalidMetadata
from ottla.protocol import kafka_uuid
from ottla.protocol.types import ZERO_UUID
from ottla.storage import json_object
from ottla.storage.files import Files

FILE_NAME = "quorum-state"
#: The file's value for "no node".
_NO_NODE = -1
#: Node ids and epochs are 32-bit integers in all messages.
_MAX_NUMBER: Final = 2**31 - 1
#: The later of the file's two versions.
_LAST_VERSION = 1


def read(directory: Path, files: Files) -> ElectionState | None:
    """The content of the file, None if there is none. Raises InvalidMetadata if it is invalid."""
    path = directory / FILE_NAME
    try:
        text = files.read(path)
    except FileNotFoundError:
        return None
    try:
        fields = json_object.parse(text)
        version = _number(fields["data_version"])
        if version > _LAST_VERSION:
            raise ValueError(f"data_version {version}")
        voted_directory = fields.get("votedDirectoryId")
        return ElectionState(
            leader_epoch=_number(fields["leaderEpoch"]),
            leader_id=_node(fields["leaderId"]),
            kraft_version=version,
            voted_id=_node(fields["votedId"]),
            voted_directory_id=kafka_uuid.from_text(voted_directory) if voted_directory else ZERO_UUID,
            voters=tuple(_number(voter["voterId"]) for voter in fields.get("currentVoters") or ()),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidMetadata(
            f"{path} cannot be read ({error!r}). If this node is the only voter, delete the file: the epoch "
            "is read from the log. Otherwise remove this controller from the quorum, and add it again."
        ) from error


def write(directory: Path, state: ElectionState, files: Files) -> None:
    """Replace the file, durably."""
    leader_id = _NO_NODE if state.leader_id is None else state.leader_id
    voted_id = _NO_NODE if state.voted_id is None else state.voted_id
    fields: dict[str, Any]
    if state.kraft_version == 0:
        fields = {
            "clusterId": "",
            "leaderId": leader_id,
            "leaderEpoch": state.leader_epoch,
            "votedId": voted_id,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": voter} for voter in state.voters],
            "data_version": 0,
        }
    else:
        fields = {
            "leaderId": leader_id,
            "leaderEpoch": state.leader_epoch,
            "votedId": voted_id,
            "votedDirectoryId": kafka_uuid.to_text(state.voted_directory_id),
            "data_version": 1,
        }
    files.write_atomically(directory / FILE_NAME, json.dumps(fields, separators=(",", ":")).encode())


def _number(value: object, *, least: int = 0) -> int:
    if type(value) is not int:  # in Python, true is an int
        raise TypeError(f"{value!r} is no whole number")
    if not least <= value <= _MAX_NUMBER:
        raise ValueError(f"{value} is not in [{least}, {_MAX_NUMBER}]")
    return value


def _node(value: object) -> int | None:
    number = _number(value, least=_NO_NODE)
    return None if number == _NO_NODE else number

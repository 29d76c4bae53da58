"""The rules of the remote tier: when a segment is copied, when a copy is deleted, how a follower begins after it."""

from collections.abc import Mapping
from typing import Final

from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.auxiliary_state import AuxiliaryStates
from ottla.remote.expiration import expire
from ottla.remote.log_manager import copying
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.stories.partition.replica_rules import Applied
from ottla.stories.rules import Rule

COPY: Final[Applied] = (
    Rule(
        "KIP-405",
        "A leader copies its closed segments in order, as far as they are committed: no clean election truncates them. "
        "The copy has the leader epochs of its records.",
    ),
    copying.next_segment,
)
RESTART: Final[Applied] = (
    Rule(
        "KIP-405",
        "The follower takes leader epochs and producer state from the copy, and begins after it with an empty log.",
    ),
    AuxiliaryStates.read,
)
LOG_START: Final[Applied] = (
    Rule(
        "KIP-405",
        "Where tiered records expire, the log start offset moves behind them; followers learn it in a Fetch response.",
    ),
    expire,
)
#: By the state that a copy enters.
STATES: Final[Mapping[RemoteLogSegmentState, Applied]] = {
    RemoteLogSegmentState.COPY_SEGMENT_STARTED: COPY,
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED: (
        Rule(
            "KIP-405",
            "A copy counts once it is complete and the metadata say so; only then may the local segment go.",
        ),
        copying.after_copy,
    ),
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED: (
        Rule(
            "KIP-405",
            "A deletion is written into the metadata first, so that another leader can finish it.",
        ),
        expire,
    ),
    RemoteLogSegmentState.DELETE_SEGMENT_FINISHED: (
        Rule("KIP-405", "The objects are gone, so the metadata forget the copy."),
        RemoteLogSegmentMetadata.updated,
    ),
}

"""What decisions need from the Raft layer: the quorum's own version and its voters.

kraft.version is a feature to users, but stands in control records of the log, not in metadata records
(KIP-853). So a decision about it asks this layer, and the shell tells it what was decided.
"""

from typing import Protocol

from protocol.errors import InvalidUpdateVersion


class KraftVersionLayer(Protocol):
    """The Raft layer, as far as UpdateFeatures needs it."""

    @property
    def version(self) -> int:
        """The finalized kraft.version."""

    @property
    def voter_ids(self) -> frozenset[int]:
        """The ids of all voters."""

    def check_upgrade(self, level: int) -> None:
        """Whether the quorum can move to this version. Raises InvalidUpdateVersion; changes nothing."""

    def upgrade(self, level: int) -> None:
        """Append the control records of a version that `check_upgrade` has let through."""


class FixedKraftVersion:
    """A quorum whose version nobody changes: the state machine's own, until the shell puts a real one there."""

    def __init__(self, version: int = 0, voter_ids: frozenset[int] = frozenset()) -> None:
        self.version = version
        self.voter_ids = voter_ids

    def check_upgrade(self, level: int) -> None:
        """Raises InvalidUpdateVersion unless there is nothing to change."""
        if level != self.version:
            raise InvalidUpdateVersion(
                f"Invalid upgrade of kraft.version from version {self.version} to {level}"
            )

    def upgrade(self, level: int) -> None:
        """Nothing: `check_upgrade` lets only the present version through."""

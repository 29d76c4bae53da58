"""kraft.version and the voters: what decisions need from the Raft layer.

Users see kraft.version as a feature, but it is stored in control records of the log, not in metadata records
(KIP-853). So a decision about it is checked with this layer, and the shell calls `upgrade` once the decision is made.
"""

from typing import Protocol

from ottla.protocol.errors import InvalidUpdateVersion


class KraftVersionLayer(Protocol):
    """The Raft layer, as far as UpdateFeatures needs it."""

    @property
    def version(self) -> int:
        """The finalized level of the feature kraft.version."""

    @property
    def voter_ids(self) -> frozenset[int]:
        """The ids of all voters."""

    def check_upgrade(self, level: int) -> None:
        """Whether the quorum can move to this version. Raises InvalidUpdateVersion; changes nothing."""

    def upgrade(self, level: int) -> None:
        """Append the control records of a version that `check_upgrade` has accepted."""


class FixedKraftVersion:
    """A quorum with a fixed version: the default of `ClusterState`, until the shell sets the real one."""

    def __init__(self, version: int = 0, voter_ids: frozenset[int] = frozenset()) -> None:
        self.version = version
        self.voter_ids = voter_ids

    def check_upgrade(self, level: int) -> None:
        """Raise InvalidUpdateVersion unless `level` is the current version."""
        if level != self.version:
            raise InvalidUpdateVersion(
                f"Invalid upgrade of kraft.version from version {self.version} to {level}"
            )

    def upgrade(self, level: int) -> None:
        """Do nothing: `check_upgrade` accepts only the current version."""

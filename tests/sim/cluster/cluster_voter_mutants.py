"""Bugs planted into changes of voters (KIP-853); see `cluster_mutants`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from ottla.controller.quorum.maintenance import MetadataLogMaintenance
from ottla.controller.raft import high_watermark, reconfiguration
from ottla.controller.raft.core import Core
from ottla.controller.raft.roles import Leader
from ottla.protocol.messages.voters_record import VotersRecord


@contextmanager
def voters_change_before_the_last_change_is_committed() -> Iterator[None]:
    """A leader appends one voter set after the other: majorities of the first and the last one need not overlap."""
    with patch.object(reconfiguration, "_committed_voters", lambda core, role, what: core.voters):
        yield


@contextmanager
def a_removed_leader_goes_on() -> Iterator[None]:
    """A leader whose removal is committed does not resign."""
    advance = high_watermark.advance

    def without_resignation(core: Core) -> None:
        role = core.role
        assert isinstance(role, Leader), role
        must_resign = role.must_resign
        advance(core)
        role.must_resign = must_resign

    with patch.object(high_watermark, "advance", without_resignation):
        yield


@contextmanager
def snapshots_lack_a_voter() -> Iterator[None]:
    """A snapshot has one voter less than the log: a node that starts from it counts other majorities."""
    begin = MetadataLogMaintenance.begin_snapshot

    def begin_without_one(
        self: MetadataLogMaintenance, *args: Any, voters: VotersRecord | None, **named: Any
    ) -> bool:
        if voters is not None:
            voters = replace(voters, voters=voters.voters[:-1])
        return begin(self, *args, voters=voters, **named)

    with patch.object(MetadataLogMaintenance, "begin_snapshot", begin_without_one):
        yield

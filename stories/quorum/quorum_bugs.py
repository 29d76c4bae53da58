"""Bugs that are planted into the Raft machine, each by one rule that is replaced."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from ottla.controller.raft import high_watermark, reconfiguration, voting
from ottla.controller.raft.core import Core
from ottla.controller.raft.roles import Follower, Leader, Role


@contextmanager
def vote_for_a_shorter_log() -> Iterator[None]:
    """Every candidate gets the vote, whatever log it has."""
    grants = voting.can_grant_vote

    def generous(role: Role, candidate: Any, *, is_up_to_date: bool, is_pre_vote: bool) -> bool:
        return grants(role, candidate, is_up_to_date=True, is_pre_vote=is_pre_vote)

    with patch.object(voting, "can_grant_vote", generous):
        yield


@contextmanager
def commits_records_of_older_epochs() -> Iterator[None]:
    """A majority is enough, also for records that a former leader wrote (figure 8 of the Raft paper)."""
    advance = high_watermark.advance

    def early(core: Core) -> None:
        role = core.role
        assert isinstance(role, Leader), role
        start, role.epoch_start_offset = role.epoch_start_offset, -1
        try:
            advance(core)
        finally:
            role.epoch_start_offset = start

    # Split votes, as Kafka's voters have them, bring more leaders that begin on top of one another.
    with (
        patch.object(high_watermark, "advance", early),
        patch.object(voting, "takes_precedence", lambda *_, **__: False),
    ):
        yield


@contextmanager
def pre_vote_although_a_leader_lives() -> Iterator[None]:
    """A follower that fetches from its leader grants pre-votes."""
    grants = voting.can_grant_vote

    def disloyal(role: Role, candidate: Any, *, is_up_to_date: bool, is_pre_vote: bool) -> bool:
        if is_pre_vote and isinstance(role, Follower):
            return is_up_to_date
        return grants(role, candidate, is_up_to_date=is_up_to_date, is_pre_vote=is_pre_vote)

    with patch.object(voting, "can_grant_vote", disloyal):
        yield


@contextmanager
def changes_voters_before_the_last_change_is_committed() -> Iterator[None]:
    """One change after the other: majorities of the first and the last voter set need not have a voter in common."""
    with patch.object(reconfiguration, "_committed_voters", lambda core, role, what: core.voters):
        yield

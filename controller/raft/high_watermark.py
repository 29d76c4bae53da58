"""The leader's log: its appends and flushes, and when the high watermark advances.

    append --> delayed Fetches return the records     (they are not durable here yet)
    flush  --> the leader's own progress as a voter --.
    Fetch  --> a follower's progress ------------------+--> the majority's offset --> high watermark
                                                            --> commits, delayed Fetches, the voter change in progress

Source: KafkaRaftClient.onUpdateLeaderHighWatermark, LeaderState.maybeUpdateHighWatermark of Kafka 4.3.1.
"""

from collections.abc import Sequence

from ottla.controller.raft import delayed_fetches
from ottla.controller.raft.core import Core, logger
from ottla.controller.raft.messages import voter_change_response
from ottla.controller.raft.roles import Leader
from ottla.controller.raft.types import ReplicaKey
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.records.quorum import QuorumMessage


def append_control(core: Core, messages: Sequence[QuorumMessage]) -> None:
    """Append control records as the leader. A new voter set is in effect at once (KIP-853)."""
    role = core.role
    assert isinstance(role, Leader), role
    end = core.log.end
    assert end.epoch <= role.epoch, (end, role.epoch)
    base_offset = core.log.append_control(messages, epoch=role.epoch, now_ms=core.now_ms)
    assert base_offset == end.offset, (base_offset, end)
    assert core.log.end.epoch == role.epoch, (core.log.end, role.epoch)
    former_voters = core.voters
    core.history.read(base_offset)
    if core.voters != former_voters:
        role.followers.set_voters(core.voters)
        role.check_quorum_deadline_ms = core.now_ms + core.check_quorum_timeout_ms
    appended(core)
    advance(core)


def appended(core: Core) -> None:
    """The leader's log has grown: complete delayed Fetches at once, before the records are durable on the leader."""
    delayed_fetches.complete_before(core, core.log.end.offset)
    core.flush()


def flushed(core: Core, end_offset: int) -> None:
    """Record the leader's own progress as a voter: its log is durable up to `end_offset`."""
    role = core.role
    assert isinstance(role, Leader), role
    role.followers.update_local_state(end_offset)
    advance(core)


def record_contact(core: Core, replica: ReplicaKey) -> None:
    """Record contact with a replica by another request than Fetch, for check quorum."""
    role = core.role
    assert isinstance(role, Leader), role
    if role.followers.record_contact(replica):
        role.check_quorum_deadline_ms = core.now_ms + core.check_quorum_timeout_ms


def advance(core: Core) -> None:
    """Advance the high watermark to what a majority has stored, and complete the requests that wait for it.

    Invariant: the high watermark never moves back, though the majority's offset may: a new voter set can count a
    replica that has less. It stays unknown until the epoch's own first record is committed.
    """
    role = core.role
    assert isinstance(role, Leader), role
    offset = role.followers.high_watermark_candidate()
    if offset is None or offset <= role.epoch_start_offset or offset <= (role.high_watermark or 0):
        return
    assert role.epoch_start_offset < offset <= core.log.end.offset, (
        role.epoch_start_offset,
        offset,
        core.log.end,
    )
    role.high_watermark = offset
    if core.high_watermark is None or offset > core.high_watermark:
        core.update_high_watermark(offset)
    delayed_fetches.complete_all(core)
    change = role.voter_change
    if change is not None and change.offset is not None and offset > change.offset:
        complete_voter_change(core, ErrorCode.none)
    voters_offset = core.history.voters_offset
    if not core.is_voter and voters_offset is not None and offset > voters_offset:
        logger.info(
            "node %d is not a voter any more and resigns from epoch %d", core.local_key.id, core.epoch
        )
        role.must_resign = True


def refuse_delayed_requests(core: Core, former: Leader) -> None:
    """This node has stopped leading: refuse delayed Fetches and the voter change with NOT_LEADER_OR_FOLLOWER."""
    delayed_fetches.refuse_all(core)
    _complete_voter_change(core, former, ErrorCode.not_leader_or_follower)


def complete_voter_change(core: Core, error: ErrorCode, message: str | None = None) -> None:
    """End the voter change in progress, completed or failed, and respond to its request."""
    role = core.role
    assert isinstance(role, Leader), role
    _complete_voter_change(core, role, error, message)


def _complete_voter_change(core: Core, role: Leader, error: ErrorCode, message: str | None = None) -> None:
    change, role.voter_change = role.voter_change, None
    if change is not None and change.token is not None:
        core.reply(change.token, voter_change_response(error, message, is_addition=change.is_addition))

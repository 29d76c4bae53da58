"""Discovery of the epoch and its leader: the common part of every message, handled before its own content.

A replica always moves to a later epoch. Invariant: an epoch has at most one leader; once known, it never changes.
Source: KafkaRaftClient.maybeHandleCommonResponse and maybeTransition of Kafka 4.3.1.
"""

from enum import Enum, auto

from ottla.controller.raft import transitions
from ottla.controller.raft.core import Core, logger
from ottla.controller.raft.roles import Candidate, Follower, Prospective, Unattached
from ottla.controller.raft.types import LAST_EPOCH, Endpoints
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.schema import Response


class Outcome(Enum):
    """The result of handling a response."""

    #: The response is handled; the next request may be sent to its sender at once.
    DONE = auto()
    #: The response was of no use; the next request to its sender waits for `retry_backoff_ms`.
    BACK_OFF = auto()
    #: The response is of this epoch and has none of the common errors: its own handler continues.
    CONTINUE = auto()


def is_inconsistent_leader(core: Core, *, leader_id: int | None, epoch: int) -> bool:
    """Whether a message names a leader of our epoch that is not the one we know.

    Correct nodes never do: two nodes share one id, or a node has lost its disk and kept its identity.
    """
    if leader_id is not None and leader_id == core.local_key.id:
        return epoch == core.epoch and core.leader_id != core.local_key.id
    return epoch == core.epoch and None not in (leader_id, core.leader_id) and leader_id != core.leader_id


def maybe_transition(core: Core, *, leader_id: int | None, epoch: int, endpoints: Endpoints) -> bool:
    """Apply what a message says about `epoch`, which is not older than ours; False if that is impossible.

    LAST_EPOCH is impossible, too: no node could be elected after it.
    """
    if epoch >= LAST_EPOCH or is_inconsistent_leader(core, leader_id=leader_id, epoch=epoch):
        if core.logged_inconsistent_leader != (leader_id, epoch):  # logged once, not for every message
            core.logged_inconsistent_leader = (leader_id, epoch)
            logger.error(
                "ignored a message with leader %s of epoch %d, inconsistent with the known leader %s of epoch %d",
                leader_id,
                epoch,
                core.leader_id,
                core.epoch,
            )
        return False
    is_reachable = leader_id is not None and leader_id != core.local_key.id and bool(endpoints)
    if epoch > core.epoch:
        if leader_id is not None and is_reachable:
            transitions.become_follower(core, epoch=epoch, leader_id=leader_id, endpoints=endpoints)
        else:
            if leader_id == core.local_key.id:
                # This node's disk has lost that it led the epoch, or another node has its id. Since the epoch has
                # a leader, this node does not vote in it.
                logger.error(
                    "a node with this node's id, %d, leads epoch %d of the metadata quorum: another node has the same "
                    "node.id, or this one has lost the quorum-state of that epoch",
                    core.local_key.id,
                    epoch,
                )
            transitions.become_unattached(core, epoch, leader_id=leader_id)
    elif leader_id is not None and is_reachable:
        is_known = isinstance(core.role, Follower) or core.leader_id is not None
        if not is_known or len(endpoints) > len(core.leader_endpoints):
            transitions.become_follower(core, epoch=epoch, leader_id=leader_id, endpoints=endpoints)
    return True


def handle_common_response(
    core: Core, error: ErrorCode, *, leader_id: int | None, epoch: int, endpoints: Endpoints
) -> Outcome:
    """Handle the common part of a response: the sender's epoch, its leader, and the common errors."""
    if epoch < core.epoch or error is ErrorCode.unknown_leader_epoch:
        return Outcome.BACK_OFF  # the sender does not know our epoch yet
    if epoch > core.epoch or error in (ErrorCode.fenced_leader_epoch, ErrorCode.not_leader_or_follower):
        former = core.role
        maybe_transition(core, leader_id=leader_id, epoch=epoch, endpoints=endpoints)
        # Kafka retries at once even if nothing was learnt: while there is no leader, it retries without a pause.
        return Outcome.BACK_OFF if core.role is former else Outcome.DONE
    if is_inconsistent_leader(core, leader_id=leader_id, epoch=epoch):
        maybe_transition(core, leader_id=leader_id, epoch=epoch, endpoints=endpoints)
        return Outcome.BACK_OFF
    is_leaderless = isinstance(core.role, Unattached | Prospective | Candidate) and not core.leader_endpoints
    if is_leaderless and leader_id is not None and leader_id != core.local_key.id and endpoints:
        # Records in the same response are dropped and fetched again: no record may be in the log before
        # the epoch's leader is durable. (Kafka appends them at once, but writes quorum-state first.)
        transitions.become_follower(core, epoch=epoch, leader_id=leader_id, endpoints=endpoints)
        return Outcome.DONE
    if error in (ErrorCode.invalid_voter_key, ErrorCode.broker_not_available, ErrorCode.invalid_request):
        logger.info("a request of this node to another one of the quorum was refused: %s", error.name)
        return Outcome.BACK_OFF
    return Outcome.CONTINUE


def handle_unexpected_error(core: Core, sender_id: int, response: Response, error: ErrorCode) -> Outcome:
    """Log an error response that an operator must resolve, or a malformed one, once per node and error; back off."""
    logged = (type(response), error)
    if core.logged_errors.get(sender_id) != logged:
        core.logged_errors[sender_id] = logged
        logger.warning("node %d returned an error in %s: %s", sender_id, type(response).__name__, error.name)
    return Outcome.BACK_OFF


def error_of(code: int) -> ErrorCode:
    """An error code from the wire; an unknown one counts as unknown_server_error."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.unknown_server_error

"""What any message teaches about the epoch and its leader, before it is looked at for itself.

A later epoch is always followed; within an epoch, a leader is learnt once and is never another one.
Source: KafkaRaftClient.maybeHandleCommonResponse and maybeTransition of Kafka 4.3.1.
"""

from enum import Enum, auto

from controller.raft import transitions
from controller.raft.core import Core, logger
from controller.raft.roles import Candidate, Follower, Prospective, Unattached
from controller.raft.types import LAST_EPOCH, Endpoints
from protocol.error_code import ErrorCode
from protocol.schema import Response


class Outcome(Enum):
    """What becomes of a response, or of whom it came from."""

    #: It has been dealt with; its sender may be asked again at once.
    DONE = auto()
    #: It was no use; its sender is left alone for a moment.
    BACK_OFF = auto()
    #: It is of this epoch and no error that every response can have: its own handler goes on.
    GO_ON = auto()


def contradicts(core: Core, leader_id: int | None, epoch: int) -> bool:
    """Whether somebody claims another leader for our epoch than the one we know.

    That cannot be among correct nodes: two nodes have one id, or one has lost its disk and kept its identity.
    """
    if leader_id is not None and leader_id == core.me.id:
        return epoch == core.epoch and core.leader_id != core.me.id
    return epoch == core.epoch and None not in (leader_id, core.leader_id) and leader_id != core.leader_id


def learn(core: Core, leader_id: int | None, epoch: int, endpoints: Endpoints) -> bool:
    """Take in what a message says about `epoch`, which is not older than ours; False if that cannot be.

    Nor can the last epoch that there is room for: nobody could be elected after it, ever.
    """
    if epoch >= LAST_EPOCH or contradicts(core, leader_id, epoch):
        if core.contradiction != (leader_id, epoch):  # said once, not with every message
            core.contradiction = (leader_id, epoch)
            logger.error(
                "told of leader %s in epoch %d, which cannot be (%s leads epoch %d): ignored",
                leader_id,
                epoch,
                core.leader_id,
                core.epoch,
            )
        return False
    is_reachable = leader_id is not None and leader_id != core.me.id and bool(endpoints)
    if epoch > core.epoch:
        if leader_id is not None and is_reachable:
            transitions.become_follower(core, epoch, leader_id, endpoints)
        else:
            if leader_id == core.me.id:
                # Its disk has lost that it led the epoch, or another node has its id. As the epoch has a leader,
                # it votes for nobody in it.
                logger.error(
                    "a node with this node's id, %d, leads epoch %d of the metadata quorum: another node has the same "
                    "node.id, or this one has lost the quorum-state of that epoch",
                    core.me.id,
                    epoch,
                )
            transitions.become_unattached(core, epoch, leader_id=leader_id)
    elif leader_id is not None and is_reachable:
        is_known = isinstance(core.role, Follower) or core.leader_id is not None
        if not is_known or len(endpoints) > len(core.leader_endpoints):
            transitions.become_follower(core, epoch, leader_id, endpoints)
    return True


def take_response(
    core: Core, error: ErrorCode, leader_id: int | None, epoch: int, endpoints: Endpoints
) -> Outcome:
    """What every response about the quorum has in common: the sender's epoch, its leader, and some errors."""
    if epoch < core.epoch or error is ErrorCode.unknown_leader_epoch:
        return Outcome.BACK_OFF  # the sender has yet to learn of our epoch
    if epoch > core.epoch or error in (ErrorCode.fenced_leader_epoch, ErrorCode.not_leader_or_follower):
        former = core.role
        learn(core, leader_id, epoch, endpoints)
        # Kafka asks again at once even if nothing was learnt; while there is no leader, that is without a pause.
        return Outcome.BACK_OFF if core.role is former else Outcome.DONE
    if contradicts(core, leader_id, epoch):
        learn(core, leader_id, epoch, endpoints)
        return Outcome.BACK_OFF
    is_leaderless = isinstance(core.role, Unattached | Prospective | Candidate) and not core.leader_endpoints
    if is_leaderless and leader_id is not None and leader_id != core.me.id and endpoints:
        # If it has brought records, too, they are asked for again: none may be in the log before it is durable who
        # leads the epoch. (Kafka takes them at once, but writes quorum-state before.)
        transitions.become_follower(core, epoch, leader_id, endpoints)
        return Outcome.DONE
    if error in (ErrorCode.invalid_voter_key, ErrorCode.broker_not_available, ErrorCode.invalid_request):
        logger.info("a request was refused with %s", error.name)
        return Outcome.BACK_OFF
    return Outcome.GO_ON


def refused(core: Core, sender_id: int, response: Response, error: ErrorCode) -> Outcome:
    """A node has answered by an error that needs a person, or by nothing that can be understood: leave it for now."""
    complaint = (type(response), error)
    if core.complaints.get(sender_id) != complaint:
        core.complaints[sender_id] = complaint
        logger.warning("node %d has answered with %s: %s", sender_id, type(response).__name__, error.name)
    return Outcome.BACK_OFF


def error_of(code: int) -> ErrorCode:
    """An error code from the wire; one that this software does not know is as good as unknown_server_error."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.unknown_server_error

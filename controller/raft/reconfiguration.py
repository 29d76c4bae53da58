"""Dynamic voter changes, on the leader: AddRaftVoter, RemoveRaftVoter, UpdateRaftVoter, kraft.version (KIP-853).

Invariant: one change of one voter at a time. The next one is refused until the previous one is committed, and the first
one until the leader has committed a record of its epoch: a former leader's change might still be truncated. A change is
in effect as soon as it is in the log: the new set commits it.

    AddRaftVoter     refused | ApiVersions to the new voter -> KRaftVoters appended -> committed: answered
    RemoveRaftVoter  refused | KRaftVoters appended -> committed: answered; a leader that has removed itself resigns
    UpdateRaftVoter  refused | KRaftVoters appended, answered at once
                             | kraft.version 0: kept in the leader's memory, for the upgrade to 1

Source: AddVoterHandler, RemoveVoterHandler, UpdateVoterHandler, KRaftVersionUpgrade of Kafka 4.3.1.
"""

from ottla.controller.raft import fetch_responses, high_watermark
from ottla.controller.raft.core import Core, logger
from ottla.controller.raft.discovery import Outcome, error_of
from ottla.controller.raft.messages import endpoints_of, is_other_cluster, voter_change_response
from ottla.controller.raft.roles import Leader, VoterChange
from ottla.controller.raft.types import RECONFIGURABLE, Node, ReplicaKey, VersionRange
from ottla.controller.raft.voters import Voter, VoterSet
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.errors import InvalidUpdateVersion, NotController, bounded
from ottla.protocol.messages.add_raft_voter import AddRaftVoterRequest
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.k_raft_version_record import KRaftVersionRecord
from ottla.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from ottla.protocol.messages.update_raft_voter import (
    CurrentLeader,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
)
from ottla.protocol.records.quorum import QuorumMessage
from ottla.protocol.types import ZERO_UUID

KRAFT_VERSION = "kraft.version"


class _Refused(Exception):
    """A change is refused: the error and the message of the response."""

    def __init__(self, error: ErrorCode, message: str | None = None) -> None:
        super().__init__(message)
        self.error = error
        self.message = None if message is None else bounded(message)


# -- AddRaftVoter ----------------------------------------------------------------------------------------


def handle_add_voter_request(core: Core, request: AddRaftVoterRequest, token: object) -> None:
    """Handle AddRaftVoter: begin the addition, or refuse it."""
    try:
        _begin_addition(core, request, token)
    except _Refused as refused:
        core.reply(token, voter_change_response(refused.error, refused.message, is_addition=True))


def _begin_addition(core: Core, request: AddRaftVoterRequest, token: object) -> None:
    role = _leader(core, request.cluster_id)
    voter = ReplicaKey(request.voter_id, request.voter_directory_id)
    if voter.id < 0 or voter.directory_id == ZERO_UUID:
        raise _Refused(ErrorCode.invalid_request, "Add voter request didn't include a valid voter")
    endpoints = endpoints_of(request.listeners)
    listener_name = core.settings.listener_name
    address = endpoints.get(listener_name)
    if address is None:
        raise _Refused(
            ErrorCode.invalid_request,
            f"Add voter request didn't include the endpoint ({dict(endpoints)}) for the default listener "
            f"{listener_name}",
        )
    voters = _committed_voters(core, role, "adding")
    if voter.id in voters.voters:
        raise _Refused(
            ErrorCode.duplicate_voter,
            f"The voter id for {voter.id} is already part of the set of voters {voters.ids}.",
        )
    if not core.send(Node(voter.id, address), ApiVersionsRequest):
        raise _Refused(ErrorCode.request_timed_out, f"New voter {voter.id} is not ready to receive requests")
    role.voter_change = VoterChange(
        token=token,
        is_addition=True,
        voter=voter,
        endpoints=endpoints,
        ack_when_committed=request.ack_when_committed,
        deadline_ms=core.now_ms + core.settings.request_timeout_ms,
    )


def handle_api_versions_response(core: Core, sender_id: int, response: ApiVersionsResponse | None) -> Outcome:
    """Handle the new voter's ApiVersions response, which has its kraft.version levels: append the new voter set.

    An error or no response (None) ends the change with REQUEST_TIMED_OUT.
    """
    role = core.role
    change = role.voter_change if isinstance(role, Leader) else None
    if change is None or not change.is_addition or change.offset is not None or change.voter.id != sender_id:
        return Outcome.DONE
    error = ErrorCode.broker_not_available if response is None else error_of(response.error_code)
    if response is None or error is not ErrorCode.none:
        reason = f"Aborted add voter operation for since API_VERSIONS returned an error {error.name}"
        high_watermark.complete_voter_change(core, ErrorCode.request_timed_out, reason)
        return Outcome.BACK_OFF
    supported = next(
        (
            VersionRange(each.min_version, each.max_version)
            for each in response.supported_features
            if each.name == KRAFT_VERSION
        ),
        VersionRange(0, 0),
    )
    try:
        _append_addition(core, change, supported)
    except _Refused as refused:
        logger.info("voter %s is not added: %s", change.voter, refused.message)
        high_watermark.complete_voter_change(core, refused.error, refused.message)
    return Outcome.DONE


def _append_addition(core: Core, change: VoterChange, supported: VersionRange) -> None:
    role = core.role
    assert isinstance(role, Leader), role
    assert role.voter_change is change, (role.voter_change, change)
    if core.history.kraft_version not in supported:
        raise _Refused(
            ErrorCode.invalid_request,
            f"Aborted add voter operation for {change.voter.id} since the {KRAFT_VERSION} range {supported} doesn't "
            f"support the finalized version {core.history.kraft_version}",
        )
    if not role.followers.is_caught_up(change.voter, now_ms=core.now_ms):
        raise _Refused(
            ErrorCode.request_timed_out,
            f"Aborted add voter operation for {change.voter.id} since it is lagging behind",
        )
    voters = core.voters.with_voter(Voter(change.voter, change.endpoints, supported))
    assert voters is not None, (change, core.voters)
    if not change.ack_when_committed:  # the change is in progress all the same, and excludes others
        core.reply(change.token, voter_change_response(ErrorCode.none, is_addition=True))
        change.token = None
    _append(core, change, voters)


# -- RemoveRaftVoter -------------------------------------------------------------------------------------


def handle_remove_voter_request(core: Core, request: RemoveRaftVoterRequest, token: object) -> None:
    """Handle RemoveRaftVoter: append the smaller voter set, or refuse it."""
    try:
        role = _leader(core, request.cluster_id)
        voter = ReplicaKey(request.voter_id, request.voter_directory_id)
        if voter.id < 0 or voter.directory_id == ZERO_UUID:
            raise _Refused(ErrorCode.invalid_request, "Remove voter request didn't include a valid voter")
        former = _committed_voters(core, role, "removing")
        voters = former.without_voter(voter)
        if voters is None:
            raise _Refused(
                ErrorCode.voter_not_found,
                f"Cannot remove voter {voter} from the set of voters {former.keys}",
            )
    except _Refused as refused:
        core.reply(token, voter_change_response(refused.error, refused.message, is_addition=False))
        return
    role.voter_change = change = VoterChange(
        token=token,
        is_addition=False,
        voter=voter,
        endpoints={},
        deadline_ms=core.now_ms + core.settings.request_timeout_ms,
    )
    _append(core, change, voters)


# -- UpdateRaftVoter -------------------------------------------------------------------------------------


def handle_update_voter_request(
    core: Core, request: UpdateRaftVoterRequest, *, listener_name: str
) -> UpdateRaftVoterResponse:
    """Handle UpdateRaftVoter: a voter's current endpoints and kraft.version levels."""
    try:
        error = ErrorCode.none
        _update(core, request)
    except _Refused as refused:
        error = refused.error
    response = UpdateRaftVoterResponse(error_code=error)
    response.current_leader = CurrentLeader(
        leader_id=-1 if core.leader_id is None else core.leader_id, leader_epoch=core.epoch
    )
    if (address := core.leader_endpoints.get(listener_name)) is not None:
        response.current_leader.host, response.current_leader.port = address
    return response


def _update(core: Core, request: UpdateRaftVoterRequest) -> None:
    role = _leader(core, request.cluster_id, epoch=request.current_leader_epoch)
    feature = request.k_raft_version_feature
    supported = VersionRange(feature.min_supported_version, feature.max_supported_version)
    voter = Voter(
        ReplicaKey(request.voter_id, request.voter_directory_id), endpoints_of(request.listeners), supported
    )
    is_sound = (
        voter.key.id >= 0
        and voter.key.directory_id != ZERO_UUID
        and core.settings.listener_name in voter.endpoints
        and 0 <= supported.min_version <= supported.max_version
    )
    if not is_sound:
        raise _Refused(ErrorCode.invalid_request)
    if role.voter_change is not None or role.high_watermark is None:
        raise _Refused(ErrorCode.request_timed_out)
    is_in_log = core.history.kraft_version >= RECONFIGURABLE
    if is_in_log and not _is_voter_set_committed(core, role):
        raise _Refused(ErrorCode.request_timed_out)
    known = core.voters if is_in_log else role.reported_voters
    assert known is not None, role
    if core.history.kraft_version not in supported:
        raise _Refused(ErrorCode.invalid_request)
    voters = known.with_updated(voter) if is_in_log else known.with_directory(voter)
    if voters is None:
        raise _Refused(ErrorCode.voter_not_found)
    if is_in_log:
        assert core.voters.has_overlapping_majority(voters), (core.voters, voters)
        high_watermark.append_control(core, [voters.to_record()])
    else:
        role.reported_voters = voters
    if voter.key.id != core.local_key.id:
        high_watermark.record_contact(core, voter.key)


# -- kraft.version ---------------------------------------------------------------------------------------


def upgrade_kraft_version(core: Core, *, epoch: int, version: int, validate_only: bool) -> None:
    """Raise kraft.version from 0 to 1: append the voter set, as the voters have reported it by UpdateRaftVoter.

    Raises NotController unless this node leads `epoch`; InvalidUpdateVersion for a downgrade, an unknown level, or
    if a voter does not support it or has not reported its levels yet. Does nothing if the level is in effect already.
    """
    role = core.role
    if not isinstance(role, Leader) or role.epoch != epoch:
        raise NotController(f"This node does not lead epoch {epoch}.")
    known = core.history.kraft_version
    if version == known:
        return
    what = f"Invalid upgrade of {KRAFT_VERSION} from version {known} to {version}"
    if version < known:
        raise InvalidUpdateVersion(f"{what} because the new version is a downgrade")
    if version != RECONFIGURABLE or role.reported_voters is None:
        raise InvalidUpdateVersion(what)
    voters = role.reported_voters
    if not core.settings.endpoints:
        raise InvalidUpdateVersion(
            f"{what} because this controller has no listener that other voters could connect to"
        )
    if not voters.supports(version):
        raise InvalidUpdateVersion(f"{what} because not all of the voters support it")
    # A voter that has reported its kraft.version levels has reported its directory id, too.
    assert all(key.directory_id != ZERO_UUID for key in voters.keys), voters
    if validate_only:
        return
    assert voters.ids == core.voters.ids, (voters, core.voters)
    role.reported_voters = None
    messages: list[QuorumMessage] = [KRaftVersionRecord(k_raft_version=version), voters.to_record()]
    high_watermark.append_control(core, messages)


# -- common to all changes -------------------------------------------------------------------------------


def expire_voter_change(core: Core) -> None:
    """End a change that has timed out. If it is in the log already, it may still be committed."""
    role = core.role
    change = role.voter_change if isinstance(role, Leader) else None
    if change is not None and change.deadline_ms <= core.now_ms:
        high_watermark.complete_voter_change(core, ErrorCode.request_timed_out)


def _leader(core: Core, cluster_id: str | None, *, epoch: int | None = None) -> Leader:
    if is_other_cluster(core, cluster_id):
        raise _Refused(
            ErrorCode.inconsistent_cluster_id,
            f'The given id "{cluster_id}" doesn\'t match the cluster id "{core.settings.cluster_id}"',
        )
    error = fetch_responses.validate_leader_only_request(core, core.epoch if epoch is None else epoch)
    if error is not None:
        raise _Refused(error)
    assert isinstance(core.role, Leader), core.role
    return core.role


def _is_voter_set_committed(core: Core, role: Leader) -> bool:
    offset = core.history.voters_offset
    return offset is not None and role.high_watermark is not None and offset < role.high_watermark


def _committed_voters(core: Core, role: Leader, what: str) -> VoterSet:
    if role.voter_change is not None:
        raise _Refused(
            ErrorCode.request_timed_out,
            "Request timed out waiting for leader to handle previous voter change request",
        )
    if role.high_watermark is None:
        raise _Refused(
            ErrorCode.request_timed_out,
            "Request timed out waiting for leader to establish HWM and fence previous voter changes",
        )
    version = core.history.kraft_version
    if version < RECONFIGURABLE:
        raise _Refused(
            ErrorCode.unsupported_version,
            f"Cluster doesn't support {what} voter because the {KRAFT_VERSION} feature is {version}",
        )
    if not _is_voter_set_committed(core, role):
        raise _Refused(
            ErrorCode.request_timed_out,
            "Request timed out waiting for voters to commit the latest voter change at "
            f"{core.history.voters_offset} with HWM {role.high_watermark}",
        )
    return core.voters


def _append(core: Core, change: VoterChange, voters: VoterSet) -> None:
    logger.info("voters: %s -> %s", core.voters.keys, voters.keys)
    assert core.voters.has_overlapping_majority(voters), (core.voters, voters)
    assert change.offset is None, change
    change.offset = core.log.end.offset
    high_watermark.append_control(core, [voters.to_record()])

"""Broker lifecycle: registration, heartbeats, fencing, controlled shutdown (KIP-631, KIP-966).

    (unknown) --BrokerRegistration--> FENCED
    FENCED   --heartbeat, has read its own registration, wants to be unfenced--> UNFENCED
    FENCED   --heartbeat, wants to shut down--> may stop at once
    UNFENCED --heartbeat wants to be fenced, or session expires--> FENCED
    UNFENCED --heartbeat, wants to shut down, leads a partition--> CONTROLLED_SHUTDOWN
    UNFENCED --heartbeat, wants to shut down, leads none--> FENCED, may stop at once
    CONTROLLED_SHUTDOWN --leads none, and all other active brokers have read that--> FENCED, may stop

Source: ClusterControlManager, BrokerHeartbeatManager, ReplicationControlManager of Kafka 4.3.1.
"""

import logging
from collections.abc import Generator, Sequence
from enum import Enum, auto
from typing import Final, assert_never
from uuid import UUID

from ottla.controller.partitions import leader_and_isr_updates
from ottla.controller.partitions.draft import Draft
from ottla.controller.partitions.partition_change import directory_of
from ottla.controller.result import Result
from ottla.controller.state import ClusterState
from ottla.controller.steps import Steps, in_steps
from ottla.metadata.features import CORDONED_DIRECTORIES_4_3_IV0, DIRECTORIES_3_7_IV2, KRAFT_VERSION
from ottla.metadata.image import (
    METADATA_VERSION,
    BrokerImage,
    PartitionImage,
    TopicImage,
)
from ottla.metadata.records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from ottla.protocol.errors import (
    BrokerIdNotRegistered,
    DuplicateBrokerRegistration,
    ErrorCode,
    InconsistentClusterId,
    InvalidRegistration,
    UnsupportedVersion,
)
from ottla.protocol.kafka_uuid import to_text
from ottla.protocol.messages import broker_registration as registration
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

logger = logging.getLogger(__name__)

_FENCE, _UNFENCE = 1, -1
#: Directory ids below this one are reserved: they do not name a directory (KIP-858).
_LAST_RESERVED_DIRECTORY = 100
#: How many partitions and directories one log line names.
_NAMED_IN_LOG: Final = 10


@in_steps
def register(
    state: ClusterState, request: registration.BrokerRegistrationRequest, *, now_ms: int
) -> Steps[registration.BrokerRegistrationResponse]:
    """Register a broker. Its broker epoch is the offset of this decision's first record.

    The same incarnation may register again (its listeners or directories have changed) and keeps its epoch.
    A new incarnation replaces the old one, which leaves all ISRs; after an unclean shutdown it leaves the ELRs, too.
    It always leaves both where the directory of its replica is not among those that it registers.
    """
    known = state.image.brokers.get(request.broker_id)
    _check_registration(state, request, known, now_ms=now_ms)
    record = RegisterBrokerRecord(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        rack=request.rack,
        endpoints=[
            BrokerEndpoint(
                name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol
            )
            for each in request.listeners
        ],
        features=[
            BrokerFeature(
                name=each.name,
                min_supported_version=each.min_supported_version,
                max_supported_version=each.max_supported_version,
            )
            for each in request.features
        ],
        log_dirs=list(request.log_dirs) if state.metadata_version >= DIRECTORIES_3_7_IV2 else [],
    )
    draft = Draft(state)
    is_same = known is not None and known.incarnation_id == request.incarnation_id
    if known is not None:
        draft.set_broker(
            known._replace(is_fenced=known.is_fenced or not is_same, log_dirs=tuple(record.log_dirs))
        )
    stranded = []
    if record.log_dirs:
        stranded = yield from leader_and_isr_updates.remove_replicas_without_directory(
            draft, request.broker_id, record.log_dirs
        )
    if known is not None and is_same:
        record.fenced = known.is_fenced
        record.in_controlled_shutdown = known.in_controlled_shutdown
        record.broker_epoch = known.epoch
    else:
        was_clean = known is not None and known.epoch == request.previous_broker_epoch
        if state.is_elr_enabled and not was_clean:
            yield from leader_and_isr_updates.remove_from_isrs_and_elrs(draft, request.broker_id)
        else:
            yield from leader_and_isr_updates.remove_from_isrs(draft, request.broker_id)
        record.broker_epoch = state.next_offset
    draft.records.append(record)

    def start_session(end_offset: int) -> None:
        state.sessions.register(request.broker_id, record.broker_epoch)
        if stranded:
            logger.warning("%s", _stranded_text(request.broker_id, stranded))

    return Result(
        response=registration.BrokerRegistrationResponse(broker_epoch=record.broker_epoch),
        records=draft.records,
        is_atomic=False,  # the registration is last: if it is lost, the broker registers again
        on_appended=start_session,
    )


def _stranded_text(broker_id: int, stranded: Sequence[tuple[TopicImage, int, PartitionImage]]) -> str:
    """The warning that names the partitions that stay offline, their directories and the remedies."""
    directories = sorted({to_text(directory_of(each, broker_id)) for _, _, each in stranded})
    names = [f"{topic.name}-{index}" for topic, index, _ in stranded]
    return (
        f"broker {broker_id} was registered without log directory {_some(directories)}, and no other replica "
        f"in sync has the records of {_some(names)}: these partitions stay offline until broker {broker_id} is "
        "started with that directory in log.dirs, or an unclean election that names them (kafka-leader-election "
        "--election-type unclean --topic TOPIC --partition NUMBER) gives up the records"
    )


def _some(names: Sequence[str]) -> str:
    """The names as text: all of them, or the first ones and how many more there are.

    >>> _some(["a", "b"])
    'a, b'
    """
    more = len(names) - _NAMED_IN_LOG
    return ", ".join(names[:_NAMED_IN_LOG]) + (f" and {more} more" if more > 0 else "")


def _check_registration(
    state: ClusterState,
    request: registration.BrokerRegistrationRequest,
    known: BrokerImage | None,
    *,
    now_ms: int,
) -> None:
    if request.cluster_id != state.settings.cluster_id:
        raise InconsistentClusterId(
            f"Expected cluster ID {state.settings.cluster_id}, but got cluster ID {request.cluster_id}"
        )
    if (
        known is not None
        and known.incarnation_id != request.incarnation_id
        and state.sessions.is_valid(known.broker_id, known.epoch, now_ms=now_ms)
    ):
        raise DuplicateBrokerRegistration(
            f"Broker id {request.broker_id} is in use by another process, whose session has not expired. If the "
            "broker was restarted, it can register when the session of its previous process expires."
        )
    if request.is_migrating_zk_broker:
        raise BrokerIdNotRegistered("Brokers that migrate from ZooKeeper are not supported.")
    if state.metadata_version >= DIRECTORIES_3_7_IV2:
        _check_directories(state, request.broker_id, request.log_dirs)
    _check_features(state, request)


def _check_directories(state: ClusterState, broker_id: int, directories: list[UUID]) -> None:
    if not directories:
        raise InvalidRegistration("No directories specified in request")
    if any(directory.int < _LAST_RESERVED_DIRECTORY for directory in directories):
        raise InvalidRegistration("Reserved directory ID in request")
    if len(set(directories)) != len(directories):
        raise InvalidRegistration("Duplicate directory ID in request")
    for other in state.image.brokers.values():
        if other.broker_id != broker_id and (taken := set(other.log_dirs) & set(directories)):
            raise InvalidRegistration(
                f"Broker {other.broker_id} is already registered with directory {taken.pop()}"
            )


def _check_features(state: ClusterState, request: registration.BrokerRegistrationRequest) -> None:
    """The broker must support every finalized level; a feature that it does not name it supports at 0 only."""
    offered = {
        each.name: range(each.min_supported_version, each.max_supported_version + 1)
        for each in request.features
    }
    if METADATA_VERSION not in offered:
        raise InvalidRegistration(f"Request features do not contain '{METADATA_VERSION}'")
    # kraft.version is in control records, not in metadata records.
    finalized = {**state.image.features, KRAFT_VERSION: state.kraft.version}
    for name in {*offered, *finalized}:
        level, levels = finalized.get(name, 0), offered.get(name, range(1))
        if level not in levels:
            raise UnsupportedVersion(
                f"Unable to register because the broker does not support finalized version {level} of {name}. "
                f"The broker wants a version between {levels.start} and {levels.stop - 1}, inclusive."
            )


class BrokerControlState(Enum):
    """A broker's state; the diagram in the module's docstring has the transitions."""

    FENCED = auto()
    UNFENCED = auto()
    CONTROLLED_SHUTDOWN = auto()
    SHUTDOWN_NOW = auto()


@in_steps
def heartbeat(
    state: ClusterState, request: BrokerHeartbeatRequest, *, now_ms: int
) -> Steps[BrokerHeartbeatResponse]:
    """A broker reports its metadata offset, and the state that it wants. Raises StaleBrokerEpoch."""
    broker = state.check_broker_epoch(request.broker_id, request.broker_epoch)
    session = state.sessions.of(broker.broker_id)
    registered_at = state.registration_offsets[broker.broker_id]
    is_caught_up = request.current_metadata_offset >= registered_at
    is_leaving = session.shutdown_offset is not None
    current, following = yield from _next_state(state, broker, request, is_caught_up=is_caught_up)
    draft = Draft(state)
    newly_offline = [each for each in broker.log_dirs if each in request.offline_log_dirs]
    draft.offline.update(newly_offline)  # a broker that is unfenced now must not lead partitions in them
    if current is not following:
        yield from _transition(draft, broker, following)
    if newly_offline:
        yield from _go_offline(draft, broker, newly_offline)
    if state.metadata_version >= CORDONED_DIRECTORIES_4_3_IV0:
        _cordon(draft, broker, request.cordoned_log_dirs)
    state.sessions.touch(
        broker.broker_id,
        metadata_offset=request.current_metadata_offset,
        is_fenced=following in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW),
        now_ms=now_ms,
    )

    def change_session(end_offset: int) -> None:
        # Not before: of a decision that is dropped, the broker would stay unfenced in a session that never expires.
        if following is BrokerControlState.SHUTDOWN_NOW:
            state.sessions.end(broker.broker_id)
        elif following is BrokerControlState.CONTROLLED_SHUTDOWN and not is_leaving:
            session.shutdown_offset = end_offset - 1

    return Result(
        response=BrokerHeartbeatResponse(
            is_caught_up=is_caught_up,
            is_fenced=following in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW),
            should_shut_down=following is BrokerControlState.SHUTDOWN_NOW,
        ),
        records=draft.records,
        is_atomic=False,
        on_appended=change_session,
    )


def _next_state(
    state: ClusterState, broker: BrokerImage, request: BrokerHeartbeatRequest, *, is_caught_up: bool
) -> Generator[None, None, tuple[BrokerControlState, BrokerControlState]]:
    """Return, in steps, the broker's current and next state, by the diagram in the module's docstring."""
    session = state.sessions.of(broker.broker_id)
    if session.shutdown_offset is not None:
        if (yield from leader_and_isr_updates.has_leaderships(state, broker.broker_id)):
            return BrokerControlState.CONTROLLED_SHUTDOWN, BrokerControlState.CONTROLLED_SHUTDOWN
        others = [each.broker_id for each in state.image.brokers.values() if not each.is_fenced]
        lowest = state.sessions.lowest_active_offset(others)
        may_shut_down = lowest is None or session.shutdown_offset <= lowest
        return (
            BrokerControlState.CONTROLLED_SHUTDOWN,
            BrokerControlState.SHUTDOWN_NOW if may_shut_down else BrokerControlState.CONTROLLED_SHUTDOWN,
        )
    if broker.is_fenced:
        if request.want_shut_down:
            return BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW
        # A broker that was in controlled shutdown stays fenced until its next incarnation registers.
        is_unfenced = not request.want_fence and is_caught_up and not broker.in_controlled_shutdown
        return (
            BrokerControlState.FENCED,
            BrokerControlState.UNFENCED if is_unfenced else BrokerControlState.FENCED,
        )
    if request.want_shut_down:
        leads_partitions = not request.want_fence and (
            yield from leader_and_isr_updates.has_leaderships(state, broker.broker_id)
        )
        return (
            BrokerControlState.UNFENCED,
            BrokerControlState.CONTROLLED_SHUTDOWN if leads_partitions else BrokerControlState.SHUTDOWN_NOW,
        )
    return (
        BrokerControlState.UNFENCED,
        BrokerControlState.FENCED if request.want_fence else BrokerControlState.UNFENCED,
    )


def _transition(
    draft: Draft, broker: BrokerImage, following: BrokerControlState
) -> Generator[None, None, None]:
    match following:
        case BrokerControlState.FENCED | BrokerControlState.SHUTDOWN_NOW:
            yield from _fence(draft, broker)
        case BrokerControlState.UNFENCED:
            draft.set_broker(broker._replace(is_fenced=False))
            draft.records.append(_changed(broker, fenced=_UNFENCE))
            yield from leader_and_isr_updates.elect_missing_leaders(draft)
        case BrokerControlState.CONTROLLED_SHUTDOWN:
            draft.set_broker(broker._replace(in_controlled_shutdown=True))
            if not broker.in_controlled_shutdown:
                draft.records.append(_changed(broker, in_controlled_shutdown=1))
            yield from leader_and_isr_updates.remove_from_isrs(draft, broker.broker_id)
        case _:
            assert_never(following)


def _fence(draft: Draft, broker: BrokerImage) -> Generator[None, None, None]:
    """Fence the broker, at its request or because its session expired: first it leaves the ISRs, then it is fenced."""
    draft.set_broker(broker._replace(is_fenced=True))
    yield from leader_and_isr_updates.remove_from_isrs(draft, broker.broker_id)
    draft.records.append(_changed(broker, fenced=_FENCE))


def _changed(
    broker: BrokerImage, *, fenced: int = 0, in_controlled_shutdown: int = 0
) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.epoch,
        fenced=fenced,
        in_controlled_shutdown=in_controlled_shutdown,
    )


def _go_offline(draft: Draft, broker: BrokerImage, offline: list[UUID]) -> Generator[None, None, None]:
    """Record the loss of log directories. That of the last one has no record: an empty list means no change, as in
    Kafka; a broker that has no directory left stops.
    """
    yield from leader_and_isr_updates.remove_offline_replicas(draft, broker.broker_id, offline)
    draft.records.append(
        BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id,
            broker_epoch=broker.epoch,
            log_dirs=[directory for directory in broker.log_dirs if directory not in offline],
        )
    )


def _cordon(draft: Draft, broker: BrokerImage, cordoned: list[UUID] | None) -> None:
    """Record the directories that take no new replicas (KIP-1066); None from a broker that has not caught up yet."""
    known = broker.cordoned_log_dirs
    if cordoned is not None and (known is None or set(cordoned) != set(known)):
        draft.records.append(
            BrokerRegistrationChangeRecord(
                broker_id=broker.broker_id, broker_epoch=broker.epoch, cordoned_log_dirs=list(cordoned)
            )
        )


@in_steps
def expire_sessions(state: ClusterState, *, now_ms: int) -> Steps[list[int]]:
    """Fence the unfenced broker whose session expired first; returns its id, or an empty list.

    One at a time, so that the elections for the next one see that this one is fenced.
    """
    for broker_id in state.sessions.expired(state.image.brokers.values(), now_ms=now_ms):
        draft = Draft(state)
        yield from _fence(draft, state.image.brokers[broker_id])
        return Result(response=[broker_id], records=draft.records, is_atomic=False)
    return Result(response=[])


@in_steps
def unregister(state: ClusterState, request: UnregisterBrokerRequest) -> Steps[UnregisterBrokerResponse]:
    """Remove a broker's registration. Raises BrokerIdNotRegistered."""
    broker = state.image.brokers.get(request.broker_id)
    if broker is None:
        raise BrokerIdNotRegistered(f"Broker ID {request.broker_id} is not currently registered")
    draft = Draft(state)
    draft.set_broker(broker._replace(is_fenced=True))
    yield from leader_and_isr_updates.remove_from_isrs(draft, broker.broker_id)
    draft.records.append(UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.epoch))
    return Result(
        response=UnregisterBrokerResponse(error_code=ErrorCode.none, error_message=None),
        records=draft.records,
        is_atomic=False,
    )

"""Errors reported to the peer (Kafka's ApiException): one class for each meaning, each with Kafka's error code.

An error raised while one row of a request is handled becomes that row's error code
(and message, if the response has that field); the other rows are not affected.
Source: org.apache.kafka.common.protocol.Errors of Kafka 4.3.1.
"""

from typing import ClassVar, Final

from ottla.protocol.error_code import ErrorCode

__all__ = ["ErrorCode", "KafkaError"]

#: Limit in characters of an error message. A message may quote names of 32,767 bytes, the limit of a whole string.
MAX_SENTENCE: Final = 8_000


def bounded(sentence: str) -> str:
    """The message; without its middle, where the quoted name is, if it is longer than MAX_SENTENCE."""
    if len(sentence) <= MAX_SENTENCE:
        return sentence
    return f"{sentence[: MAX_SENTENCE - 1_000]} [...] {sentence[-900:]}"


class KafkaError(Exception):
    """An error that is reported to the peer by its error code; `message` is a sentence for operators."""

    code: ClassVar[ErrorCode] = ErrorCode.unknown_server_error

    def __init__(self, message: str | None = None) -> None:
        self.message = None if message is None else bounded(message)
        super().__init__(self.message or self.code.name)


class LogDirNotFound(KafkaError):
    """The path is not one of the broker's log directories."""

    code = ErrorCode.log_dir_not_found


class MalformedMessage(KafkaError):
    """The bytes from a peer are not a valid message; its connection is closed."""

    code = ErrorCode.invalid_request


class BrokerIdNotRegistered(KafkaError):
    """The broker has no registration with the controller."""

    code = ErrorCode.broker_id_not_registered


class ControllerIdNotRegistered(KafkaError):
    """The controller has no registration in the metadata log."""

    code = ErrorCode.controller_id_not_registered


class CoordinatorLoadInProgress(KafkaError):
    """The coordinator is still replaying its log."""

    code = ErrorCode.coordinator_load_in_progress


class CoordinatorNotAvailable(KafkaError):
    """There is no coordinator for this key at the moment."""

    code = ErrorCode.coordinator_not_available


class CorruptMessage(KafkaError):
    """A record batch fails its checksum or contradicts itself."""

    code = ErrorCode.corrupt_message


class DuplicateBrokerRegistration(KafkaError):
    """The broker id is in use by another live broker."""

    code = ErrorCode.duplicate_broker_registration


class DuplicateResource(KafkaError):
    """One request names the same thing twice."""

    code = ErrorCode.duplicate_resource


class ElectionNotNeeded(KafkaError):
    """The partition already has the requested leader."""

    code = ErrorCode.election_not_needed


class EligibleLeadersNotAvailable(KafkaError):
    """No replica of the partition can become its leader, even by an unclean election."""

    code = ErrorCode.eligible_leaders_not_available


class FencedInstanceId(KafkaError):
    """Another member uses this group instance id now (KIP-345)."""

    code = ErrorCode.fenced_instance_id


class FencedLeaderEpoch(KafkaError):
    """The peer's leader epoch is older than ours (KIP-320)."""

    code = ErrorCode.fenced_leader_epoch


class FetchSessionIdNotFound(KafkaError):
    """The fetch session is not cached any more (KIP-227)."""

    code = ErrorCode.fetch_session_id_not_found


class FetchSessionTopicIdError(KafkaError):
    """A fetch session mixes topic ids and topic names (KIP-516)."""

    code = ErrorCode.fetch_session_topic_id_error


class GroupIdNotFound(KafkaError):
    """The coordinator has no group with this id."""

    code = ErrorCode.group_id_not_found


class IllegalGeneration(KafkaError):
    """The member's generation is not the group's current one."""

    code = ErrorCode.illegal_generation


class InconsistentClusterId(KafkaError):
    """The peer belongs to another cluster."""

    code = ErrorCode.inconsistent_cluster_id


class InconsistentGroupProtocol(KafkaError):
    """The member shares no protocol with the rest of its group."""

    code = ErrorCode.inconsistent_group_protocol


class InconsistentTopicId(KafkaError):
    """The topic id is not the one of the log on disk (KIP-516)."""

    code = ErrorCode.inconsistent_topic_id


class InvalidConfig(KafkaError):
    """An invalid configuration name or value."""

    code = ErrorCode.invalid_config


class InvalidFetchSessionEpoch(KafkaError):
    """The request's epoch is not the next one of its fetch session (KIP-227)."""

    code = ErrorCode.invalid_fetch_session_epoch


class InvalidGroupId(KafkaError):
    """The group id is empty or otherwise invalid."""

    code = ErrorCode.invalid_group_id


class InvalidPartitions(KafkaError):
    """The number of partitions is invalid."""

    code = ErrorCode.invalid_partitions


class InvalidProducerEpoch(KafkaError):
    """The producer's epoch is older than the last one seen (KIP-98)."""

    code = ErrorCode.invalid_producer_epoch


class InvalidRecord(KafkaError):
    """A record that the topic does not accept."""

    code = ErrorCode.invalid_record


class InvalidRegistration(KafkaError):
    """A broker's registration contradicts itself or another one."""

    code = ErrorCode.invalid_registration


class InvalidReplicaAssignment(KafkaError):
    """The replica assignment is invalid."""

    code = ErrorCode.invalid_replica_assignment


class InvalidReplicationFactor(KafkaError):
    """The replication factor is larger than the number of brokers, or less than one."""

    code = ErrorCode.invalid_replication_factor


class InvalidRequest(KafkaError):
    """The request parses but contradicts itself."""

    code = ErrorCode.invalid_request


class InvalidRequiredAcks(KafkaError):
    """The acks of a Produce request are not 0, 1 or -1."""

    code = ErrorCode.invalid_required_acks


class InvalidSessionTimeout(KafkaError):
    """The session timeout is outside the broker's bounds."""

    code = ErrorCode.invalid_session_timeout


class InvalidTopic(KafkaError):
    """The topic name is invalid."""

    code = ErrorCode.invalid_topic_exception


class InvalidTxnState(KafkaError):
    """The producer has no transaction in the state that the batch needs."""

    code = ErrorCode.invalid_txn_state


class InvalidUpdateVersion(KafkaError):
    """A feature cannot have this level (KIP-584)."""

    code = ErrorCode.invalid_update_version


class KafkaStorageError(KafkaError):
    """The log directory of this replica is offline."""

    code = ErrorCode.kafka_storage_error


class LeaderNotAvailable(KafkaError):
    """The partition has no leader yet."""

    code = ErrorCode.leader_not_available


class MessageTooLarge(KafkaError):
    """A record batch is longer than the topic accepts."""

    code = ErrorCode.message_too_large


class NoReassignmentInProgress(KafkaError):
    """There is no reassignment of the partition to cancel."""

    code = ErrorCode.no_reassignment_in_progress


class NonEmptyGroup(KafkaError):
    """The operation is only for groups without members, and this one has some."""

    code = ErrorCode.non_empty_group


class NotController(KafkaError):
    """This node is not the active controller."""

    code = ErrorCode.not_controller


class NotCoordinator(KafkaError):
    """Another broker coordinates this group."""

    code = ErrorCode.not_coordinator


class NotEnoughReplicas(KafkaError):
    """The ISR is smaller than min.insync.replicas; nothing was written."""

    code = ErrorCode.not_enough_replicas


class NotEnoughReplicasAfterAppend(KafkaError):
    """The ISR shrank below min.insync.replicas after the write."""

    code = ErrorCode.not_enough_replicas_after_append


class NotLeaderOrFollower(KafkaError):
    """This broker does not lead (or host) the partition."""

    code = ErrorCode.not_leader_or_follower


class OffsetNotAvailable(KafkaError):
    """The high watermark has not caught up after an election (KIP-207)."""

    code = ErrorCode.offset_not_available


class OffsetMovedToTieredStorage(KafkaError):
    """The offset is in the log, but not in the local tier: it is read from the remote one (KIP-405)."""

    code = ErrorCode.offset_moved_to_tiered_storage


class OffsetOutOfRange(KafkaError):
    """The offset is before the log start or after its end."""

    code = ErrorCode.offset_out_of_range


class OutOfOrderSequenceNumber(KafkaError):
    """A gap in a producer's sequence numbers (KIP-98)."""

    code = ErrorCode.out_of_order_sequence_number


class PolicyViolation(KafkaError):
    """A policy of this cluster forbids it."""

    code = ErrorCode.policy_violation


class PreferredLeaderNotAvailable(KafkaError):
    """The first replica of the assignment cannot become the leader now."""

    code = ErrorCode.preferred_leader_not_available


class PrincipalDeserializationFailure(KafkaError):
    """The principal in the envelope of a forwarded request cannot be read (KIP-590)."""

    code = ErrorCode.principal_deserialization_failure


class RebalanceInProgress(KafkaError):
    """The group is rebalancing: join again."""

    code = ErrorCode.rebalance_in_progress


class RecordListTooLarge(KafkaError):
    """The batches of one partition are longer than a segment."""

    code = ErrorCode.record_list_too_large


class ReplicaNotAvailable(KafkaError):
    """The replica is not on this broker."""

    code = ErrorCode.replica_not_available


class RequestTimedOut(KafkaError):
    """The operation did not complete within the client's timeout."""

    code = ErrorCode.request_timed_out


class ResourceNotFound(KafkaError):
    """No resource has this name."""

    code = ErrorCode.resource_not_found


class SecurityDisabled(KafkaError):
    """No authorizer is configured, so there are no ACLs either."""

    code = ErrorCode.security_disabled


class StaleBrokerEpoch(KafkaError):
    """The broker's epoch is not that of its latest registration."""

    code = ErrorCode.stale_broker_epoch


class TopicAlreadyExists(KafkaError):
    """A topic of this name exists."""

    code = ErrorCode.topic_already_exists


class TopicDeletionDisabled(KafkaError):
    """The broker deletes no topics: delete.topic.enable is false."""

    code = ErrorCode.topic_deletion_disabled


class TransactionCoordinatorFenced(KafkaError):
    """The marker's coordinator epoch is older than the latest one seen (KIP-98)."""

    code = ErrorCode.transaction_coordinator_fenced


class TransactionalIdAuthorizationFailed(KafkaError):
    """The producer may not use this transactional id, or named none."""

    code = ErrorCode.transactional_id_authorization_failed


class UnacceptableCredential(KafkaError):
    """A SCRAM credential is too weak, too costly or nameless (KIP-554)."""

    code = ErrorCode.unacceptable_credential


class UnknownLeaderEpoch(KafkaError):
    """The peer's leader epoch is newer than ours (KIP-320)."""

    code = ErrorCode.unknown_leader_epoch


class UnknownMemberId(KafkaError):
    """The group has no such member."""

    code = ErrorCode.unknown_member_id


class UnknownServerError(KafkaError):
    """An unexpected error: a bug of this broker."""

    code = ErrorCode.unknown_server_error


class UnknownTopicId(KafkaError):
    """No topic has this id (KIP-516)."""

    code = ErrorCode.unknown_topic_id


class UnknownTopicOrPartition(KafkaError):
    """The topic or partition does not exist, or this broker does not know it yet."""

    code = ErrorCode.unknown_topic_or_partition


class UnsupportedCompressionType(KafkaError):
    """This request version does not support the codec."""

    code = ErrorCode.unsupported_compression_type


class UnsupportedForMessageFormat(KafkaError):
    """Only record batches of magic 2 are stored."""

    code = ErrorCode.unsupported_for_message_format


class UnsupportedSaslMechanism(KafkaError):
    """No SASL mechanism has this name or number."""

    code = ErrorCode.unsupported_sasl_mechanism


class UnsupportedVersion(KafkaError):
    """The API version is not served."""

    code = ErrorCode.unsupported_version

"""ApiKeys: the APIs of Kafka 4.4.0 with their numbers, versions, listeners and header versions.

Absent are the four for ZooKeeper clusters that Kafka removed in 4.0 (LeaderAndIsr, StopReplica,
UpdateMetadata, ControlledShutdown). `ottla.broker.api` has the table of APIs that a node serves.
Source: ApiKeys of Kafka 4.4.0; KIP-482 for flexible versions; KIP-511 for the header of ApiVersions' response.
"""

from enum import IntEnum, IntFlag
from typing import Final


class ApiKey(IntEnum):
    """An API: Kafka's name and number."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = 93
    UNREGISTER_CONTROLLER = 94


class ApiListener(IntFlag):
    """The kinds of listener on which Kafka serves an API."""

    BROKER = 1
    CONTROLLER = 2


_B = ApiListener.BROKER
_C = ApiListener.CONTROLLER
_NEVER: Final = 32767

# (first version, last version, first flexible version, listeners)
_TABLE: Final[dict[ApiKey, tuple[int, int, int, ApiListener]]] = {
    ApiKey.PRODUCE: (3, 13, 9, _B),
    ApiKey.FETCH: (4, 18, 12, _B | _C),
    ApiKey.LIST_OFFSETS: (1, 11, 6, _B),
    ApiKey.METADATA: (0, 13, 9, _B),
    ApiKey.OFFSET_COMMIT: (2, 10, 8, _B),
    ApiKey.OFFSET_FETCH: (1, 10, 6, _B),
    ApiKey.FIND_COORDINATOR: (0, 6, 3, _B),
    ApiKey.JOIN_GROUP: (0, 9, 6, _B),
    ApiKey.HEARTBEAT: (0, 4, 4, _B),
    ApiKey.LEAVE_GROUP: (0, 5, 4, _B),
    ApiKey.SYNC_GROUP: (0, 5, 4, _B),
    ApiKey.DESCRIBE_GROUPS: (0, 6, 5, _B),
    ApiKey.LIST_GROUPS: (0, 5, 3, _B),
    ApiKey.SASL_HANDSHAKE: (0, 1, _NEVER, _B | _C),
    ApiKey.API_VERSIONS: (0, 5, 3, _B | _C),
    ApiKey.CREATE_TOPICS: (2, 7, 5, _B | _C),
    ApiKey.DELETE_TOPICS: (1, 6, 4, _B | _C),
    ApiKey.DELETE_RECORDS: (0, 2, 2, _B),
    # v6 (two-phase commit, KIP-939) is unstable: Kafka does not serve it, and neither does this broker.
    ApiKey.INIT_PRODUCER_ID: (0, 5, 2, _B),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4, 4, _B),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5, 3, _B),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4, 3, _B),
    ApiKey.END_TXN: (0, 5, 3, _B),
    ApiKey.WRITE_TXN_MARKERS: (1, 2, 1, _B),
    ApiKey.TXN_OFFSET_COMMIT: (0, 6, 3, _B),
    ApiKey.DESCRIBE_ACLS: (1, 3, 2, _B | _C),
    ApiKey.CREATE_ACLS: (1, 3, 2, _B | _C),
    ApiKey.DELETE_ACLS: (1, 3, 2, _B | _C),
    ApiKey.DESCRIBE_CONFIGS: (1, 4, 4, _B | _C),
    ApiKey.ALTER_CONFIGS: (0, 2, 2, _B | _C),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (1, 2, 2, _B),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 5, 2, _B),
    ApiKey.SASL_AUTHENTICATE: (0, 2, 2, _B | _C),
    ApiKey.CREATE_PARTITIONS: (0, 3, 2, _B | _C),
    ApiKey.CREATE_DELEGATION_TOKEN: (1, 3, 2, _B | _C),
    ApiKey.RENEW_DELEGATION_TOKEN: (1, 2, 2, _B | _C),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (1, 2, 2, _B | _C),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (1, 3, 2, _B | _C),
    ApiKey.DELETE_GROUPS: (0, 3, 2, _B),
    ApiKey.ELECT_LEADERS: (0, 2, 2, _B | _C),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1, 1, _B | _C),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1, 0, _B | _C),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0, 0, _B | _C),
    ApiKey.OFFSET_DELETE: (0, 0, _NEVER, _B),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1, 1, _B),
    ApiKey.ALTER_CLIENT_QUOTAS: (0, 1, 1, _B | _C),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0, 0, _B | _C),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0, 0, _B | _C),
    ApiKey.VOTE: (0, 2, 0, _C),
    ApiKey.BEGIN_QUORUM_EPOCH: (0, 1, 1, _C),
    ApiKey.END_QUORUM_EPOCH: (0, 1, 1, _C),
    ApiKey.DESCRIBE_QUORUM: (0, 2, 0, _B | _C),
    ApiKey.ALTER_PARTITION: (2, 3, 2, _C),
    ApiKey.UPDATE_FEATURES: (0, 2, 0, _B | _C),
    ApiKey.ENVELOPE: (0, 0, 0, _C),
    ApiKey.FETCH_SNAPSHOT: (0, 1, 0, _C),
    ApiKey.DESCRIBE_CLUSTER: (0, 2, 0, _B | _C),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0, 0, _B),
    ApiKey.BROKER_REGISTRATION: (0, 4, 0, _C),
    ApiKey.BROKER_HEARTBEAT: (0, 2, 0, _C),
    ApiKey.UNREGISTER_BROKER: (0, 0, 0, _B | _C),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0, 0, _B),
    ApiKey.LIST_TRANSACTIONS: (0, 2, 0, _B),
    ApiKey.ALLOCATE_PRODUCER_IDS: (0, 0, 0, _C),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 1, 0, _B),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 1, 0, _B),
    ApiKey.CONTROLLER_REGISTRATION: (0, 0, 0, _C),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (0, 0, 0, _B),
    ApiKey.PUSH_TELEMETRY: (0, 0, 0, _B),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: (0, 0, 0, _C),
    ApiKey.LIST_CONFIG_RESOURCES: (0, 1, 0, _B),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0, 0, _B),
    ApiKey.SHARE_GROUP_HEARTBEAT: (1, 1, 1, _B),
    ApiKey.SHARE_GROUP_DESCRIBE: (1, 1, 1, _B),
    ApiKey.SHARE_FETCH: (1, 2, 1, _B),
    ApiKey.SHARE_ACKNOWLEDGE: (1, 2, 1, _B),
    ApiKey.ADD_RAFT_VOTER: (0, 1, 0, _B | _C),
    ApiKey.REMOVE_RAFT_VOTER: (0, 0, 0, _B | _C),
    ApiKey.UPDATE_RAFT_VOTER: (0, 0, 0, _C),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: (0, 0, 0, _B),
    ApiKey.READ_SHARE_GROUP_STATE: (0, 0, 0, _B),
    ApiKey.WRITE_SHARE_GROUP_STATE: (0, 1, 0, _B),
    ApiKey.DELETE_SHARE_GROUP_STATE: (0, 0, 0, _B),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: (0, 1, 0, _B),
    ApiKey.STREAMS_GROUP_HEARTBEAT: (0, 1, 0, _B),
    ApiKey.STREAMS_GROUP_DESCRIBE: (0, 1, 0, _B),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (0, 1, 0, _B),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (0, 0, 0, _B),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (0, 0, 0, _B),
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: (0, 0, 0, _B),
    ApiKey.UNREGISTER_CONTROLLER: (0, 0, 0, _B | _C),
}

#: The versions of each API that Kafka 4.4.0 serves, unstable ones left out.
KAFKA_VERSIONS: Final[dict[ApiKey, range]] = {
    key: range(first, last + 1) for key, (first, last, _, _) in _TABLE.items()
}


def listeners(api_key: int) -> ApiListener:
    """The listeners on which Kafka serves this API; ValueError if there is no such API."""
    return _TABLE[ApiKey(api_key)][3]


def is_flexible(api_key: int, version: int) -> bool:
    """Whether this version has compact lengths and tagged fields; false for an unknown API."""
    known = _TABLE.get(api_key)  # type: ignore[call-overload]  # an ApiKey equals its number
    return known is not None and version >= known[2]


def request_header_version(api_key: int, version: int) -> int:
    """Return the version of a request's header: 2 with tagged fields, 1 without.

    Kafka removed version 0 with ControlledShutdown v0.
    """
    return 2 if is_flexible(api_key, version) else 1


def response_header_version(api_key: int, version: int) -> int:
    """Return the version of a response's header: 1 with tagged fields, 0 without; always 0 for ApiVersions.

    A client that sends ApiVersions does not know yet whether the broker supports that version: the
    response may be v0, and the client must be able to read its header before it knows that (KIP-511).
    """
    return 1 if api_key != ApiKey.API_VERSIONS and is_flexible(api_key, version) else 0

"""Metadata and DescribeCluster of several brokers: live brokers, leaders, offline replicas."""

from random import Random
from types import SimpleNamespace
from uuid import UUID

import pytest

from ottla.broker.api.k03_metadata import handle as metadata
from ottla.broker.api.k29_describe_acls import handle as describe_acls
from ottla.broker.api.k48_describe_client_quotas import handle as describe_quotas
from ottla.broker.api.k50_describe_user_scram_credentials import handle as describe_users
from ottla.broker.api.k60_describe_cluster import handle as describe_cluster
from ottla.broker.api.k75_describe_topic_partitions import handle as describe_partitions
from ottla.broker.metadata_cache import MetadataCache
from ottla.broker.request_context import RequestContext
from ottla.metadata.image import (
    DIRECTORY_LOST,
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    MetadataImage,
)
from ottla.metadata.records import (
    BrokerEndpoint,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.codec import encode_response
from ottla.protocol.errors import ErrorCode, InvalidRequest, KafkaError, SecurityDisabled
from ottla.protocol.messages.describe_acls import DescribeAclsRequest
from ottla.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from ottla.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from ottla.protocol.messages.metadata import MetadataRequest
from tests.harness.loop_turns import loop_turns

TOPIC_ID = UUID(int=77)
DIRECTORY = UUID(int=1000)


def broker(number: int, *, fenced: bool = False, listener: str = "PLAINTEXT") -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=number,
        broker_epoch=number,
        endpoints=[BrokerEndpoint(name=listener, host=f"b{number}", port=9092)],
        rack=f"r{number}",
        fenced=fenced,
        log_dirs=[DIRECTORY],
    )


#: 1 and 2 are live, 3 is fenced, 4 has another listener; 5 has never registered.
BROKERS = [broker(1), broker(2), broker(3, fenced=True), broker(4, listener="INTERNAL")]


def partition(index: int, leader: int, replicas: list[int], **fields: object) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=TOPIC_ID,
        **{
            "replicas": replicas,
            "isr": [leader] if leader >= 0 else [],
            "leader": leader,
            "leader_epoch": 3,
            "partition_epoch": 9,
            "directories": [DIRECTORY] * len(replicas),
            **fields,
        },
    )


class Cluster:
    """One broker's view of these records, for its handlers."""

    def __init__(self, *records: MetadataRecord, **config: object) -> None:
        image = MetadataImage()
        image.replay_all(records)
        self.cluster_id = "cluster"
        self.metadata = MetadataCache(image)
        self.runtime = SimpleNamespace(random=Random(5), turns=loop_turns())
        self.long_answers = None  # few rows need no turns
        self.config = SimpleNamespace(
            auto_create_topics_enable=False, max_request_partition_size_limit=2000, get=config.get
        )


def context(version: int) -> RequestContext:
    return RequestContext(0, version, 1, None, "localhost", "PLAINTEXT")


TOPIC = TopicRecord(name="t", topic_id=TOPIC_ID)


@pytest.mark.parametrize("version", range(14))
def test_metadata_has_the_brokers_that_can_be_reached(version: int):
    response = metadata(MetadataRequest(topics=None), context(version), Cluster(*BROKERS))
    assert [(node.node_id, node.host, node.rack) for node in response.brokers] == [
        (1, "b1", "r1"),
        (2, "b2", "r2"),
    ]
    assert response.controller_id in (1, 2)


def test_metadata_always_has_a_broker():
    """They would forget the one that they ask."""
    fenced = Cluster(
        broker(1, fenced=True), broker(3, fenced=True), broker(4, listener="INTERNAL", fenced=True)
    )
    response = metadata(MetadataRequest(topics=None), context(13), fenced)
    assert [node.node_id for node in response.brokers] == [1, 3]
    assert response.controller_id == -1


def test_the_controller_is_any_broker_that_is_there():
    cluster = Cluster(*BROKERS)
    for handle, request, version in (
        (metadata, MetadataRequest(topics=None), 13),
        (describe_cluster, DescribeClusterRequest(endpoint_type=1), 2),
    ):
        reported = {handle(request, context(version), cluster).controller_id for _ in range(50)}
        assert reported == {1, 2}
    all_fenced = Cluster(broker(3, fenced=True))
    assert metadata(MetadataRequest(topics=None), context(13), all_fenced).controller_id == -1
    assert (
        describe_cluster(DescribeClusterRequest(endpoint_type=1), context(2), all_fenced).controller_id == -1
    )


# KIP-1073
@pytest.mark.parametrize(
    ("include_fenced", "found"),
    [(False, [(1, False), (2, False)]), (True, [(1, False), (2, False), (3, True)])],
)
def test_describe_cluster(include_fenced: bool, found: list):
    request = DescribeClusterRequest(endpoint_type=1, include_fenced_brokers=include_fenced)
    response = describe_cluster(request, context(2), Cluster(*BROKERS))
    assert [(node.broker_id, node.is_fenced) for node in response.brokers] == found


OFFLINE = [
    # leader, replicas, directories -> leader returned, error, offline
    (1, [1, 2], [DIRECTORY] * 2, 1, ErrorCode.none, []),
    (1, [1, 2, 3], [DIRECTORY] * 3, 1, ErrorCode.none, [3]),
    (2, [2, 4], [DIRECTORY] * 2, 2, ErrorCode.none, [4]),
    (4, [1, 4], [DIRECTORY] * 2, -1, ErrorCode.listener_not_found, [4]),
    (5, [5, 1], [DIRECTORY] * 2, -1, ErrorCode.leader_not_available, [5]),
    (-1, [3, 5], [DIRECTORY] * 2, -1, ErrorCode.leader_not_available, [3, 5]),
    (1, [1, 2], [DIRECTORY, DIRECTORY_LOST], 1, ErrorCode.none, [2]),
    (1, [1, 2], [DIRECTORY, UUID(int=4)], 1, ErrorCode.none, [2]),  # a directory that 2 has no more
    (1, [1, 2], [DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING], 1, ErrorCode.none, []),
]


@pytest.mark.parametrize(("leader", "replicas", "directories", "reported", "error", "offline"), OFFLINE)
def test_replicas_out_of_reach(leader, replicas, directories, reported, error, offline):
    cluster = Cluster(*BROKERS, TOPIC, partition(0, leader, replicas, directories=directories))
    (topic,) = metadata(MetadataRequest(topics=None), context(13), cluster).topics
    (row,) = topic.partitions
    assert (row.leader_id, row.error_code, row.offline_replicas) == (reported, error, offline)
    assert (row.replica_nodes, row.leader_epoch) == (replicas, 3)
    (topic,) = describe_partitions(
        DescribeTopicPartitionsRequest(response_partition_limit=9), context(0), cluster
    ).topics
    (row,) = topic.partitions
    assert (row.leader_id, row.error_code, row.offline_replicas) == (reported, ErrorCode.none, offline)


def test_version_5_knows_no_listener_not_found():
    cluster = Cluster(*BROKERS, TOPIC, partition(0, 4, [4, 1]))
    for version, error in ((5, ErrorCode.leader_not_available), (6, ErrorCode.listener_not_found)):
        (topic,) = metadata(MetadataRequest(topics=None), context(version), cluster).topics
        assert topic.partitions[0].error_code == error


def test_eligible_leaders_are_described():
    record = partition(0, -1, [1, 2, 3], isr=[], eligible_leader_replicas=[3], last_known_elr=[2])
    cluster = Cluster(*BROKERS, TOPIC, record)
    request = DescribeTopicPartitionsRequest(response_partition_limit=9)
    (row,) = describe_partitions(request, context(0), cluster).topics[0].partitions
    assert (row.isr_nodes, row.eligible_leader_replicas, row.last_known_elr) == ([], [3], [2])


# -- ACLs, quotas and users without anything ----------------------------------------------------------------


def test_nothing_asked_of_nothing():
    cluster = Cluster()
    assert describe_quotas(DescribeClientQuotasRequest(), context(1), cluster).entries == []
    for users in (None, []):
        request = DescribeUserScramCredentialsRequest(users=users)
        assert describe_users(request, context(0), cluster).results == []
    with pytest.raises(KafkaError):
        describe_quotas(DescribeClientQuotasRequest(components=[ComponentData()]), context(1), cluster)


def test_acls_need_an_authorizer_and_codes():
    every = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    with pytest.raises(SecurityDisabled):
        describe_acls(DescribeAclsRequest(**every), context(3), Cluster())
    cluster = Cluster(**{"authorizer.class.name": "an.Authorizer"})
    assert describe_acls(DescribeAclsRequest(**every), context(3), cluster).resources == []
    for name in every:
        with pytest.raises(InvalidRequest):
            describe_acls(DescribeAclsRequest(**{**every, name: 0}), context(3), cluster)


def test_users_are_named_once_and_all_of_their_mechanisms():
    cluster = Cluster(
        *(
            UserScramCredentialRecord(name=name, mechanism=mechanism, iterations=4096 * mechanism)
            for name, mechanism in (("a", 2), ("a", 1), ("b", 1))
        )
    )
    all_users = describe_users(DescribeUserScramCredentialsRequest(users=[]), context(0), cluster).results
    assert [(row.user, [info.mechanism for info in row.credential_infos]) for row in all_users] == [
        ("a", [1, 2]),
        ("b", [1]),
    ]
    asked = DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in ("b", "x", "a", "a")])
    assert [(row.user, row.error_code) for row in describe_users(asked, context(0), cluster).results] == [
        ("b", ErrorCode.none),
        ("x", ErrorCode.resource_not_found),
        ("a", ErrorCode.duplicate_resource),
    ]


@pytest.mark.parametrize("times", [1, 2])
def test_a_user_with_the_longest_name_is_answered(times):
    asked = DescribeUserScramCredentialsRequest(users=[UserName(name="é" * 16_383)] * times)
    answer = describe_users(asked, context(0), Cluster())
    assert encode_response(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, answer)

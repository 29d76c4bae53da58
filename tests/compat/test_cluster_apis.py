"""Quotas, ACLs, SCRAM credentials, features, elections and reassignments on Ottla and on Apache Kafka 4.3.1.

Both receive the requests of each story, in every version of its APIs; the responses must be equal in all fields.
A broker applies a change a moment after its controller has answered: a Describe request is repeated until the responses
agree, up to a timeout. Rows come in the order of Kafka's hash maps, and are sorted.
"""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from ottla.bench.components.processes import PATIENCE_S, comes_true
from ottla.metadata.acls import AclOperation, AclPermissionType, PatternType, ResourceType
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.messages import alter_partition_reassignments as reassigning
from ottla.protocol.messages import alter_user_scram_credentials as scram
from ottla.protocol.messages import incremental_alter_configs as altering
from ottla.protocol.messages import list_partition_reassignments as listing
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.describe_acls import DescribeAclsRequest
from ottla.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest
from ottla.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.harness.blocking_wire import BlockingWire
from tests.harness.kafka import KafkaServer
from tests.harness.ottla import OttlaServer

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
}

Step = tuple[ApiKey, Any]


@pytest.fixture(scope="module")
def wires(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BlockingWire, BlockingWire]]:
    ottla = OttlaServer(tmp_path_factory.mktemp("ottla"), settings=SETTINGS).start()
    kafka = KafkaServer(tmp_path_factory.mktemp("kafka"), settings=SETTINGS).start()
    with BlockingWire(ottla.port) as ours, BlockingWire(kafka.port) as theirs:
        yield ours, theirs
    ottla.stop()
    kafka.stop()


def shown(message: Any) -> Any:
    """A message as plain values, rows sorted."""
    if is_dataclass(message):
        return {field.name: shown(getattr(message, field.name)) for field in fields(message)}
    if isinstance(message, list):
        return sorted((shown(each) for each in message), key=repr)
    # The latest metadata.version of Kafka 4.3.1, and ours.
    return re.sub(r"\b7-3[03]\b", "7-LATEST", message) if isinstance(message, str) else message


def same(wires: tuple[BlockingWire, BlockingWire], story: list[Step], *, nth_version: int) -> list[Any]:
    """Send the story's requests to both servers; returns their responses, which are equal."""
    results, differences = [], []
    for key, request in story:
        versions = KAFKA_VERSIONS[key]
        version = versions[min(nth_version, len(versions) - 1)]
        answers: list[Any] = []

        def are_equal(key=key, version=version, request=request, answers=answers) -> bool:
            answers[:] = [shown(wire.call(key, version, request)) for wire in wires]
            return answers[0] == answers[1]

        # An alteration is not repeated: its second response may differ.
        if not comes_true(are_equal, timeout_s=PATIENCE_S if "DESCRIBE" in key.name else 0):
            differences.append((key.name, version, request, *answers))
        results.append(answers[0])
    assert differences == []
    return results


every_version = pytest.mark.parametrize("nth_version", range(3))


# -- quotas ------------------------------------------------------------------------------------------------


def quota(*ops: tuple[str, float | None], **entity: str | None) -> EntryData:
    return EntryData(
        entity=[
            EntityData(entity_type=kind.replace("_", "-"), entity_name=name) for kind, name in entity.items()
        ],
        ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops],
    )


def altered(*entries: EntryData, validate_only: bool = False) -> Step:
    request = AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    return ApiKey.ALTER_CLIENT_QUOTAS, request


def quotas_of(*components: tuple[str, int, str | None], strict: bool = False) -> Step:
    parts = [ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components]
    return ApiKey.DESCRIBE_CLIENT_QUOTAS, DescribeClientQuotasRequest(components=parts, strict=strict)


EXACT, DEFAULT, SPECIFIED = 0, 1, 2
RATE = "producer_byte_rate"
ENTITIES: list[dict[str, str | None]] = [
    {"user": "alice"},
    {"user": None},
    {"user": "alice", "client_id": "c"},
    {"user": "alice", "client_id": None},
    {"client_id": "c"},
]


# KIP-546
@every_version
def test_client_quotas(wires, nth_version: int):
    story = [
        altered(),
        altered(*(quota((RATE, 1000.0), ("request_percentage", 1.5), **entity) for entity in ENTITIES)),
        altered(quota(("connection_creation_rate", 5.0), ip="127.0.0.1")),
        altered(quota(("connection_creation_rate", 7.0), ip=None)),
        quotas_of(),
        *(
            quotas_of(*parts, strict=strict)
            for strict in (False, True)
            for parts in (
                [("user", EXACT, "alice")],
                [("user", DEFAULT, None)],
                [("user", SPECIFIED, None)],
                [("user", SPECIFIED, None), ("client-id", SPECIFIED, None)],
                [("user", EXACT, "alice"), ("client-id", DEFAULT, None)],
                [("user", EXACT, "unknown")],
                [("ip", SPECIFIED, None)],
            )
        ),
        altered(quota((RATE, 1.0), user="alice"), validate_only=True),
        quotas_of(("user", EXACT, "alice"), strict=True),
        altered(
            quota((RATE, 2.0), ("consumer_byte_rate", 3.0), user="alice"), quota((RATE, None), client_id="c")
        ),
        quotas_of(),
        altered(
            *(
                quota((RATE, None), ("request_percentage", None), ("consumer_byte_rate", None), **entity)
                for entity in ENTITIES
            ),
            quota(("connection_creation_rate", None), ip="127.0.0.1"),
            quota(("connection_creation_rate", None), ip=None),
        ),
        quotas_of(),
    ]
    results = same(wires, story, nth_version=nth_version)
    assert len(results[4]["entries"]) == len(ENTITIES) + 2
    assert results[-1]["entries"] == []


@every_version
def test_quotas_that_are_refused(wires, nth_version: int):
    refused = [
        quota((RATE, 1.0)),
        quota((RATE, 1.0), group="g"),
        quota((RATE, 1.0), user=""),
        quota((RATE, 1.0), ip=""),
        quota((RATE, 1.0), ip="1.2.3.4"),
        quota((RATE, 1.0), ip="1.2.3.4", user="u"),
        quota(("connection_creation_rate", 1.0), user="u"),
        quota(("connection_creation_rate", 1.5), ip=None),
        quota(("connection_creation_rate", 1e10), ip=None),
        quota((RATE, 0.0), user="u"),
        quota((RATE, -1.0), user="u"),
        quota((RATE, 0.5), user="u"),
        quota((RATE, 1e30), user="u"),
        quota(("no.such.key", 1.0), user="u"),
        quota((RATE, 1.0), (RATE, 2.0), user="u"),
        quota(("no.such.key", None), user="u"),
    ]
    filters = [
        [("", EXACT, "x")],
        [("group", EXACT, "x")],
        [("user", EXACT, "x"), ("user", SPECIFIED, None)],
        [("user", EXACT, None)],
        [("user", DEFAULT, "x")],
        [("user", SPECIFIED, "x")],
        [("user", 9, None)],
        [("user", EXACT, "x"), ("ip", EXACT, "1.2.3.4")],
    ]
    story = [*(altered(each) for each in refused), *(quotas_of(*each) for each in filters)]
    results = same(wires, story, nth_version=nth_version)
    assert sum(row["entries"][0]["error_code"] != 0 for row in results[: len(refused)]) == len(refused) - 1
    assert all(row["error_code"] for row in results[len(refused) :])
    # An entity named twice: the first row is applied, and has the error of the second.
    twice = [altered(quota((RATE, 1.0), user="twice"), quota((RATE, 2.0), user="twice")), quotas_of()]
    done = same(wires, [*twice, altered(quota((RATE, None), user="twice"))], nth_version=nth_version)
    assert done[1]["entries"][0]["values"] == [{"key": RATE, "value": 1.0}]


# -- ACLs --------------------------------------------------------------------------------------------------

ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY


def acl(name: str, pattern: int = PatternType.LITERAL, **changed: Any) -> AclCreation:
    values: dict[str, Any] = {
        "resource_type": ResourceType.TOPIC,
        "principal": "User:alice",
        "host": "*",
        "operation": AclOperation.READ,
        "permission_type": ALLOW,
    }
    return AclCreation(resource_name=name, resource_pattern_type=pattern, **{**values, **changed})


def created(*acls: AclCreation) -> Step:
    return ApiKey.CREATE_ACLS, CreateAclsRequest(creations=list(acls))


def _asked(name: str | None, pattern: int, changed: dict[str, Any]) -> dict[str, Any]:
    return {
        "resource_type_filter": ResourceType.ANY,
        "resource_name_filter": name,
        "pattern_type_filter": pattern,
        "principal_filter": None,
        "host_filter": None,
        "operation": AclOperation.ANY,
        "permission_type": AclPermissionType.ANY,
        **changed,
    }


def acls_of(name: str | None = None, pattern: int = PatternType.ANY, **changed: Any) -> Step:
    return ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(**_asked(name, pattern, changed))


def deleted(name: str | None = None, pattern: int = PatternType.ANY, **changed: Any) -> Step:
    return ApiKey.DELETE_ACLS, DeleteAclsRequest(filters=[DeleteAclsFilter(**_asked(name, pattern, changed))])


# KIP-140
@every_version
def test_acls(wires, nth_version: int):
    story = [
        created(),
        created(
            acl("foo"),
            acl("foo"),
            acl("foo", operation=AclOperation.WRITE, permission_type=DENY, host="10.0.0.1"),
            acl("foo", principal="User:bob"),
            acl("*"),
            acl("f", PatternType.PREFIXED),
            acl("foobar", PatternType.PREFIXED),
            acl("foo", resource_type=ResourceType.GROUP),
            acl("kafka-cluster", resource_type=ResourceType.CLUSTER, operation=AclOperation.ALTER),
            acl("User:bob", resource_type=ResourceType.USER, operation=AclOperation.DESCRIBE_TOKENS),
            acl("tx", resource_type=ResourceType.TRANSACTIONAL_ID, operation=AclOperation.TWO_PHASE_COMMIT),
        ),
        acls_of(),
        *(
            acls_of(name, pattern)
            for name in (None, "foo", "f", "*", "foobars", "")
            for pattern in (PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED, 9)
        ),
        acls_of(principal_filter="User:bob"),
        acls_of(host_filter="10.0.0.1"),
        acls_of(operation=AclOperation.WRITE),
        acls_of(operation=99),
        acls_of(permission_type=DENY),
        acls_of(permission_type=99),
        acls_of(resource_type_filter=ResourceType.GROUP),
        acls_of(resource_type_filter=99),
        created(
            acl(""),
            acl("x", resource_type=ResourceType.CLUSTER),
            acl("x", resource_type=99),
            acl("x", 99),
            acl("x", operation=99),
            acl("x", permission_type=99),
            acl("x", principal="unknown"),
        ),
        (ApiKey.DELETE_ACLS, DeleteAclsRequest()),
        deleted("x", 99),
        deleted("x", operation=99),
        deleted("x"),
        deleted("foo", PatternType.MATCH, principal_filter="User:bob"),
        acls_of(),
        deleted("foo", PatternType.MATCH, resource_type_filter=ResourceType.TOPIC),
        acls_of(),
        deleted(),
        acls_of(),
    ]
    results = same(wires, story, nth_version=nth_version)
    assert sum(len(row["acls"]) for row in results[2]["resources"]) == 10
    assert results[-1]["resources"] == []


# -- SCRAM -------------------------------------------------------------------------------------------------


def upsert(name: str, mechanism: int = 1, iterations: int = 4096, salt: bytes = b"salt"):
    return scram.ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=b"salted"
    )


def remove(name: str, mechanism: int = 1):
    return scram.ScramCredentialDeletion(name=name, mechanism=mechanism)


def credentials(*alterations: Any) -> Step:
    deletions = [each for each in alterations if isinstance(each, scram.ScramCredentialDeletion)]
    upsertions = [each for each in alterations if isinstance(each, scram.ScramCredentialUpsertion)]
    request = scram.AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions)
    return ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request


def users(*names: str) -> Step:
    request = DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in names])
    return ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, request


# KIP-554
def test_scram_credentials(wires):
    story = [
        users(),
        users("unknown"),
        credentials(),
        credentials(upsert("alice"), upsert("bob", 2, 16384), upsert("carol", salt=b"")),
        credentials(upsert("alice", 2, 5000)),
        users(),
        (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, DescribeUserScramCredentialsRequest(users=None)),
        users("alice", "unknown", "bob", "bob"),
        users(""),
        credentials(
            upsert(""),
            upsert("dave", 0),
            upsert("erin", 3),
            upsert("frank", 1, 4095),
            upsert("gina", 1, 16385),
            upsert("hank"),
            upsert("hank", 2),
            remove("unknown"),
            remove("carol", 2),
            remove("alice", 7),
            remove("bob", 2),
            upsert("bob"),
        ),
        users(),
        credentials(remove("alice"), remove("bob", 2), remove("carol")),
        credentials(remove("alice", 2)),
        users(),
    ]
    results = same(wires, story, nth_version=0)
    assert {row["user"] for row in results[5]["results"]} == {"alice", "bob", "carol"}
    assert results[-1]["results"] == []


# -- features ----------------------------------------------------------------------------------------------


def features(*updates: tuple[str, int, int], validate_only: bool = False) -> Step:
    rows = [
        FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
        for name, level, kind in updates
    ]
    return ApiKey.UPDATE_FEATURES, UpdateFeaturesRequest(feature_updates=rows, validate_only=validate_only)


UPGRADE, SAFE, UNSAFE = 1, 2, 3
ELR = "eligible.leader.replicas.version"


@every_version
def test_features(wires, nth_version: int):
    story = [
        features(),
        *(
            features(update)
            for update in (
                ("metadata.version", 30, UPGRADE),
                ("metadata.version", 99, UPGRADE),
                ("metadata.version", 29, UPGRADE),
                ("metadata.version", -1, UPGRADE),
                ("metadata.version", 0, UPGRADE),
                ("no.such.feature", 1, UPGRADE),
                ("no.such.feature", 0, UPGRADE),
                ("group.version", 2, UPGRADE),
                (ELR, 0, UPGRADE),
                ("kraft.version", 2, UPGRADE),
            )
        ),
        features((ELR, 1, UPGRADE), ("no.such.feature", 1, UPGRADE)),
    ]
    if nth_version > 0:
        story += [
            *(
                features(update)
                for update in (
                    ("metadata.version", 29, SAFE),
                    ("metadata.version", 29, UNSAFE),
                    ("metadata.version", 7, SAFE),
                    (ELR, 1, 0),
                    (ELR, 1, 9),
                    ("kraft.version", 0, SAFE),
                    ("streams.version", 0, 7),
                )
            ),
            features((ELR, 0, SAFE), validate_only=True),
            features((ELR, 0, SAFE)),
            features((ELR, 1, SAFE)),
            features((ELR, 1, UPGRADE)),
        ]
    same(wires, story, nth_version=nth_version)


# -- elections, reassignments, registrations ---------------------------------------------------------------


def create(name: str) -> Step:
    topic = CreatableTopic(name=name, num_partitions=2, replication_factor=1)
    return ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[topic], timeout_ms=60_000)


def elect(kind: int, *topics: tuple[str, list[int]], everything: bool = False) -> Step:
    rows = [TopicPartitions(topic=name, partitions=indexes) for name, indexes in topics]
    request = ElectLeadersRequest(
        election_type=kind, topic_partitions=None if everything else rows, timeout_ms=60_000
    )
    return ApiKey.ELECT_LEADERS, request


def reassign(*rows: tuple[str, int, list[int] | None]) -> Step:
    topics: dict[str, list[reassigning.ReassignablePartition]] = {}
    for name, index, replicas in rows:
        partition = reassigning.ReassignablePartition(partition_index=index, replicas=replicas)
        topics.setdefault(name, []).append(partition)
    request = reassigning.AlterPartitionReassignmentsRequest(
        timeout_ms=60_000,
        topics=[
            reassigning.ReassignableTopic(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
    )
    return ApiKey.ALTER_PARTITION_REASSIGNMENTS, request


def moving(*topics: tuple[str, list[int]], everything: bool = False) -> Step:
    rows = [
        listing.ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
        for name, indexes in topics
    ]
    request = listing.ListPartitionReassignmentsRequest(
        topics=None if everything else rows, timeout_ms=60_000
    )
    return ApiKey.LIST_PARTITION_REASSIGNMENTS, request


@pytest.fixture
def created_topic(wires, topic: str) -> Iterator[str]:
    for wire in wires:
        assert wire.call(*_newest(create(topic))).topics[0].error_code == 0
    yield topic
    for wire in wires:
        request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=60_000)
        wire.call(ApiKey.DELETE_TOPICS, 5, request)


def _newest(step: Step) -> tuple[ApiKey, int, Any]:
    return step[0], KAFKA_VERSIONS[step[0]][-1], step[1]


@every_version
def test_elections(wires, created_topic: str, nth_version: int):
    story = [
        elect(kind, *topics)
        for kind in ((0, 1, 7) if nth_version else (0,))
        for topics in (
            [(created_topic, [0, 1])],
            [(created_topic, [0, 0])],
            [(created_topic, [5, -1])],
            [("unknown", [0])],
            [("", [0])],
            [(created_topic, [])],
        )
    ]
    story += [elect(0), elect(0, everything=True)]
    same(wires, story, nth_version=nth_version)


@pytest.mark.parametrize("nth_version", range(2))
def test_reassignments(wires, created_topic: str, nth_version: int):
    name = created_topic
    story = [
        moving(everything=True),
        moving(),
        moving((name, [0, 1, 7])),
        moving((name, [])),
        moving(("unknown", [0])),
        reassign(),
        reassign((name, 0, [1]), (name, 1, [1])),
        reassign((name, 0, None)),
        reassign((name, 0, [])),
        reassign((name, 0, [1, 1])),
        reassign((name, 0, [2])),
        reassign((name, 0, [-1])),
        reassign((name, 5, [1])),
        reassign((name, -1, [1])),
        reassign(("unknown", 0, [1])),
        reassign(("", 0, None)),
        reassign((name, 0, [1]), (name, 9, [1]), ("unknown", 0, None)),
        moving(everything=True),
    ]
    same(wires, story, nth_version=nth_version)


def test_brokers_that_are_not_registered(wires):
    for broker_id in (99, -1, 2**31 - 1):
        story = [(ApiKey.UNREGISTER_BROKER, UnregisterBrokerRequest(broker_id=broker_id))]
        (results,) = same(wires, story, nth_version=0)
        assert results["error_code"] != 0


# -- configurations of another broker -----------------------------------------------------------------------


@every_version
@pytest.mark.parametrize("name", ["2", "-1", "one", "99999999999"])
def test_a_broker_answers_for_its_own_configurations_only(wires, name: str, nth_version: int):
    broker = 4
    setting = altering.AlterableConfig(name="log.retention.ms", config_operation=0, value="5000")
    altered_resource = altering.AlterConfigsResource(
        resource_type=broker, resource_name=name, configs=[setting]
    )
    described = DescribeConfigsResource(resource_type=broker, resource_name=name, configuration_keys=None)
    story = [
        (
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            altering.IncrementalAlterConfigsRequest(resources=[altered_resource]),
        ),
        (ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=[described])),
    ]
    results = same(wires, story, nth_version=nth_version)
    assert results[0]["responses"][0]["error_code"] == results[1]["results"][0]["error_code"] == 42


# -- without an authorizer ---------------------------------------------------------------------------------


@every_version
def test_without_an_authorizer_there_are_no_acls(server, nth_version: int):
    with BlockingWire(server.port) as wire:

        def ask(step: Step) -> Any:
            versions = KAFKA_VERSIONS[step[0]]
            return shown(wire.call(step[0], versions[min(nth_version, len(versions) - 1)], step[1]))

        security_disabled = 54
        described = ask(acls_of())
        assert (described["error_code"], described["error_message"], described["resources"]) == (
            security_disabled,
            "No Authorizer is configured on the broker",
            [],
        )
        row = {"error_code": security_disabled, "error_message": "No Authorizer is configured."}
        assert ask(created(acl("x"), acl("y")))["results"] == [row, row]
        assert ask(deleted())["filter_results"] == [{**row, "matching_acls": []}]

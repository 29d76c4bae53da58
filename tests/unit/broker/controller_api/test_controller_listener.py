"""A controller's own listener: which requests it serves for which clients, envelopes above all.

About KIP-919.
"""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from ottla.broker.controller_api.services import NODE_REQUESTS
from ottla.broker.membership.envelope import FORWARDABLE, unwrap_response, wrap_request
from ottla.broker.node import Node
from ottla.broker.request_context import RequestContext
from ottla.broker.roles.hooks import Hooks
from ottla.config.load import load_config
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey, ApiListener, listeners
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import alter_configs, describe_configs, incremental_alter_configs
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from ottla.protocol.messages.envelope import EnvelopeRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.steps import at_once
from ottla.runtime.simulated import SimulatedRuntime
from ottla.stories.partition.faulty_files import FaultyFiles
from tests.harness.wire import WireClient

CONTEXT = RequestContext(ApiKey.CREATE_TOPICS, 7, 44, "a-client", "192.0.2.7", "PLAINTEXT", "User:alice")
CREATE = CreateTopicsRequest(
    topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)], timeout_ms=1000
)


def ask(scenario, *overrides):
    """Run `scenario(client of the controller's listener, node)` against a node that is a whole cluster."""
    runtime = SimulatedRuntime(seed=1)

    async def whole():
        config = load_config(data_dir=Path("/data"), overrides=overrides)
        node = await Node.start(runtime, config, hooks=Hooks(files=FaultyFiles(random=Random(1))))
        (listener,) = node.controller_listeners
        client = await WireClient.connect(listener.host, listener.port)
        try:
            return await scenario(client, node)
        finally:
            await client.close()
            await node.stop()

    try:
        return runtime.run(whole())
    finally:
        runtime.simulation.close()


def test_what_controllers_serve():
    async def scenario(client, _):
        return await client.request(
            ApiKey.API_VERSIONS, 4, ApiVersionsRequest(client_software_name="a", client_software_version="1")
        )

    answer = ask(scenario)
    served = {row.api_key: range(row.min_version, row.max_version + 1) for row in answer.api_keys}
    assert all(served[key] == KAFKA_VERSIONS[ApiKey(key)] for key in served)
    assert all(ApiListener.CONTROLLER in listeners(key) for key in served)
    kafkas = {key for key in ApiKey if ApiListener.CONTROLLER in listeners(key)}
    # The security handshake, delegation tokens and users, which are not served yet.
    assert kafkas - served.keys() == {17, 36, 38, 39, 40, 41, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS}
    features = {row.name: (row.min_version, row.max_version) for row in answer.supported_features}
    assert features["kraft.version"] == (0, 1)
    assert {row.name for row in answer.finalized_features} >= {"metadata.version"}


def test_a_version_of_api_versions_from_the_future():
    async def scenario(client, _):
        await client.send(ApiKey.API_VERSIONS, 4, ApiVersionsRequest())
        implausible = await client.receive()
        client._writer.write(b"\0\0\0\x0c" + b"\0\x12" + b"\0\x63" + b"\0\0\0\7" + b"\xff\xff" + b"\0\0")
        return implausible, await client.receive()

    implausible, refused = ask(scenario)
    assert int.from_bytes(implausible[4:6]) == ErrorCode.invalid_request
    assert int.from_bytes(refused[4:6]) == ErrorCode.unsupported_version


@pytest.mark.parametrize("key", [ApiKey.METADATA, ApiKey.PRODUCE, ApiKey.JOIN_GROUP])
def test_what_brokers_serve_ends_the_connection(key):
    async def scenario(client, _):
        await client.send(ApiKey.METADATA, 12, MetadataRequest())
        with pytest.raises(asyncio.IncompleteReadError):
            await client.receive()

    ask(scenario)


def test_admin_requests_without_an_envelope():
    async def scenario(client, node):
        created = await client.request(ApiKey.CREATE_TOPICS, 7, CREATE)
        assert created.topics[0].error_code == ErrorCode.none
        assert node.broker.metadata.topic("t") is not None
        again = await client.request(ApiKey.CREATE_TOPICS, 7, CREATE)
        assert again.topics[0].error_code == ErrorCode.topic_already_exists
        quorum = await client.request(
            ApiKey.DESCRIBE_QUORUM,
            2,
            DescribeQuorumRequest(
                topics=[TopicData(topic_name="__cluster_metadata", partitions=[PartitionData()])]
            ),
        )
        assert quorum.topics[0].partitions[0].leader_id == 1

    ask(scenario)


async def through_an_envelope(client, envelope):
    return await client.request(ApiKey.ENVELOPE, 0, envelope)


@pytest.mark.logs(
    "a heartbeat to the controller failed",
    "controlled shutdown did not complete in time; the broker stops without it",
    "has not responded for",
)
def test_a_request_in_an_envelope():
    async def scenario(client, node):
        answer = await through_an_envelope(client, at_once(wrap_request(CREATE, CONTEXT, [])))
        assert answer.error_code == ErrorCode.none
        created = at_once(unwrap_response(answer.response_data, CONTEXT, []))
        assert created.topics[0].error_code == ErrorCode.none
        node._quorum.controller.stop()
        answer = await through_an_envelope(client, at_once(wrap_request(CREATE, CONTEXT, [])))
        assert (answer.error_code, answer.response_data) == (ErrorCode.not_controller, None)
        refused = await client.request(ApiKey.CREATE_TOPICS, 7, CREATE)
        assert refused.topics[0].error_code == ErrorCode.not_controller

    ask(scenario)


@pytest.mark.parametrize(("version", "error"), [
    (1, ErrorCode.invalid_request),
    (2, ErrorCode.invalid_request),
    (3, ErrorCode.topic_deletion_disabled),
    (6, ErrorCode.topic_deletion_disabled),
])  # fmt: skip
def test_disabled_topic_deletion_is_an_error_that_the_version_has(version, error):
    """The error is the same, however the deletion is requested."""

    async def scenario(client, node):
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])
        if version < 6:
            request = DeleteTopicsRequest(topic_names=["t"])
        context = replace(CONTEXT, api_key=ApiKey.DELETE_TOPICS, version=version)
        (listener,) = node.listeners
        broker = await WireClient.connect(listener.host, listener.port)
        enveloped = await through_an_envelope(client, at_once(wrap_request(request, context, [])))
        answers = [
            await client.request(ApiKey.DELETE_TOPICS, version, request),
            await broker.request(ApiKey.DELETE_TOPICS, version, request),
            at_once(unwrap_response(enveloped.response_data, context, [])),
        ]
        await broker.close()
        return answers

    for answer in ask(scenario, "delete.topic.enable=false"):
        assert [row.error_code for row in answer.responses] == [error]


GOOD = at_once(wrap_request(CREATE, CONTEXT, []))


# KIP-590
@pytest.mark.parametrize(("envelope", "error"), [
    ({"request_principal": None},                  ErrorCode.principal_deserialization_failure),
    ({"request_principal": b""},                   ErrorCode.principal_deserialization_failure),
    ({"request_principal": b"\0\1" + b"\0" * 9},   ErrorCode.principal_deserialization_failure),
    ({"request_principal": b"\0\0\5User"},         ErrorCode.principal_deserialization_failure),
    ({"request_principal": b"\0\0" + b"\xff" * 9}, ErrorCode.principal_deserialization_failure),
    ({"client_host_address": b""},                 ErrorCode.invalid_request),
    ({"client_host_address": b"12345"},            ErrorCode.invalid_request),
    ({"request_data": b""},                        ErrorCode.unsupported_version),
    ({"request_data": GOOD.request_data[:20]},     ErrorCode.unsupported_version),
    ({"request_data": GOOD.request_data[:-3]},     ErrorCode.unsupported_version),
    ({"request_data": b"\0\x13\0\x63" + GOOD.request_data[4:]}, ErrorCode.unsupported_version),  # CreateTopics v99
    ({"request_data": b"\0\3\0\x09" + GOOD.request_data[4:]},   ErrorCode.invalid_request),      # Metadata
    ({"request_data": b"\0\x3a\0\0" + GOOD.request_data[4:]},   ErrorCode.invalid_request),      # an envelope in it
    ({"request_data": b"\0\x3e\0\0" + GOOD.request_data[4:]},   ErrorCode.invalid_request),      # BrokerRegistration
    ({"request_data": b"\x7f\xff\0\0" + GOOD.request_data[4:]}, ErrorCode.invalid_request),      # no such API
    ({"request_data": b"\0\x13\0\7\0\0\0\1\x7f\xff" + b"x" * 9}, ErrorCode.unsupported_version),  # a long client id
])  # fmt: skip
def test_envelopes_that_make_no_sense(envelope, error):
    async def scenario(client, _):
        answer = await through_an_envelope(client, replace(GOOD, **envelope))
        assert (answer.error_code, answer.response_data) == (error, None)
        # The connection, which others' requests come over, too, is as good as before.
        assert (await through_an_envelope(client, GOOD)).error_code == ErrorCode.none

    ask(scenario)


def test_every_byte_of_an_envelope_may_be_wrong():
    random = Random(5)

    async def scenario(client, _):
        for _ in range(300):
            data, principal = bytearray(GOOD.request_data), bytearray(GOOD.request_principal)
            for part in (data, principal):
                for _ in range(random.randrange(3)):
                    part[random.randrange(len(part))] = random.randrange(256)
            envelope = EnvelopeRequest(
                request_data=bytes(data[: random.randint(0, len(data))] if random.random() < 0.3 else data),
                request_principal=bytes(principal),
                client_host_address=GOOD.client_host_address,
            )
            answer = await through_an_envelope(client, envelope)
            assert (answer.response_data is None) == (answer.error_code != ErrorCode.none)

    ask(scenario)


def test_what_nodes_alone_ask_is_never_forwarded():
    assert {ApiKey.ALLOCATE_PRODUCER_IDS} == NODE_REQUESTS & FORWARDABLE  # as in Kafka


def test_configurations_of_the_node_and_its_loggers():
    async def scenario(client, _):
        wanted = describe_configs.DescribeConfigsRequest(
            resources=[describe_configs.DescribeConfigsResource(resource_type=4, resource_name="1")]
        )
        described = await client.request(ApiKey.DESCRIBE_CONFIGS, 4, wanted)
        assert "node.id" in {row.name for row in described.results[0].configs}
        altered = await client.request(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            1,
            incremental_alter_configs.IncrementalAlterConfigsRequest(
                resources=[
                    _alter(8, "1", "ottla.broker.membership.lifecycle", "ERROR"),
                    _alter(8, "2", "ottla.broker.membership.lifecycle", "ERROR"),
                    _alter(4, "", "log.cleaner.backoff.ms", "777"),
                ]
            ),
        )
        wanted.resources[0].configuration_keys = ["log.cleaner.backoff.ms"]
        return altered, await client.request(ApiKey.DESCRIBE_CONFIGS, 4, wanted)

    before = logging.getLogger("ottla.broker.membership.lifecycle").level
    try:
        answer = ask(scenario)
        assert logging.getLogger("ottla.broker.membership.lifecycle").level == logging.ERROR
    finally:
        logging.getLogger("ottla.broker.membership.lifecycle").setLevel(before)
    altered, described = answer
    assert [row.error_code for row in altered.responses] == [
        ErrorCode.none,
        ErrorCode.invalid_request,
        ErrorCode.none,
    ]
    assert [(row.name, row.value) for row in described.results[0].configs] == [
        ("log.cleaner.backoff.ms", "777")
    ]


@pytest.mark.parametrize(("name", "key", "value", "error"), [
    ("1", "log.cleaner.backoff.ms", "777",        ErrorCode.none),
    ("1", "a.plugins.own.key",      "anything",   ErrorCode.none),
    ("",  "min.insync.replicas",    "two",        ErrorCode.invalid_config),  # the controller goes by it
    ("1", "log.retention.hours",    "abc",        ErrorCode.invalid_config),
    ("1", "cordoned.log.dirs",      "/data/logs", ErrorCode.invalid_config),  # only the broker knows its directories
])  # fmt: skip
def test_requests_that_no_broker_has_validated(name, key, value, error):
    """AlterConfigs and IncrementalAlterConfigs refuse them alike."""

    async def scenario(client, _):
        row = alter_configs.AlterConfigsResource(
            resource_type=4,
            resource_name=name,
            configs=[alter_configs.AlterableConfig(name=key, value=value)],
        )
        replaced = alter_configs.AlterConfigsRequest(resources=[row], validate_only=True)
        altered = incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=[_alter(4, name, key, value)], validate_only=True
        )
        return [
            await client.request(ApiKey.ALTER_CONFIGS, 2, replaced),
            await client.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altered),
        ]

    for answer in ask(scenario):
        ((code, reported),) = {(row.error_code, row.error_message) for row in answer.responses}
        assert (code, bool(reported)) == (error, error is not ErrorCode.none), reported


def _alter(kind, name, key, value):
    return incremental_alter_configs.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[incremental_alter_configs.AlterableConfig(name=key, config_operation=0, value=value)],
    )

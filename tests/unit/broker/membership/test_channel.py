"""The channel to the active controller: it follows the leader of the quorum until a request times out.

About KIP-590.
"""

import asyncio
import logging

import pytest

from ottla.broker.log_lines import OutageLog
from ottla.broker.membership.controller_channel import LeaderWatch, QuorumChannel
from ottla.broker.membership.envelope import unwrap_request, wrap_response
from ottla.broker.network import NetworkServer
from ottla.broker.network.client import NodeClient
from ottla.broker.request_context import RequestContext
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.codec import decode_request, encode_response
from ottla.protocol.errors import (
    ErrorCode,
    NotController,
    RequestTimedOut,
    UnknownServerError,
    UnsupportedVersion,
)
from ottla.protocol.framing import decode_request_header, encode_response_header
from ottla.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.envelope import EnvelopeResponse
from ottla.protocol.steps import at_once
from ottla.runtime.simulated import Simulation

CONTEXT = RequestContext(ApiKey.CREATE_TOPICS, 7, 44, "a-client", "192.0.2.7", "PLAINTEXT", "User:alice")
CREATE = CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)])


class Controller:
    """A node that may be asked; `answers` are taken in turn, the last one stays."""

    def __init__(self, world, node_id):
        self.runtime = world.simulation.runtime(f"c{node_id}")
        self.node_id = node_id
        self.answers = [ErrorCode.none]
        self.asked = []
        self.served = dict(KAFKA_VERSIONS)
        self.server = NetworkServer(self.runtime, self.dispatch)

    async def listen(self):
        await self.server.listen("CONTROLLER", f"c{self.node_id}", 9093)

    def dispatch(self, frame, connection):
        header, body_at = decode_request_header(frame)
        key, version = header.api_key, header.api_version
        message = decode_request(key, version, bytes(frame[body_at:]))
        if key == ApiKey.API_VERSIONS:
            rows = [
                ApiVersion(api_key=each, min_version=versions.start, max_version=versions.stop - 1)
                for each, versions in self.served.items()
            ]
            response = ApiVersionsResponse(api_keys=rows)
        else:
            self.asked.append((key, message))
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if answer is None:
                return self.runtime.loop.create_future()  # never completed
            response = self.respond(key, message, answer)
        return [
            encode_response_header(key, version, header.correlation_id),
            encode_response(key, version, response),
        ]

    def respond(self, key, message, error):
        if key == ApiKey.ENVELOPE:
            if isinstance(error, EnvelopeResponse):
                return error
            if error in (
                ErrorCode.not_controller,
                ErrorCode.cluster_authorization_failed,
                ErrorCode.unsupported_version,
            ):
                return EnvelopeResponse(error_code=error)
            inner = at_once(unwrap_request(message, "CONTROLLER", []))
            assert (inner.context.principal, inner.context.client_host) == ("User:alice", "192.0.2.7")
            encoded = encode_response(inner.header.api_key, inner.header.api_version, _created(error))
            return EnvelopeResponse(response_data=wrap_response(inner.header, encoded))
        if key == ApiKey.CREATE_TOPICS:
            return _created(error)
        return AlterPartitionResponse(error_code=error)


def _created(error):
    return CreateTopicsResponse(topics=[CreatableTopicResult(name="t", error_code=error)])


class World:
    """Broker 1, and the controllers 101 and 102; the test chooses the leader. A `QuorumView`."""

    node_id = 1

    def __init__(self, simulation):
        self.simulation = simulation
        self.runtime = simulation.runtime("broker")
        self.controllers = {each: Controller(self, each) for each in (101, 102)}
        self.leader = (None, 0)
        self.watch = LeaderWatch(self)
        self.local = None
        self.local_asked = []
        #: The controller of this process decides, and its records are not committed.
        self.is_local_silent = False

    def leader_address(self):
        return None if self.leader[0] is None else (f"c{self.leader[0]}", 9093)

    def lead(self, node_id):
        self.leader = (node_id, self.leader[1] + 1)
        self.watch.on_leader(self.leader)

    async def request(self, api_key, message, context=None):
        """Respond as the controller of this process."""
        self.local_asked.append((self.runtime.monotonic(), context))
        if self.is_local_silent:
            await self.runtime.loop.create_future()
        if len(self.local_asked) < 3:
            raise NotController
        return _created(ErrorCode.none)

    def run(self, scenario, *, timeout_ms=10_000, request_timeout_ms=2_000, is_controller=False):
        async def main():
            for controller in self.controllers.values():
                await controller.listen()
            client = NodeClient(self.runtime, client_id="test")
            channel = QuorumChannel(
                runtime=self.runtime,
                leader=self.watch,
                local=self if is_controller else None,
                client=client,
                outages=OutageLog(logging.getLogger("test"), monotonic=self.runtime.monotonic),
                timeout_ms=timeout_ms,
                request_timeout_ms=request_timeout_ms,
            )
            try:
                await scenario(channel)
            finally:
                await client.close()
                for controller in self.controllers.values():
                    await controller.server.stop(grace_s=0)

        self.simulation.run(main())


@pytest.fixture
def world():
    with Simulation(seed=2) as simulation:
        yield World(simulation)


async def create(channel, context=CONTEXT):
    response = await channel.request(ApiKey.CREATE_TOPICS, CREATE, context)
    return response.topics[0].error_code


def test_clients_requests_go_in_envelopes_and_brokers_own_as_they_are(world):
    async def scenario(channel):
        world.lead(101)
        assert await create(channel) == ErrorCode.none
        assert await create(channel, None) == ErrorCode.none
        asked = world.controllers[101].asked
        assert [key for key, _ in asked] == [ApiKey.ENVELOPE, ApiKey.CREATE_TOPICS]
        assert at_once(unwrap_request(asked[0][1], "CONTROLLER", [])).message == asked[1][1]
        assert channel.controller_versions[ApiKey.CREATE_TOPICS] == range(2, 8)

    world.run(scenario)


def test_errors_of_the_request_are_the_clients(world):
    async def scenario(channel):
        world.lead(101)
        world.controllers[101].answers = [ErrorCode.topic_already_exists]
        assert await create(channel) == ErrorCode.topic_already_exists

    world.run(scenario)


@pytest.mark.parametrize("context", [CONTEXT, None], ids=["forwarded", "own"])
def test_no_request_is_sent_to_the_former_controller(world, context):
    async def scenario(channel):
        world.lead(101)
        world.controllers[101].answers = [ErrorCode.not_controller]
        world.runtime.call_later(3, world.lead, 102)
        assert await create(channel, context) == ErrorCode.none
        assert world.runtime.monotonic() < 3.1  # learning of a leader ends the pause
        assert 20 < len(world.controllers[101].asked) < 40
        assert len(world.controllers[102].asked) == 1

    world.run(scenario)


def test_a_row_that_says_not_controller_is_enough(world):
    async def scenario(channel):
        world.lead(101)
        world.controllers[101].answers = [ErrorCode.not_controller, ErrorCode.none]
        assert await create(channel, None) == ErrorCode.none
        request = AlterPartitionRequest(broker_id=1)
        world.controllers[101].answers = [ErrorCode.not_controller, ErrorCode.stale_broker_epoch]
        answer = await channel.request(ApiKey.ALTER_PARTITION, request)
        assert answer.error_code == ErrorCode.stale_broker_epoch

    world.run(scenario)


def test_a_leader_that_crashes(world):
    async def scenario(channel):
        world.lead(101)
        world.controllers[101].answers = [None]
        asking = asyncio.ensure_future(create(channel))
        await asyncio.sleep(1)
        world.simulation.network.crash("c101")
        world.controllers[101].server.connections.clear()  # without a close: the peer does not notice
        await asyncio.sleep(0.5)
        world.lead(102)
        assert await asking == ErrorCode.none
        assert world.runtime.monotonic() < 2

    world.run(scenario)


@pytest.mark.parametrize("is_gone", [False, True], ids=["silent", "gone"])
def test_a_leader_that_has_a_successor_is_not_waited_for(world, is_gone):
    async def scenario(channel):
        world.lead(101)
        world.controllers[101].answers = [None]
        if is_gone:
            world.simulation.network.crash("c101")
        world.runtime.call_later(1, world.lead, None)
        world.runtime.call_later(1.9, world.lead, 102)
        assert await create(channel) == ErrorCode.none
        assert 1.9 <= world.runtime.monotonic() < 1.95

    world.run(scenario)


def test_a_successor_that_comes_in_the_moment_of_asking_is_noticed(world):
    async def scenario(channel):
        world.lead(101)
        world.controllers[101].answers = [None]
        world.runtime.loop.call_soon(world.lead, 102)  # before anything that the request starts has begun
        assert await create(channel) == ErrorCode.none
        assert world.runtime.monotonic() < 0.1

    world.run(scenario)


def test_a_leader_that_does_not_answer_costs_one_attempt(world):
    async def scenario(channel):
        world.lead(101)
        world.controllers[101].answers = [None, ErrorCode.none]
        assert await create(channel) == ErrorCode.none
        assert 2 <= world.runtime.monotonic() < 2.5

    world.run(scenario)


@pytest.mark.parametrize(
    ("leader", "reason"),
    [
        (None, "no leader of the metadata quorum is known"),
        (101, "c101:9093 does not lead the metadata quorum"),
        (999, "c999:9093: .*no listener at c999:9093"),
        (1, "the leader of the metadata quorum has this node's id, 1, and this node is not"),
    ],
    ids=["no leader", "a node that never leads", "a node that is not there", "a node with its id"],
)
@pytest.mark.logs("has not responded for")
def test_the_time_is_over(world, leader, reason):
    """The error names the controller that was asked last, and why it did not answer."""

    async def scenario(channel):
        world.lead(leader)
        world.controllers[101].answers = [ErrorCode.not_controller]
        with pytest.raises(RequestTimedOut, match=f"within 5 s: {reason}"):
            await create(channel)
        assert 4.99 <= world.runtime.monotonic() < 5.3

    world.run(scenario, timeout_ms=5_000)


def test_a_controller_that_cannot_be_reached_is_logged_with_its_address_now_and_then(world, caplog):
    caplog.set_level(logging.INFO)

    async def scenario(channel):
        world.lead(101)
        world.simulation.network.crash("c101")
        world.controllers[101].server.connections.clear()  # without a close: the peer does not notice
        for _ in range(15):
            with pytest.raises(RequestTimedOut):
                await create(channel)
        world.lead(102)
        await create(channel)

    world.run(scenario, timeout_ms=2_000)
    lines = [record.getMessage() for record in caplog.records if "active controller" in record.getMessage()]
    assert len(lines) == 4  # three in half a minute
    assert all(" s: c101:9093: " in line for line in lines[:3])
    assert lines[3] == "the active controller works again, after 30 s"


def test_the_controller_of_this_process_is_waited_for_until_it_is_active(world):
    async def scenario(channel):
        world.lead(world.node_id)
        assert await create(channel) == ErrorCode.none
        assert len(world.local_asked) == 3
        assert world.local_asked[-1][0] < 0.1
        assert channel.controller_versions is None

    world.run(scenario, is_controller=True)


def test_the_controller_of_this_process_has_the_same_time_as_another_one(world):
    """Its records may not be committed: a disk that does not answer, voters that are gone."""

    async def scenario(channel):
        world.is_local_silent = True
        world.lead(world.node_id)
        with pytest.raises(RequestTimedOut, match="within 5 s: the active controller is this node"):
            await asyncio.wait_for(create(channel), 60)
        assert 5 <= world.runtime.monotonic() < 5.3
        assert len(world.local_asked) == 1

    world.run(scenario, timeout_ms=5_000, is_controller=True)


@pytest.mark.parametrize(("error", "raised"), [
    (ErrorCode.unsupported_version,          UnsupportedVersion),
    (ErrorCode.cluster_authorization_failed, UnknownServerError),
    (EnvelopeResponse(response_data=b"\0"),  UnknownServerError),
    (EnvelopeResponse(response_data=None),   UnknownServerError),
])  # fmt: skip
@pytest.mark.logs("refuses an envelope", "returned a malformed response in an envelope")
def test_an_envelope_that_is_answered_with_an_error(world, error, raised):
    async def scenario(channel):
        world.lead(101)
        world.controllers[101].answers = [error]
        with pytest.raises(raised):
            await create(channel)

    world.run(scenario)


def test_an_older_controller_is_asked_in_its_versions(world):
    async def scenario(channel):
        world.lead(101)
        world.controllers[101].served[ApiKey.ALTER_PARTITION] = range(2, 3)
        del world.controllers[101].served[ApiKey.CREATE_TOPICS]
        await channel.request(ApiKey.ALTER_PARTITION, AlterPartitionRequest(broker_id=1))
        with pytest.raises(UnsupportedVersion, match="CREATE_TOPICS not at all"):
            await create(channel, None)

    world.run(scenario)

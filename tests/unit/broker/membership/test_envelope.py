"""Errors are found in forwarded responses, and the quorum's requests reach it."""

import asyncio

import pytest

from ottla.broker.membership.envelope import has_not_controller_error
from ottla.broker.request_context import RequestContext
from ottla.broker.roles.quorum import LocalQuorum
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    alter_configs,
    alter_partition_reassignments,
    create_topics,
    elect_leaders,
    vote,
)

MOVED = ErrorCode.not_controller


def topics(*rows):
    return create_topics.CreateTopicsResponse(topics=list(rows))


@pytest.mark.parametrize(
    "row_class", [create_topics.CreatableTopicResult, alter_configs.AlterConfigsResourceResponse]
)
@pytest.mark.parametrize("codes", [(0, 0), (0, MOVED), (MOVED, 3)])
def test_an_error_in_a_row(row_class, codes):
    rows = [row_class(error_code=code) for code in codes]
    if row_class is create_topics.CreatableTopicResult:
        response = topics(*rows)
    else:
        response = alter_configs.AlterConfigsResponse(responses=rows)
    assert has_not_controller_error(response) is (MOVED in codes)


def test_a_top_level_error():
    assert has_not_controller_error(elect_leaders.ElectLeadersResponse(error_code=MOVED))


@pytest.mark.parametrize("code", [0, MOVED])
def test_an_error_in_a_nested_row(code):
    assigned = alter_partition_reassignments.AlterPartitionReassignmentsResponse(
        responses=[
            alter_partition_reassignments.ReassignableTopicResponse(
                partitions=[alter_partition_reassignments.ReassignablePartitionResponse(error_code=code)]
            )
        ]
    )
    elected = elect_leaders.ElectLeadersResponse(
        replica_election_results=[
            elect_leaders.ReplicaElectionResult(
                partition_result=[elect_leaders.PartitionResult(error_code=code)]
            )
        ]
    )
    assert has_not_controller_error(assigned) is has_not_controller_error(elected) is (code == MOVED)


def test_rows_without_errors_are_not_iterated_over():
    """A topic is answered with all its configurations, thousands of topics with a hundred thousand rows."""

    class Unread(list):
        def __iter__(self):
            raise AssertionError("iterated over")

    row = create_topics.CreatableTopicResult(configs=Unread([create_topics.CreatableTopicConfigs()]))
    assert not has_not_controller_error(topics(row))


def test_the_quorum_gets_the_listener_of_a_request():
    """It answers with the leader's address on that listener; the requester may not reach another one."""

    class Quorum:
        async def handle(self, request, *, listener_name):
            return listener_name

    local = LocalQuorum(None, Quorum())
    context = RequestContext(ApiKey.VOTE, 2, 1, "raft", "127.0.0.1", "SECOND")
    assert asyncio.run(local.request(ApiKey.VOTE, vote.VoteRequest(), context)) == "SECOND"
    assert asyncio.run(local.request(ApiKey.VOTE, vote.VoteRequest())) is None

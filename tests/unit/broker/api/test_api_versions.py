"""The API versions that a broker advertises, and the clients that it sends back to their bootstrap servers."""

from types import SimpleNamespace

import pytest

from ottla.broker.api import modules
from ottla.broker.api.k18_api_versions import handle, served
from ottla.broker.membership.envelope import FORWARDABLE
from ottla.broker.metadata_cache import MetadataCache
from ottla.broker.request_context import RequestContext
from ottla.metadata.image import MetadataImage
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsRequest

OWN = {key: KAFKA_VERSIONS[ApiKey(key)] for key in modules()}
#: A broker without Produce in version 0 would be one without Produce, for some clients.
REPORTED = OWN | {ApiKey.PRODUCE: range(OWN[ApiKey.PRODUCE].stop)}


def reported(controller):
    return {row.api_key: range(row.min_version, row.max_version + 1) for row in served(controller)}


def test_all_own_versions_where_the_controller_is_here():
    assert reported(None) == REPORTED
    assert list(reported(None)) == sorted(OWN)


def test_a_forwarded_api_has_the_versions_that_both_serve():
    theirs = dict(OWN)
    assert reported(theirs) == REPORTED
    newest = OWN[ApiKey.CREATE_TOPICS].stop
    theirs[ApiKey.CREATE_TOPICS] = range(4, newest + 3)
    theirs[ApiKey.DELETE_TOPICS] = range(OWN[ApiKey.DELETE_TOPICS].stop - 1)
    theirs[ApiKey.CREATE_PARTITIONS] = range(100, 101)
    del theirs[ApiKey.ELECT_LEADERS]
    # Not forwarded: what the controller serves does not matter.
    theirs[ApiKey.METADATA] = range(1)
    expected = REPORTED | {
        ApiKey.CREATE_TOPICS: range(4, newest),
        ApiKey.DELETE_TOPICS: OWN[ApiKey.DELETE_TOPICS][:-1],
    }
    del expected[ApiKey.CREATE_PARTITIONS], expected[ApiKey.ELECT_LEADERS]
    assert reported(theirs) == expected
    assert {ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.ELECT_LEADERS} <= FORWARDABLE
    assert reported(None) == REPORTED, "what was kept is unchanged"


# KIP-1242
@pytest.mark.parametrize(("cluster_id", "node_id", "code"), [
    (None,    -1, ErrorCode.none),                   # it does not know yet
    ("here",   7, ErrorCode.none),
    ("here",   8, ErrorCode.rebootstrap_required),   # another node had this address
    ("there",  7, ErrorCode.rebootstrap_required),
    ("",       7, ErrorCode.rebootstrap_required),
    ("here",  -1, ErrorCode.invalid_request),        # both, or none
    (None,     7, ErrorCode.invalid_request),
])  # fmt: skip
def test_a_client_that_reaches_another_node_than_it_means(cluster_id, node_id, code):
    broker = SimpleNamespace(
        cluster_id="here",
        node_id=7,
        metadata=MetadataCache(MetadataImage()),
        controller=SimpleNamespace(controller_versions=None),
        client_metrics=SimpleNamespace(is_advertised=False),
    )
    request = ApiVersionsRequest(
        client_software_name="test", client_software_version="1", cluster_id=cluster_id, node_id=node_id
    )
    context = RequestContext(ApiKey.API_VERSIONS, 5, 1, "test", "127.0.0.1", "PLAINTEXT")
    response = handle(request, context, broker)
    assert response.error_code == code
    assert bool(response.api_keys) == (code == ErrorCode.none)

"""The API versions that a broker advertises."""

from ottla.broker.api import modules
from ottla.broker.api.k18_api_versions import served
from ottla.broker.membership.envelope import FORWARDABLE
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey

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

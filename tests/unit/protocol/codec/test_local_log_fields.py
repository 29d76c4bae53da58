"""The tagged fields of the draft KIP-1303: they round-trip, and take no byte while they are unknown."""

import pytest

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.codec import decode_request, encode_request
from ottla.protocol.local_log import LocalLogState
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    TopicData,
)
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic

_STATE = LocalLogState(
    local_log_start_offset=7, local_log_bytes=2**40, oldest_local_timestamp=1_700_000_000_000
)


def fetch(local_log):
    return FetchRequest(topics=[FetchTopic(topic="", partitions=[FetchPartition(local_log=local_log)])])


def alter_partition(local_log):
    member = BrokerState(broker_id=1, broker_epoch=5, local_log=local_log)
    return AlterPartitionRequest(topics=[TopicData(partitions=[PartitionData(new_isr_with_epochs=[member])])])


@pytest.mark.parametrize(
    ("key", "request_with", "version"),
    [
        *((ApiKey.FETCH, fetch, version) for version in range(13, 19)),
        (ApiKey.ALTER_PARTITION, alter_partition, 3),
    ],
)  # fmt: skip
def test_the_field_round_trips(key, request_with, version):
    message = request_with(_STATE)
    written = encode_request(key, version, message)
    assert decode_request(key, version, written) == message


def test_an_unknown_local_log_is_not_on_the_wire():
    assert (
        len(encode_request(ApiKey.FETCH, 18, fetch(None)))
        < len(encode_request(ApiKey.FETCH, 18, fetch(_STATE))) - 24
    )

"""A message that is encoded in steps has the same bytes as one that is encoded at once."""

from itertools import chain

import pytest
from edge_values import entities_at_the_edges
from golden_messages import sample
from kio_entities import kio_response, kio_versions, to_ours

from ottla.protocol import writer
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.codec import decode_response, encode_response, encode_response_in_steps
from ottla.protocol.messages import response_class
from ottla.protocol.messages.list_groups import ListedGroup, ListGroupsResponse
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.writer import ELEMENTS_OF_STEP, stepwise_writer_of


def at_once(work):
    """The number of steps, and the result."""
    steps = 1
    while True:
        try:
            next(work)
        except StopIteration as done:
            return steps, done.value
        steps += 1


@pytest.mark.parametrize("elements_of_step", [1, 3])
@pytest.mark.parametrize("key", list(ApiKey), ids=lambda key: key.name)
def test_the_same_bytes_for_each_api(key, elements_of_step, monkeypatch):
    monkeypatch.setattr(writer, "ELEMENTS_OF_STEP", elements_of_step)
    cls = response_class(key)
    for version in {cls.__versions__.first, cls.__versions__.last}:
        write = stepwise_writer_of.__wrapped__(cls, version)  # without the cache
        if version in kio_versions(key):
            responses = [to_ours(entity, cls) for entity in entities_at_the_edges(kio_response(key, version))]
        else:
            responses = [sample(key, version, "response", None)]
        for response in responses:
            out = bytearray()
            for _ in write(response, out, []):
                pass
            assert out == encode_response(key, version, response)


@pytest.mark.parametrize(
    ("count", "steps"),
    [(0, 1), (1, 1), (ELEMENTS_OF_STEP, 1), (ELEMENTS_OF_STEP + 1, 2), (3 * ELEMENTS_OF_STEP, 3)],
)
def test_the_elements_of_a_step(count, steps):
    response = ListGroupsResponse(groups=[ListedGroup(group_id=str(number)) for number in range(count)])
    for version in range(6):
        taken, written = at_once(encode_response_in_steps(ApiKey.LIST_GROUPS, version, response, parts := []))
        assert (taken, written) == (steps, encode_response(ApiKey.LIST_GROUPS, version, response))
        assert (len(parts), list(chain(*parts))) == (steps, response.groups)


def test_elements_count_at_any_depth():
    def topic(count):
        rows = [MetadataResponsePartition(partition_index=index, isr_nodes=[1, 2]) for index in range(count)]
        return MetadataResponseTopic(name="t", partitions=rows)

    half = ELEMENTS_OF_STEP // 2
    for counts, steps in (([half - 1] * 2, 1), ([half - 1, half], 2), ([4 * ELEMENTS_OF_STEP], 5)):
        response = MetadataResponse(topics=[topic(count) for count in counts])
        taken, written = at_once(encode_response_in_steps(ApiKey.METADATA, 13, response, []))
        assert taken == steps
        assert decode_response(ApiKey.METADATA, 13, written) == response


def test_what_cannot_be_written_is_a_bug_of_ours_in_any_step():
    rows = [ListedGroup(group_id="g")] * ELEMENTS_OF_STEP
    work = encode_response_in_steps(
        ApiKey.LIST_GROUPS, 5, ListGroupsResponse(groups=[*rows, ListedGroup(group_id=None)]), []
    )
    next(work)
    with pytest.raises(ValueError, match="ListGroupsResponse v5 cannot be written"):
        next(work)

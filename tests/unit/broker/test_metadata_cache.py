"""The node's image: what does not fit into it ends the node, since its controller would decide on it."""

from uuid import UUID

import pytest

from ottla.broker.metadata_cache import MetadataCache
from ottla.metadata.image import InvalidMetadata, MetadataImage
from ottla.metadata.records import MetadataRecord, PartitionRecord, RemoveTopicRecord, TopicRecord

TOPIC = TopicRecord(name="t", topic_id=UUID(int=77))


def test_a_batch_is_replayed_and_listeners_are_notified():
    cache = MetadataCache(MetadataImage())
    reported = []
    cache.on_change(lambda delta, image: reported.append((delta.topics_created, set(image.topics_by_name))))
    cache.on_commit([TOPIC], 4, 5)
    assert reported == [({TOPIC.topic_id}, {"t"})]
    assert cache.last_applied_offset == 4


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (RemoveTopicRecord(topic_id=UUID(int=78)), "which does not exist"),
        (PartitionRecord(topic_id=TOPIC.topic_id, replicas=7), "int"),  # a bug, wherever it is
        (MetadataRecord(), "cannot be replayed"),
    ],
)
def test_what_cannot_be_replayed_is_no_listeners_private_trouble(record: MetadataRecord, said: str):
    cache = MetadataCache(MetadataImage())
    reported = []
    cache.on_change(lambda *change: reported.append(change))
    with pytest.raises(InvalidMetadata, match=f"batch at offset 4: .*{said}"):
        cache.on_commit([TOPIC, record], 4, 6)
    assert not reported
    assert cache.last_applied_offset == -1

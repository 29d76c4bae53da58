"""Bugs planted into consumer groups; see `cluster_mutants`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from ottla.broker.groups.cleanup import Cleanup
from ottla.broker.groups.group import ClassicGroup
from ottla.broker.groups.offset_manager import OffsetManager
from ottla.broker.groups.offsets import CommittedOffset
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.offset_commit import OffsetCommitRequest


@contextmanager
def offsets_outlive_their_topic() -> Iterator[None]:
    """The offset of a deleted topic is one of the next topic of its name, unless a tombstone is in the log
    (as in Kafka).
    """
    with (
        patch.object(CommittedOffset, "is_for", lambda self, topic_id: True),
        patch.object(Cleanup, "delete_lost_topics", lambda self: iter(())),
    ):
        yield


@contextmanager
def commits_are_not_fenced() -> Iterator[None]:
    """A coordinator accepts a commit whatever member and generation it names."""
    commit = OffsetManager.commit

    def careless(
        self: OffsetManager, group: ClassicGroup | None, request: OffsetCommitRequest, **options: Any
    ) -> Any:
        try:
            return commit(self, group, request, **options)
        except KafkaError:
            request.generation_id_or_member_epoch = -1
            return commit(self, None, request, **options)

    with patch.object(OffsetManager, "commit", careless):
        yield

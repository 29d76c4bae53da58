"""A bug that blackouts find; see `cluster_mutants`."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from ottla.remote.topic_metadata.settings import TopicSettings


@contextmanager
def metadata_of_copies_are_not_flushed() -> Iterator[None]:
    """`__remote_log_metadata` is created without `flush.messages`, as Kafka does."""
    configs = TopicSettings.configs.fget
    assert configs is not None

    def unflushed(self: TopicSettings) -> dict[str, str]:
        return {name: value for name, value in configs(self).items() if name != "flush.messages"}

    with patch.object(TopicSettings, "configs", property(unflushed)):
        yield

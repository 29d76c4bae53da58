"""Bugs planted into what configurations decide; see `cluster_mutants`."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from ottla.config.log_config import LogConfig


@contextmanager
def a_compacted_default_ends_tiering() -> Iterator[None]:
    """A topic whose effective cleanup.policy has `compact` is not tiered, so that its log begins with
    its local part.
    """
    with (
        patch.object(LogConfig, "is_compacted", property(lambda config: "compact" in config.cleanup_policy)),
        patch.object(
            LogConfig,
            "is_tiered",
            property(lambda config: config.remote_storage_enable and "compact" not in config.cleanup_policy),
        ),
    ):
        yield


@contextmanager
def total_retention_without_delete() -> Iterator[None]:
    """`retention.ms` and `retention.bytes` delete copies whatever cleanup.policy is."""
    with (
        patch.object(LogConfig, "total_retention_ms", property(lambda config: config.retention_ms)),
        patch.object(LogConfig, "total_retention_bytes", property(lambda config: config.retention_bytes)),
    ):
        yield

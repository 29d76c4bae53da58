"""A bug that is planted into elections: the rule that KIP-966 replaced."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from ottla.controller.partitions import partition_change


@contextmanager
def no_eligible_leader_replicas() -> Iterator[None]:
    """A replica that leaves the ISR is not eligible, though nothing can have been committed without it."""
    with patch.object(partition_change, "_target_elr", lambda *_: ()):
        yield

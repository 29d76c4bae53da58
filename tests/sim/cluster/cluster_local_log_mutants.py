"""A bug planted into the reports of local logs (draft KIP-1303); see `cluster_mutants`."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from ottla.broker.replicas.partition import Partition


@contextmanager
def local_retention_changes_no_row() -> Iterator[None]:
    """Report local logs only after a change of the log start offset, as before draft KIP-1303."""

    def notice_retention(self: Partition) -> bool:
        if self.log.log_start_offset == self._notified_log_start_offset:
            return False
        self.notify()
        return True

    with patch.object(Partition, "notice_retention", notice_retention):
        yield

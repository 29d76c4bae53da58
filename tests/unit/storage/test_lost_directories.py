"""A broker that starts without one of its disks: it serves what is there, and claims nothing for what is not."""

from random import Random
from uuid import UUID

import pytest

from ottla.storage.files import Files
from ottla.storage.manager.log_manager import InconsistentMetaProperties, LogManager
from tests.unit.storage.storage_support import NOW_MS


def open_logs(*paths, node_id=1):
    random = Random(1)
    return LogManager.open(
        paths,
        files=Files(),
        cluster_id="c",
        node_id=node_id,
        directory_id=lambda: UUID(int=random.getrandbits(128), version=4),
        random=random,
        now_ms=NOW_MS,
    )


@pytest.mark.logs("cannot be used")
def test_a_shutdown_is_not_clean_if_a_disk_is_missing_at_the_start(tmp_path):
    """Its replicas there would stay eligible (KIP-966), and be empty when they are created elsewhere."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    open_logs(good, bad).shutdown(NOW_MS, broker_epoch=7)
    bad.rename(tmp_path / "away")
    bad.write_text("no directory")
    started = open_logs(good, bad)
    assert list(started.offline_dirs) == [bad]
    assert list(started.directory_ids) == [good]
    assert started.previous_broker_epoch is None
    started.shutdown(NOW_MS, broker_epoch=8)

    bad.unlink()
    (tmp_path / "away").rename(bad)
    again = open_logs(good, bad)
    assert again.previous_broker_epoch is None  # they do not say the same
    again.shutdown(NOW_MS, broker_epoch=9)
    assert open_logs(good, bad).previous_broker_epoch == 9


def test_directories_that_are_refused_together_stay_clean(tmp_path):
    mine, others = tmp_path / "mine", tmp_path / "others"
    open_logs(mine).shutdown(NOW_MS, broker_epoch=7)
    open_logs(others, node_id=2).shutdown(NOW_MS, broker_epoch=8)
    with pytest.raises(InconsistentMetaProperties, match="belongs to node 2"):
        open_logs(mine, others)
    again = open_logs(mine)
    assert (again.was_clean, again.previous_broker_epoch) == (True, 7)

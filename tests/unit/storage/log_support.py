"""Appends to a log, and its files, for the tests of storage/log.py."""

from ottla.storage.log import AppendOrigin
from tests.unit.storage.storage_support import NOW_MS, batch, marker


def fill(log, count, *, records=2, leader_epoch=0, **fields):
    return [
        log.append_as_leader(batch(records, **fields), leader_epoch=leader_epoch, now_ms=NOW_MS)
        for _ in range(count)
    ]


def names(log):
    return sorted(path.name for path in log.directory.iterdir())


def transact(log, producer_id, sequence=0):
    log.append_as_leader(
        batch(1, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True),
        leader_epoch=0,
        now_ms=NOW_MS,
    )


def end(log, producer_id, *, commit):
    log.append_as_leader(
        marker(producer_id=producer_id, commit=commit),
        leader_epoch=0,
        now_ms=NOW_MS,
        origin=AppendOrigin.COORDINATOR,
    )

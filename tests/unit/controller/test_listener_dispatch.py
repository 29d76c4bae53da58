"""Listeners are notified of committed batches in turns of the event loop, each batch in one of them.

About KIP-595.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from controller_shell import Follower, Shell

from ottla.controller.metadata_log.new_batches import batches_of
from ottla.controller.quorum.listener_dispatch import ListenerDispatcher
from ottla.controller.quorum.listeners import Listeners
from ottla.metadata import records as r

RECORDS_COUNT = 300


class Watching(Follower):
    """Counts the turns of the loop that its notifications come in."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = 0
        self.turns: set[int] = set()

    def on_commit(self, records: Sequence[r.MetadataRecord], base_offset: int, end_offset: int) -> None:
        super().on_commit(records, base_offset, end_offset)
        self.turns.add(self.turn)

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.turn += 1


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize(
    ("records_of_batch", "steps_of_turn", "turns"),
    [(1, 1, 3), (30, 1, 3), (100, 1, 3), (300, 1, 1), (1, 100, 1)],
)
async def test_many_batches_take_several_turns(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    in_memory: bool,
    records_of_batch: int,
    steps_of_turn: int,
    turns: int,
):
    """A step has several small batches: a busy loop, whose turns are long, would let Raft wait for each of them."""
    monkeypatch.setattr("ottla.runtime.turns.MAX_STEPS", steps_of_turn)
    shell = Shell(tmp_path)
    await shell.start()
    log, start_offset = shell.quorum._log, shell.quorum.end_offset
    listeners, follower = Listeners(), Watching()
    listeners.add(follower)
    dispatcher = ListenerDispatcher(log, listeners, node_id=1, epoch_start_offset=lambda: 0, runtime=shell)
    await dispatcher.dispatch_committed(start_offset)
    (batch,) = batches_of([r.NoOpRecord()] * records_of_batch, metadata_version=30)
    for _ in range(RECORDS_COUNT // records_of_batch):
        appended = log.append(batch, epoch=log.last_epoch, now_ms=1)
        if in_memory:
            dispatcher.appended(appended)
    follower.turns.clear()
    watching = asyncio.ensure_future(follower.watch())
    await asyncio.sleep(0)
    await dispatcher.dispatch_committed(log.end_offset)
    watching.cancel()
    assert follower.end_offset == log.end_offset == start_offset + RECORDS_COUNT
    assert len(follower.turns) == turns
    await shell.stop()

"""Restoring of groups from the replayed records of a partition, when the replay has reached the log end.

Source: GroupCoordinatorShard.onLoaded and GroupMetadataManager.onLoaded of Kafka 4.3.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Final

from ottla.broker.groups.config import GroupConfig
from ottla.broker.groups.group import ClassicGroup
from ottla.broker.groups.group_metadata import group_from_value
from ottla.broker.groups.log_state import LogState
from ottla.broker.groups.shard import Shard
from ottla.protocol.coordinator.record_codec import UnknownRecordKind, decode_group
from ottla.protocol.errors import MalformedMessage
from ottla.runtime import Pool, Runtime
from ottla.runtime.turns import in_turns

logger = logging.getLogger(__name__)

#: A group with a larger record is decoded in a thread: thousands of members take tens of milliseconds.
_LARGE_RECORD_BYTES: Final = 32 * 1024


async def restore_groups(
    shard: Shard, state: LogState, *, config: GroupConfig, runtime: Runtime, is_wanted: Callable[[], bool]
) -> None:
    """Fill `shard` with the groups of `state`. Stops early, after any group, when `is_wanted` becomes False.

    A group whose record cannot be decoded is skipped with a warning.
    """
    large: dict[str, bytes] = {}

    def small_groups() -> Iterator[None]:
        for group_id, value in list(state.groups.items()):
            if not is_wanted():
                return
            if len(value) > _LARGE_RECORD_BYTES:
                large[group_id] = value
            else:
                _add(shard, _build(state, group_id, value, config))
            yield

    await in_turns(runtime, small_groups())
    for group_id, value in large.items():
        if is_wanted():
            group = await runtime.run_blocking(_build, state, group_id, value, config, pool=Pool.LOADING)
            _add(shard, group)
    await in_turns(runtime, _groups_of_offsets(shard, state, now_ms=runtime.now_ms(), is_wanted=is_wanted))


def _build(state: LogState, group_id: str, value: bytes, config: GroupConfig) -> ClassicGroup | None:
    try:
        return group_from_value(group_id, decode_group(value), config)
    except (UnknownRecordKind, MalformedMessage) as error:
        logger.warning(
            "%s: group %s is skipped, its record cannot be decoded: %s",
            state.topic_partition,
            group_id,
            error,
        )
        return None


def _add(shard: Shard, group: ClassicGroup | None) -> None:
    if group is not None:
        shard.groups[group.group_id] = group


def _groups_of_offsets(
    shard: Shard, state: LogState, *, now_ms: int, is_wanted: Callable[[], bool]
) -> Iterator[None]:
    """Create a group without members for offsets without a group, as consumers with manual assignment commit them."""
    for group_id in state.offsets.group_ids:
        if not is_wanted():
            return
        if group_id not in shard.groups:
            shard.new_group(group_id, now_ms=now_ms)
        yield

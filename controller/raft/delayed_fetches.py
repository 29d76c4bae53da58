"""Delayed Fetches, on the leader: a Fetch without new data is answered when there is some, or at its deadline.

    Fetch --no new data--> delayed --the log has grown, or the high watermark has advanced--> answered
                               --`max_wait_ms` is over--> answered, without records
                               --this node does not lead any more--> NOT_LEADER_OR_FOLLOWER

Source: KafkaRaftClient (fetchPurgatory), ThresholdPurgatory of Kafka 4.3.1.
"""

from collections.abc import Sequence
from typing import Final

from ottla.controller.raft import fetch_responses
from ottla.controller.raft.core import Core, DelayedFetch
from ottla.controller.raft.messages import fetch_response, only_partition
from ottla.controller.raft.roles import Leader
from ottla.protocol.error_code import ErrorCode

#: Limit of delayed Fetches, each of another connection: one more is answered at once, and its sender fetches again.
#: Kafka's purgatory has no limit of its own; there the connections bound it.
MAX_DELAYED_FETCHES: Final = 10_000


def delay(core: Core, fetch: DelayedFetch) -> bool:
    """Delay a Fetch; False if there are too many already."""
    assert isinstance(core.role, Leader), core.role
    if len(core.delayed_fetches) >= MAX_DELAYED_FETCHES:
        return False
    core.delayed_fetches.append(fetch)
    return True


def complete_before(core: Core, end_offset: int) -> None:
    """Complete the Fetches at offsets before `end_offset`: there are records for them."""
    _complete(core, [each for each in core.delayed_fetches if each.fetch_offset < end_offset])


def complete_all(core: Core) -> None:
    """Complete all delayed Fetches: the high watermark has advanced (KIP-1166)."""
    _complete(core, list(core.delayed_fetches))


def expire(core: Core) -> None:
    """Complete the Fetches whose `max_wait_ms` is over."""
    _complete(core, [each for each in core.delayed_fetches if each.deadline_ms <= core.now_ms])


def refuse_all(core: Core) -> None:
    """Refuse all delayed fetches with NOT_LEADER_OR_FOLLOWER, since this node has stopped leading."""
    delayed, core.delayed_fetches = core.delayed_fetches, []
    for each in delayed:
        row = fetch_responses.error_row(core, ErrorCode.not_leader_or_follower)
        core.reply(each.token, fetch_response(core, row, listener_name=each.listener_name))


def _complete(core: Core, fetches: Sequence[DelayedFetch]) -> None:
    """Answer these Fetches; the progress of their replicas was updated when they arrived."""
    role = core.role
    if not fetches or not isinstance(role, Leader):
        return
    completed = {id(each) for each in fetches}
    core.delayed_fetches = [each for each in core.delayed_fetches if id(each) not in completed]
    for each in fetches:
        asked = only_partition(each.request.topics)
        assert asked is not None, each
        validation = fetch_responses.validate(core, asked)
        row = fetch_responses.partition_row(core, role, validation, asked, max_bytes=each.request.max_bytes)
        core.reply(each.token, fetch_response(core, row, listener_name=each.listener_name))

"""Delayed JoinGroup and SyncGroup: responses that wait for other members of the group.

    join, sync --the group returns the waiter at once--> the response
               --else----------------------------------> a future of it: the response is sent in a later turn
    waiting    --AnswerJoin, AnswerSync-----------------> completed
               --its connection is closed---------------> cancelled; the group still returns the waiter

The group's state machine is the condition, and its timers are the deadline: no purgatory watches the operation. It
belongs to one leadership of the offsets partition: a shard that is closed completes the waiters of all its groups with
NOT_COORDINATOR.

Source: awaitingJoinFuture and awaitingSyncFuture of Kafka's ClassicGroupMember.
"""

from asyncio import AbstractEventLoop
from typing import TypeVar

from ottla.broker.groups.answers import Answer
from ottla.broker.replicas.waiting.delayed_response import DelayedResponse

T = TypeVar("T")


class DelayedGroupResponse(DelayedResponse[T]):
    """The waiter of one JoinGroup or SyncGroup. Invariant: a group returns it exactly once."""

    __slots__ = ("_response",)

    def __init__(self, loop: AbstractEventLoop) -> None:
        super().__init__(loop)
        self._response: T | None = None

    def complete_with(self, response: T) -> None:
        """Complete the waiter with the response that the group returns for it."""
        assert self._response is None, "a group returns each waiter once"
        self._response = response
        self.force_complete()

    def answer(self) -> Answer[T]:
        """The response if the group has returned the waiter; else a future of it."""
        return self.as_future() if self._response is None else self._response

    def can_complete(self) -> bool:
        """Whether the group has returned the waiter."""
        return self._response is not None

    def respond(self) -> T:
        """Return the response that the group has returned for this waiter."""
        assert self._response is not None
        return self._response

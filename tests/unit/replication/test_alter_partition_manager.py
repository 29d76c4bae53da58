"""AlterPartition from the broker's side: batches, one request at a time, and what each answer means."""

import asyncio
from types import SimpleNamespace

import pytest

from broker.replicas.alter_partition_manager import AlterPartitionManager
from broker.replicas.topic_stats import TopicStats
from broker.replication.leader_state import LeaderState
from protocol.errors import ErrorCode, RequestTimedOut
from protocol.messages.alter_partition import (
    AlterPartitionResponse,
    PartitionDataResponse,
    TopicData,
    TopicDataResponse,
)
from protocol.types import TopicPartition
from tests.harness.replicas import TOPIC_ID, turns


class Led:
    """A partition as far as ISR changes are concerned."""

    topic_id = TOPIC_ID
    partition_epoch = 7

    def __init__(self, index: int) -> None:
        self.topic_partition = TopicPartition("orders", index)
        state = LeaderState(
            node_id=1, epoch=3, start_offset=0, replicas=(1, 2, 3), isr=(1, 2, 3),
            is_isr_eligible=lambda broker, epoch: True, max_lag_ms=1_000, now_ms=0,
        )  # fmt: skip
        state.followers[2].broker_epoch = 22
        state.propose(frozenset({1, 2}))
        self.leader = SimpleNamespace(state=state)
        self.answers: list[object] = []
        self.stats = TopicStats()

    def __str__(self) -> str:
        return str(self.topic_partition)

    def on_isr_refused(self, *, leader_epoch):
        self.answers.append("refused")
        self.leader.state.withdraw()


class Channel:
    """A controller that answers with what it is given; asked for more, it never answers."""

    def __init__(self) -> None:
        self.requests: list[object] = []
        self.answers: asyncio.Queue[object] = asyncio.Queue()

    async def request(self, api_key, message, context=None):
        self.requests.append(message)
        answer = await self.answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer


def answer(*codes: ErrorCode) -> AlterPartitionResponse:
    """A row for each partition from 0 on; granted ones as proposed."""
    return AlterPartitionResponse(
        topics=[
            TopicDataResponse(
                topic_id=TOPIC_ID,
                partitions=[
                    PartitionDataResponse(
                        partition_index=index,
                        error_code=code,
                        leader_id=1,
                        leader_epoch=3,
                        isr=[1, 2],
                        partition_epoch=8,
                    )
                    for index, code in enumerate(codes)
                ],
            )
        ]
    )


def play(simulation, story):
    runtime = simulation.runtime("broker1")
    channel = Channel()
    changes = AlterPartitionManager(runtime=runtime, controller=channel, node_id=1, broker_epoch=lambda: 11)

    async def whole():
        await story(changes, channel)
        if changes._asking is not None:
            changes._asking.cancel()

    simulation.run(whole())


def rows(message) -> list[TopicData]:
    return [row for topic in message.topics for row in topic.partitions]


def test_what_is_asked(simulation):
    async def story(changes, channel):
        changes.submit(Led(0))
        await turns()
        (message,) = channel.requests
        (row,) = rows(message)
        assert (message.broker_id, message.broker_epoch) == (1, 11)
        assert (row.partition_index, row.leader_epoch, row.partition_epoch) == (0, 3, 7)
        assert [(it.broker_id, it.broker_epoch) for it in row.new_isr_with_epochs] == [(1, 11), (2, 22)]
        assert row.new_isr == [1, 2]

    play(simulation, story)


def test_one_request_at_a_time_with_all_that_has_come_up(simulation):
    async def story(changes, channel):
        led = [Led(index) for index in range(4)]
        changes.submit(led[0])
        await turns()
        for partition in led[1:]:
            changes.submit(partition)
        await turns()
        assert len(channel.requests) == 1
        channel.answers.put_nowait(answer(ErrorCode.none))
        await turns()
        assert [row.partition_index for row in rows(channel.requests[1])] == [1, 2, 3]

    play(simulation, story)


# KIP-497
@pytest.mark.parametrize(("code", "outcome", "is_asked_again"), [
    # It holds when the metadata log says so, and is proposed until then.
    (ErrorCode.none,                            [],               False),
    # The ISR is what it was.
    (ErrorCode.operation_not_attempted,         ["refused"],      False),
    (ErrorCode.ineligible_replica,              ["refused"],      False),
    # The metadata log will deliver the present state.
    (ErrorCode.unknown_topic_or_partition,      [],               False),
    (ErrorCode.unknown_topic_id,                [],               False),
    (ErrorCode.fenced_leader_epoch,             [],               False),
    (ErrorCode.invalid_update_version,          [],               False),
    (ErrorCode.invalid_request,                 [],               False),
    (ErrorCode.new_leader_elected,              [],               False),
    # May pass.
    (ErrorCode.unknown_server_error,            [],               True),
    (ErrorCode.request_timed_out,               [],               True),
    (ErrorCode.not_controller,                  [],               True),
])  # fmt: skip
def test_error_codes_of_a_response(simulation, code, outcome, is_asked_again):
    async def story(changes, channel):
        asked, granted = Led(0), Led(1)
        changes.submit(asked)
        changes.submit(granted)
        await turns()
        channel.answers.put_nowait(answer(code, ErrorCode.none))
        await asyncio.sleep(1)
        assert asked.answers == outcome
        assert granted.answers == []
        assert granted.leader.state.proposed_isr == {1, 2}
        assert [[row.partition_index for row in rows(it)] for it in channel.requests[1:]] == (
            [[0]] if is_asked_again else []
        )

    play(simulation, story)


@pytest.mark.parametrize("failure", [
    RequestTimedOut("no controller"),
    ConnectionResetError("gone"),
    TimeoutError(),
    AlterPartitionResponse(error_code=ErrorCode.stale_broker_epoch),
    AlterPartitionResponse(error_code=ErrorCode.not_controller),
    AlterPartitionResponse(),  # without the row that was asked for
])  # fmt: skip
@pytest.mark.logs("AlterPartition was refused, it is retried", "partitions failed, it is retried")
def test_a_request_that_failed_is_sent_again(simulation, failure):
    async def story(changes, channel):
        led = Led(0)
        changes.submit(led)
        await turns()
        channel.answers.put_nowait(failure)
        await asyncio.sleep(1)
        assert len(channel.requests) == 2
        channel.answers.put_nowait(answer(ErrorCode.none))
        await asyncio.sleep(1)
        assert len(channel.requests) == 2

    play(simulation, story)


@pytest.mark.logs("partitions failed, it is retried")
def test_a_former_leader_sends_no_requests(simulation):
    async def story(changes, channel):
        led, resigned = Led(0), Led(1)
        changes.submit(led)
        await turns()
        changes.submit(resigned)
        resigned.leader = None
        channel.answers.put_nowait(RequestTimedOut("no controller"))
        await asyncio.sleep(1)
        assert [row.partition_index for row in rows(channel.requests[1])] == [0]
        led.leader.state.withdraw()  # the metadata log has said what holds
        channel.answers.put_nowait(RequestTimedOut("no controller"))
        await asyncio.sleep(1)
        assert len(channel.requests) == 2

    play(simulation, story)


@pytest.mark.logs("failed; it is started again in")
def test_a_change_is_asked_for_again_when_the_task_that_asks_has_failed(simulation):
    """Else the partition's ISR stays proposed, and it proposes no other one as long as the broker runs."""
    first, second = Led(0), Led(1)

    async def story(changes, channel):
        changes.submit(first)
        await turns()
        channel.answers.put_nowait(ValueError("a bug"))
        await turns()
        changes.submit(second)
        await asyncio.sleep(0.2)
        assert [row.partition_index for row in rows(channel.requests[-1])] == [0, 1]
        channel.answers.put_nowait(answer(ErrorCode.none, ErrorCode.ineligible_replica))
        await turns()
        assert second.answers == ["refused"]
        assert [str(each) for each in simulation.failures] == ["a bug"]
        simulation.failures.clear()

    play(simulation, story)

"""AlterPartition from the broker's side: batches, one request at a time, and what each answer means."""

import asyncio

import pytest

from ottla.broker.replicas.leading.alter_partition_manager import AlterPartitionManager
from ottla.broker.replicas.topic_stats import TopicStats
from ottla.protocol.errors import ErrorCode, RequestTimedOut
from ottla.protocol.local_log import LocalLog
from ottla.protocol.messages.alter_partition import (
    AlterPartitionResponse,
    PartitionDataResponse,
    TopicData,
    TopicDataResponse,
)
from ottla.protocol.types import TopicPartition
from ottla.replication.leader_state import LeaderState
from ottla.stories.partition.replicas import TOPIC_ID, turns


class Leader:
    """The leader's part, as far as ISR changes and reports are concerned; elections ask for local logs."""

    def __init__(self, state: LeaderState) -> None:
        self.state = state
        #: By replica.
        self.known: dict[int, LocalLog] = {}

    def local_logs(self):
        return {replica: self.known[replica] for replica in self.state.isr if replica in self.known}

    def is_report_due(self):
        if self.state.proposed_isr is not None:
            return False
        return self.state.reports.is_due(self.local_logs(), eligible_bytes=None)


class Led:
    """A partition as far as ISR changes are concerned; unless it `is_proposing`, its ISR is (1, 2, 3)."""

    topic_id = TOPIC_ID
    partition_epoch = 7

    def __init__(self, index: int, *, is_proposing: bool = True) -> None:
        self.topic_partition = TopicPartition("orders", index)
        state = LeaderState(
            node_id=1, epoch=3, start_offset=0, replicas=(1, 2, 3), isr=(1, 2, 3), local_logs={},
            is_isr_eligible=lambda broker, epoch: True, max_lag_ms=1_000, now_ms=0,
        )  # fmt: skip
        state.followers[2].broker_epoch = 22
        if is_proposing:
            state.propose(frozenset({1, 2}))
        self.leader = Leader(state)
        self.answers: list[object] = []
        self.stats = TopicStats()

    def __str__(self) -> str:
        return str(self.topic_partition)

    def starts_at(self, **starts: int) -> None:
        """Local log starts, as `r1=...`."""
        self.leader.known |= {int(name[1:]): LocalLog(start, 0, None) for name, start in starts.items()}

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
    """Otherwise the partition's ISR would stay proposed, and no other one be proposed as long as the broker
    runs."""
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


# -- reports of local logs (draft KIP-1303) --------------------------------------------------------


def starts(row) -> dict[int, int | None]:
    """The local log starts in a row of a request."""
    return {
        it.broker_id: None if it.local_log is None else it.local_log.local_log_start_offset
        for it in row.new_isr_with_epochs
    }


def reporting(index: int, **values: int) -> Led:
    led = Led(index, is_proposing=False)
    led.starts_at(**values)
    return led


def test_reports_of_a_second_are_one_request(simulation):
    async def story(changes, channel):
        led = [reporting(index, r1=10, r3=index) for index in range(3)]
        for partition in led:
            changes.report(partition)
            await asyncio.sleep(0.3)
        assert channel.requests == []
        led[1].starts_at(r1=20)  # while reports are collected
        await asyncio.sleep(0.2)
        (message,) = channel.requests
        assert [(row.partition_index, starts(row)) for row in rows(message)] == [
            (0, {1: 10, 2: None, 3: 0}),
            (1, {1: 20, 2: None, 3: 1}),
            (2, {1: 10, 2: None, 3: 2}),
        ]
        (row, *_) = rows(message)
        # The committed ISR, with the broker epochs of the last fetches.
        assert [(it.broker_id, it.broker_epoch) for it in row.new_isr_with_epochs] == [
            (1, 11), (2, 22), (3, -1)
        ]  # fmt: skip
        assert (row.partition_epoch, row.leader_epoch) == (7, 3)

    play(simulation, story)


def test_a_report_that_is_not_due_any_more_is_not_sent(simulation):
    async def story(changes, channel):
        shown, resigned, quiet = reporting(0, r1=5), reporting(1, r1=5), reporting(2)
        for partition in (shown, resigned, quiet):
            changes.report(partition)
        shown.leader.state.update(replicas=(1, 2, 3), isr=(1, 2, 3), local_logs={1: LocalLog(5, 0, None)})
        resigned.leader = None
        await asyncio.sleep(3)
        assert channel.requests == []

    play(simulation, story)


def test_an_isr_change_goes_first_and_takes_its_report_along(simulation):
    async def story(changes, channel):
        both, reports = reporting(0, r1=5, r2=6), reporting(1, r1=5)
        changes.report(both)
        changes.report(reports)
        await asyncio.sleep(0.99)
        both.leader.state.propose(frozenset({1, 2}))
        changes.submit(both)
        await asyncio.sleep(0.02)
        assert [[(row.partition_index, starts(row)) for row in rows(it)] for it in channel.requests] == [
            [(0, {1: 5, 2: 6})]
        ]
        channel.answers.put_nowait(answer(ErrorCode.none))
        await turns()
        assert [[row.partition_index for row in rows(it)] for it in channel.requests[1:]] == [[1]]

    play(simulation, story)


def test_a_report_in_flight_does_not_decide_an_isr_change(simulation):
    async def story(changes, channel):
        led = reporting(0, r1=5)
        changes.report(led)
        await asyncio.sleep(1)
        await turns()
        led.leader.state.propose(frozenset({1, 2}))
        changes.submit(led)
        channel.answers.put_nowait(answer(ErrorCode.operation_not_attempted))
        await turns()
        assert led.answers == []
        assert led.leader.state.proposed_isr == {1, 2}
        assert [starts(row) for it in channel.requests for row in rows(it)] == [
            {1: 5, 2: None, 3: None},
            {1: 5, 2: None},
        ]

    play(simulation, story)


@pytest.mark.parametrize(("outcome", "sent_again"), [
    # The metadata log will show it; a controller without the field never does.
    (ErrorCode.none, 0),
    # The metadata log has more, or the leader's next check of the ISR asks again.
    (ErrorCode.invalid_update_version, 0),
    (ErrorCode.fenced_leader_epoch, 0),
    (ErrorCode.ineligible_replica, 0),
    # May pass: with the reports of the next seconds.
    (ErrorCode.not_controller, 3),
    (ErrorCode.unknown_server_error, 3),
    (RequestTimedOut("no controller"), 3),
    (AlterPartitionResponse(error_code=ErrorCode.stale_broker_epoch), 3),
    (AlterPartitionResponse(), 3),
])  # fmt: skip
@pytest.mark.logs("AlterPartition was refused, it is retried", "partitions failed, it is retried")
def test_outcomes_of_a_report(simulation, outcome, sent_again):
    async def story(changes, channel):
        led = reporting(0, r1=5)
        changes.report(led)
        for _ in range(10):
            channel.answers.put_nowait(answer(outcome) if isinstance(outcome, ErrorCode) else outcome)
        await asyncio.sleep(4.5)
        assert len(channel.requests) == 1 + sent_again
        assert led.answers == []
        # The next value is reported as soon as the controller has answered the last one.
        led.leader.state.update(replicas=(1, 2, 3), isr=(1, 2, 3), local_logs={})
        led.starts_at(r1=6)
        changes.report(led)
        await asyncio.sleep(1.1)
        assert starts(rows(channel.requests[-1])[0])[1] == 6

    play(simulation, story)


def test_a_value_that_changes_while_its_report_is_in_flight_is_reported_afterwards(simulation):
    async def story(changes, channel):
        led = reporting(0, r1=5)
        changes.report(led)
        await asyncio.sleep(1)
        await turns()
        led.starts_at(r1=6)
        changes.report(led)
        await asyncio.sleep(5)
        assert len(channel.requests) == 1
        channel.answers.put_nowait(answer(ErrorCode.none))
        await asyncio.sleep(1.1)
        assert [starts(row)[1] for it in channel.requests for row in rows(it)] == [5, 6]

    play(simulation, story)


@pytest.mark.logs("failed; it is started again in")
def test_a_report_is_sent_again_when_the_task_that_sends_it_has_failed(simulation):
    async def story(changes, channel):
        led = reporting(0, r1=5)
        changes.report(led)
        channel.answers.put_nowait(ValueError("a bug"))
        await asyncio.sleep(2.2)
        assert len(channel.requests) == 2
        simulation.failures.clear()

    play(simulation, story)


def test_a_request_has_a_bounded_number_of_reports(simulation):
    async def story(changes, channel):
        for index in range(1_200):
            changes.report(reporting(index, r1=5))
        for _ in range(3):
            channel.answers.put_nowait(answer(*[ErrorCode.none] * 1_200))
        await asyncio.sleep(1.1)
        assert [len(rows(it)) for it in channel.requests] == [500, 500, 200]

    play(simulation, story)

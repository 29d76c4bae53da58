"""A producer against the null sink: what becomes of a pause of the broker, and of records that the library
itself refuses.
"""

import contextlib
import threading
import time

import pytest

from ottla.bench.generators.assignment import ProducerPlan
from ottla.bench.generators.histograms import merged, percentiles_s
from ottla.bench.generators.null_sink import TOPIC, NullSink
from ottla.bench.generators.producer import ProducerClient
from ottla.bench.generators.rows import Kind
from ottla.bench.generators.running import ClientFailed, Orders, now_us
from ottla.bench.workloads.model import RecordSize, SizeLaw

RATE = 1000
PAUSE_S = 1.0
SMALL = RecordSize(mean=100, least=100, most=100)


@pytest.fixture
def sink(tmp_path):
    with NullSink(tmp_path, partitions=2) as sink:
        yield sink


def plan(sink, *, size=SMALL, rate=None, **fields):
    return ProducerPlan(
        name="producer-0-0",
        topic=TOPIC,
        partitions=2,
        stream=1,
        size=size,
        settings={"bootstrap.servers": sink.bootstrap, "linger.ms": "0", **fields.pop("settings", {})},
        rate=rate,
        first_due_s=0.0,
        first_partition=0,
        **{"records": None, "seconds": None, **fields},
    )


def run(producer, *, beside=None):
    """Run it to its end; the thread `beside` is started when it is connected."""
    with contextlib.ExitStack() as stack:
        producer.open(stack)
        if beside is not None:
            beside.start()
            stack.callback(beside.join)
        producer.run(Orders(), now_us())
    return list(producer.rows())


@pytest.mark.parametrize("most_queued", [100_000, 50], ids=["room for all", "a full queue"])
def test_a_pause_of_the_broker_counts_for_each_record_that_was_due_in_it(sink, most_queued):
    """Coordinated omission: who waits for answers before it sends sees one slow record, and not a second of them."""
    settings = {"queue.buffering.max.messages": str(most_queued)}
    producer = ProducerClient(plan(sink, rate=RATE, seconds=3.0, settings=settings), sharers=1)

    def pause():
        sink.child.pause()
        time.sleep(PAUSE_S)
        sink.child.resume()

    rows = run(producer, beside=threading.Timer(1.0, pause))
    # It was not late itself; with a full queue it was.
    late = producer.lateness()
    assert late is not None
    is_late = percentiles_s(merged([late]))["p90_s"] > 0.5
    assert is_late is (most_queued < RATE)
    histogram = merged(row.latency for row in rows if row.kind is Kind.SECOND and row.latency is not None)
    assert histogram.total_count == 3 * RATE
    for longer_s in (0.2, 0.5, 0.8):
        # Those that were due early enough in the pause, roughly: who waits for answers would see one.
        index = histogram._counts_index_for(int(longer_s * 1e6))
        count = sum(histogram.counts[index:])
        assert count >= 0.7 * RATE * (PAUSE_S - longer_s), longer_s


@pytest.mark.parametrize("rate", [None, 100.0])
def test_a_record_that_the_library_refuses_is_an_error_with_its_reason(sink, rate):
    size = RecordSize(mean=1000, least=100, most=5000, law=SizeLaw.UNIFORM)
    producer = ProducerClient(
        plan(sink, rate=rate, records=200, size=size, settings={"message.max.bytes": "2000"}), sharers=1
    )
    with pytest.raises(
        ClientFailed, match=r"producer-0-0: librdkafka takes no record of [0-9,]+ bytes: .*too large"
    ):
        run(producer)

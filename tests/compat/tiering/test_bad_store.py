"""KIP-405: a store that fails. Producers and local readers do not notice; consumers of remote data get an
error or nothing, and continue by themselves when it is back; no segment is lost, and nothing is left over.

A real MinIO behind a proxy that fails as a test says, and real brokers with both clients of S3.
"""

import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from ottla.bench.components.minio import MinioServer
from ottla.bench.components.processes import has_ended, wait_until
from tests.compat.admin import create_topic, eventually_equal, produce
from tests.compat.tiering.bad_store import (
    REQUEST_TIMEOUT_MS,
    BadStore,
    PacedProducer,
    Reader,
    TieredServer,
    quantile,
    readers,
)
from tests.harness.http_proxy import (
    AnswerFlipped,
    Delayed,
    FaultyProxy,
    RangeIgnored,
    Refused,
    RequestFlipped,
    Reset,
    Rule,
    Truncated,
    Unanswered,
    WrongRange,
)

CLIENTS = pytest.mark.parametrize("client", ["s3", "minio"])
SEGMENT_BYTES = 1 << 20
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": str(SEGMENT_BYTES),
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}
#: More records of 20,000 bytes than a segment has: one is closed.
RECORDS_PER_SEGMENT = 60
LAG_BYTES = "kafka_server_brokertopicmetrics_remotecopylagbytes"
LAG_SEGMENTS = "kafka_server_brokertopicmetrics_remotecopylagsegments"
ERRORS = [f"kafka_server_brokertopicmetrics_remote{kind}errors_total" for kind in ("copy", "delete")]
#: A stop, also while the store does not answer, in seconds.
STOP_S = 30.0
#: What an outage may add to the latency of a record on a busy machine. One that waits for the store waits for
#: its time-out.
NOISE_S = REQUEST_TIMEOUT_MS / 1000 / 5


@pytest.fixture(scope="module")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with MinioServer(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture
def store(minio: MinioServer) -> Iterator[BadStore]:
    with FaultyProxy(minio.endpoint) as proxy:
        yield BadStore(minio, proxy, f"bucket-{uuid4()}")


OUTAGE = (
    Refused(503, "SlowDown", retry_after_s=60), Unanswered(), Refused(403, "AccessDenied"), Reset(), RequestFlipped(),
    Refused(404, "NoSuchBucket"),
)  # fmt: skip


@CLIENTS
def test_producers_and_local_readers_do_not_notice_an_outage(client, store, tmp_path):
    value = bytes(20_000)
    with TieredServer(tmp_path, store.tier(client)) as broker:
        create_topic(broker.bootstrap, "t", config=TIERED)
        producer = PacedProducer(broker.bootstrap, "t")
        usual = producer.run(1.5, value, least=RECORDS_PER_SEGMENT)
        wait_until(lambda: store.segments("t"))
        reader = Reader(broker.bootstrap, "t", offset=producer.count)
        begin, during, lags = producer.count, [], []
        for effect in OUTAGE:
            store.proxy.rules = [Rule(effect)]
            during += producer.run(1.0, value, least=RECORDS_PER_SEGMENT)
            lags.append(broker.metric(LAG_SEGMENTS, "t"))
            # A local reader has all that is there.
            reader.read_to(producer.count - begin)
            assert len(reader.offsets) == producer.count - begin
        during.sort()
        assert reader.errors == []
        assert quantile(during, 0.9) < quantile(usual, 0.9) + NOISE_S, (usual, during)
        assert during[-1] < REQUEST_TIMEOUT_MS / 1000, during
        # What is not in the store is here, and the metrics say how much that is.
        copied, local = store.segments("t"), broker.local_segments("t")
        closed = local[:-1]
        assert lags == sorted(lags), lags
        assert lags[-1] > lags[0] >= 1
        assert broker.metric(LAG_BYTES, "t") >= (lags[-1] - 1) * SEGMENT_BYTES * 0.9
        # All catches up by itself.
        store.proxy.rules = []
        eventually_equal(lambda: broker.metric(LAG_SEGMENTS, "t"), 0)
        assert store.segments("t") == sorted({*copied, *closed})
        eventually_equal(lambda: len(broker.local_segments("t")), 1)
        eventually_equal(store.leftovers, [])
        everything = Reader(broker.bootstrap, "t")
        everything.read_to(producer.count)
        assert everything.offsets == list(range(producer.count))
        everything.close()
        reader.close()
        # The store hangs again, and the broker is stopped.
        store.proxy.rules = [Rule(Unanswered())]
        with readers(broker.bootstrap, "t", [0]) as found:
            produce(broker.bootstrap, "t", [value] * 120)
            found[0].poll(0.5)
            worker = broker.worker()
            begin_s = time.monotonic()
            assert broker.server.stop() == 0
            assert time.monotonic() - begin_s < STOP_S
        wait_until(lambda: has_ended(worker))


#: What the store does to the reads of each partition.
READ_FAULTS = (
    Refused(503, "SlowDown", retry_after_s=60), Refused(403, "AccessDenied"), Refused(404, "NoSuchKey"), Unanswered(),
    Reset(), Truncated(1_000), WrongRange(), RangeIgnored(), AnswerFlipped(),
)  # fmt: skip
#: A partition whose reads take longer than remote.fetch.max.wait.ms, and than the consumer's own wait.
SLOW = len(READ_FAULTS)


@CLIENTS
def test_consumers_continue_when_the_store_does(client, store, tmp_path):
    values = [b"%d" % number + bytes(300_000) for number in range(10)]
    with TieredServer(tmp_path, store.tier(client, **{"request.timeout.ms": "6000"})) as broker:
        create_topic(broker.bootstrap, "t", SLOW + 1, config=TIERED)
        for index in range(SLOW + 1):
            produce(broker.bootstrap, "t", values, partition=index)
        for index in range(SLOW + 1):
            wait_until(lambda index=index: len(broker.local_segments("t", index)) == 1)
        store.proxy.rules = [
            *(Rule(effect, method="GET", part=f"/t-{index}-") for index, effect in enumerate(READ_FAULTS)),
            Rule(Delayed(1.0), method="GET", part=f"/t-{SLOW}-"),
        ]
        with readers(broker.bootstrap, "t", range(SLOW + 1)) as found:
            faulty = [found[index] for index in range(SLOW)]

            def have_tried() -> bool:
                for each in found.values():
                    each.poll(0.05)
                return len(found[SLOW].offsets) >= len(values) and all(each.errors for each in faulty)

            wait_until(have_tried, detail=lambda: [(each.offsets, each.errors) for each in found.values()])
            assert found[SLOW].errors == []
            for each, effect in zip(faulty, READ_FAULTS, strict=True):
                assert not each.offsets, effect
                assert all("Unknown broker error" in error for error in each.errors), effect
            store.proxy.rules = []
            for each in found.values():
                each.read_to(len(values))
                assert each.values == values


@CLIENTS
def test_a_store_that_works_is_said_once_and_is_left_empty(client, store, tmp_path):
    with TieredServer(tmp_path, store.tier(client)) as broker:
        wait_until(lambda: broker.metric("ottla_remote_tier_up") == 1)
        wait_until(lambda: "the remote store can be used" in broker.server.child.output())
        assert broker.server.child.warnings() == []
        assert list(store.manager.store.list()) == []


def upload_under_way(store: BadStore, broker: TieredServer, value: bytes) -> str:
    """Fill a segment of several parts, and return the key of its copy once the first part is there."""
    # Its other parts do not get through, nor does the request that would abort the upload.
    store.proxy.requests.clear()
    store.proxy.rules = [Rule(Unanswered(), part="partNumber=2"), Rule(Unanswered(), method="DELETE")]
    produce(broker.bootstrap, "t", [value] * 13, **{"message.max.bytes": "2000000"})
    wait_until(lambda: store.proxy.count("PUT", "partNumber=2"))
    keys = {
        it.target.partition("?")[0] for it, _ in list(store.proxy.requests) if "partNumber=2" in it.target
    }
    (target,) = keys
    key = target.removeprefix(f"/{store.bucket}/")
    assert len(store.uploads(key)) == 1
    return key


@CLIENTS
def test_an_upload_survives_the_death_of_its_process_and_of_its_broker(client, store, tmp_path):
    value = bytes(900_000)
    # Parts wait for their answers until the process is killed.
    tier = store.tier(client, **{"request.timeout.ms": "60000"})
    # What the killed broker has left is deleted after two deadlines: the store may still carry out its requests.
    with TieredServer(tmp_path, tier, **{"remote.log.manager.transfer.deadline.ms": "5000"}) as broker:
        create_topic(broker.bootstrap, "t", config={**TIERED, "segment.bytes": str(10 << 20)})
        first = upload_under_way(store, broker, value)
        worker = broker.worker()
        worker.kill()
        store.proxy.rules = []
        wait_until(lambda: store.segments("t") == [0])
        assert worker.pid != broker.worker().pid
        # The parts of the attempt that was killed are removed by the one that succeeded.
        eventually_equal(lambda: store.uploads(first), [])
        second = upload_under_way(store, broker, value)
        worker = broker.worker()
        broker.server.kill()
        wait_until(lambda: has_ended(worker))
        store.proxy.rules = []
        broker.server.start()
        wait_until(lambda: len(store.segments("t")) >= 2)
        eventually_equal(lambda: len(broker.local_segments("t")), 1)
        eventually_equal(store.leftovers, [])
        eventually_equal(lambda: store.uploads(second), [])
        segments = store.segments("t")
        assert len(set(segments)) == len(segments)
        reader = Reader(broker.bootstrap, "t")
        reader.read_to(26)
        assert reader.offsets == list(range(26))
        reader.close()


SENTENCES = {
    "secret.key": (
        "rsm.config.access.key is 'ottla-tests', and the store at {endpoint} refuses the secret of the key "
        "(SignatureDoesNotMatch): correct rsm.config.access.key and rsm.config.secret.key, or the credentials of the "
        "environment"
    ),
    "endpoint": (
        "rsm.config.endpoint is http://127.0.0.1:1, and no store answers there (Connection refused): start the store, "
        "or correct the endpoint"
    ),
    "bucket": (
        "rsm.config.bucket is 'nowhere-at-all', and there is no such bucket at {endpoint} (NoSuchBucket): create it, "
        "or correct the name"
    ),
}


@pytest.mark.parametrize(
    ("client", "key", "value", "words"),
    [
        ("s3", "secret.key", "wrong", "signature"),
        ("s3", "endpoint", "http://127.0.0.1:1", "Could not connect"),
        ("minio", "bucket", "nowhere-at-all", "bucket does not exist"),
    ],
)
def test_a_store_that_refuses_everything_is_one_sentence_at_the_start_and_one_at_the_first_copy(
    client, store, tmp_path, key, value, words
):
    tier = store.tier(client, **({} if key == "bucket" else {key: value}))
    if key == "bucket":
        tier = tier.replace(f"//{store.bucket}?", f"//{value}?")
    with TieredServer(tmp_path, tier) as broker:
        # Nothing is to be copied yet.
        wait_until(lambda: broker.server.child.warnings())
        (line,) = broker.server.child.warnings()
        sentence = SENTENCES[key].format(endpoint=store.proxy.endpoint)
        assert line.endswith(f"closed segments stay on the local disks: {sentence}"), line
        assert broker.metric("ottla_remote_tier_up") == 0
        create_topic(broker.bootstrap, "t", config=TIERED)
        produce(broker.bootstrap, "t", [bytes(300_000)] * 5)

        # Attempts that fail again are not logged again: those to copy, or to delete what a copy may have left.
        wait_until(lambda: sum(broker.metric(each, "t") for each in ERRORS) >= 5)
        _, line = broker.server.child.warnings() + broker.server.child.errors()
        assert "the copying of" in line
        assert words in line, line
        assert broker.metric(LAG_SEGMENTS, "t") == 1
        assert "Traceback" not in broker.server.child.output()

"""Workload files become the model's shapes; what cannot be run is refused with one sentence that says what to
write instead.
"""

from pathlib import Path

import pytest

from ottla.bench.aggregation.loads import readings_of
from ottla.bench.generators.records import STAMP_BYTES
from ottla.bench.runs.parse import load, parse, shipped
from ottla.bench.runs.workload_checks import LEAST_VALUE_BYTES
from ottla.bench.workloads.keys import WorkloadError
from ottla.bench.workloads.model import (
    Action,
    ClusterNeeds,
    Condition,
    Consumers,
    Event,
    IdleConnections,
    Job,
    Phase,
    PhaseGoal,
    Producers,
    RecordSize,
    SizeLaw,
    SparkJob,
    Start,
    Tier,
    TopicSpec,
    Workload,
)

WHOLE = """
title = "Everything"
about = "All keys that there are."

[cluster]
brokers = 3
tier = "minio"
properties = { "broker.session.timeout.ms" = 3000, "log.preallocate" = true }
broker_properties = { 3 = { "num.io.threads" = 2 } }

[[topics]]
name = "orders"
partitions = 6
replicas = 3
tiered = true
configs = { "segment.bytes" = 1048576 }

[[phases]]
name = "all"
seconds = 30
connections = 100

[[phases.producers]]
topic = "orders"
count = 2
rate = 1000
records = 500
size = { law = "uniform", least = 100, mean = 200, most = 300 }
compression = "zstd"
acks = "1"
client = { "linger.ms" = 0.5 }

[[phases.consumers]]
topic = "orders"
start = "offset"
offset = 7
rack = "b"
each_all = true
isolation = "read_uncommitted"

[[phases.events]]
at_s = 2
action = "kill"
name = "the leader is killed"
leader_of = "orders"
topic = "orders"
until = "led"

[[phases.events]]
at_s = 5.5
action = "slow_store"
name = "slow"
delay_s = 0.05
bytes_per_s = 1e6

[[phases.goals]]
figure = "producer_p99_s"
at_most = 0.6

[[phases.goals]]
figure = "event_the_leader_is_killed_s"
at_most = 10
absolute = true

[[phases]]
name = "job"

[[phases.jobs]]
job = "tier-read"
topic = "orders"
options = { maxPartitionBytes = 1000 }
"""


def test_every_key_is_a_field_of_the_model():
    assert parse(WHOLE, Path("folder/whole.toml")) == Workload(
        name="whole",
        title="Everything",
        about="All keys that there are.",
        cluster=ClusterNeeds(
            brokers=3,
            tier=Tier.MINIO,
            properties={"broker.session.timeout.ms": "3000", "log.preallocate": "true"},
            broker_properties={"3": {"num.io.threads": "2"}},
        ),
        topics=[
            TopicSpec(
                name="orders",
                partitions=6,
                replicas=3,
                is_tiered=True,
                configs={"segment.bytes": "1048576"},
            )
        ],
        phases=[
            Phase(
                name="all",
                seconds=30.0,
                connections=IdleConnections(count=100),
                producers=[
                    Producers(
                        topic="orders",
                        count=2,
                        rate=1000.0,
                        records=500,
                        size=RecordSize(law=SizeLaw.UNIFORM, mean=200, least=100, most=300),
                        compression="zstd",
                        acks="1",
                        client={"linger.ms": "0.5"},
                    )
                ],
                consumers=[
                    Consumers(
                        topic="orders",
                        start=Start.OFFSET,
                        offset=7,
                        rack="b",
                        is_each_all=True,
                        isolation="read_uncommitted",
                    )
                ],
                events=[
                    Event(
                        at_s=2.0,
                        action=Action.KILL,
                        name="the leader is killed",
                        leader_of="orders",
                        topic="orders",
                        until=Condition.LED,
                    ),
                    Event(
                        at_s=5.5, action=Action.SLOW_STORE, name="slow", delay_s=0.05, bytes_per_s=1_000_000.0
                    ),
                ],
                goals=[
                    PhaseGoal(figure="producer_p99_s", at_most=0.6),
                    PhaseGoal(figure="event_the_leader_is_killed_s", at_most=10.0, is_absolute=True),
                ],
            ),
            Phase(
                name="job",
                jobs=[SparkJob(job=Job.TIER_READ, topic="orders", options={"maxPartitionBytes": "1000"})],
            ),
        ],
    )


def test_what_is_left_out_has_the_models_defaults():
    text = """
        title = ""
        about = ""
        topics = [{ name = "t" }]
        phases = [{ name = "p", seconds = 1, producers = [{ topic = "t", size = 100 }] }]
    """
    workload = parse(text, Path("least.toml"))
    assert workload.cluster == ClusterNeeds()
    assert workload.topics == [TopicSpec(name="t")]
    (producers,) = workload.phases[0].producers
    assert producers == Producers(topic="t", size=RecordSize(mean=100, least=100, most=100))


@pytest.mark.parametrize(
    ("was", "becomes", "sentence"),
    [
        ("compression =", "compresion =", "producers 1: there is no key `compresion`; did you mean `compression`?"),
        ("[cluster]", "[x]", "whole.toml: there is no key `x`; the keys here are `about`, `cluster`"),
        ('title = "Everything"', "", "`title` is missing: add it"),
        ("brokers = 3", 'brokers = "3"', "cluster, brokers: must be a whole number, and is a text in quotes"),
        ("brokers = 3", "brokers = true", "cluster, brokers: must be a whole number, and is true or false"),
        ("brokers = 3", "brokers = 0", "cluster, brokers: must be 1 or more, and is 0"),
        ("{ 3 = {", "{ 4 = {", "cluster, broker_properties: there is no broker 4: they are 1 to 3"),
        ("{ 3 = {", "{ 3 = 1, 4 = {", "broker_properties, 3: must be a table, and is a whole number"),
        ("replicas = 3", "replicas = 4", "topics 1 (orders), replicas: is 4, and cluster.brokers is 3"),
        ('tier = "minio"', 'tier = "s3"', 'tier: must be one of "none", "directory", "minio", and is "s3"'),
        ('tier = "minio"', 'tier = "none"', 'tiered: is true, and cluster.tier is "none"'),
        ('tier = "minio"', 'tier = "directory"', '"slow_store" needs a store with a connection: write tier = "minio"'),
        ('"log.preallocate" = true', "log.preallocate = true",
         "properties: `log` is a table: write names with dots in"),
        ('name = "orders"', 'name = "my orders"', "name: must be of letters, digits"),
        ("partitions = 6", "partitions = 0", "partitions: must be 1 or more, and is 0"),
        ('"segment.bytes" = 1048576', '"remote.storage.enable" = true', "write tiered = true instead"),
        ("seconds = 30", "", "phases 1 (all): `seconds` is missing: without it the phase has no end"),
        ("seconds = 30", "seconds = -1", "phases 1 (all), seconds: must be above 0, and is -1"),
        ("connections = 100", "connections = 0", "connections: must be 1 or more"),
        ("count = 2", "count = 0", "phases 1 (all), producers 1, count: must be 1 or more"),
        ("rate = 1000", "rate = 0", "rate: must be above 0"),
        ("records = 500", "records = 1", "records: must be 2 or more, and is 1"),
        ('"zstd"', '"zip"', 'compression: must be one of "none", "gzip", "snappy", "lz4", "zstd", and is "zip"'),
        ('acks = "1"', "acks = 1", "acks: must be a text in quotes, and is a whole number"),
        ('acks = "1"', 'acks = "2"', 'acks: must be one of "all", "0", "1"'),
        ("least = 100", "least = 8", "size: must be 28 <= least <= mean <= most, and is 8, 200, 300"),
        ("mean = 200", "mean = 250", "size: must have the mean 200"),
        ("mean = 200, most = 300", "mean = 1000050, most = 2000000",
         "size: is up to 2000000, and librdkafka takes records of 1000000"),
        ('"uniform"', '"fixed"', 'size: has bounds, and its law is "fixed"'),
        ('"uniform"', '"lognormal"', "size: must have a sigma above 0"),
        ('"uniform"', '"lognorm"', '(did you mean "lognormal"?)'),
        ('start = "offset"', "", 'consumers 1, offset: needs start = "offset"'),
        ('"read_uncommitted"', '"none"', 'isolation: must be one of "read_committed", "read_uncommitted"'),
        ('until = "led"', 'until = "lead"', '(did you mean "led"?)'),
        ('topic = "orders"\nuntil', "until", 'until = "led" needs `topic`'),
        ('leader_of = "orders"', "", '"kill" needs either `broker` or `leader_of`'),
        ('leader_of = "orders"', "broker = 4", "broker: is 4, and the brokers are 1 to 3"),
        ('leader_of = "orders"', 'leader_of = "order"',
         'there is no topic "order": add it to [[topics]] (there: orders)'),
        ('action = "kill"', 'action = "start"', 'a broker to start is down: name it with "broker"'),
        ('action = "kill"', 'action = "wait"', '"wait" is not of one broker: remove `broker` and `leader_of`'),
        ('action = "slow_store"', 'action = "wait"', '"wait" needs `until`'),
        ('action = "slow_store"', 'action = "alter_topic"', '"alter_topic" needs `topic` and `configs`'),
        ("at_s = 5.5", "at_s = 1", "at_s: is 1, and the event before it is at 2: order them"),
        ('name = "slow"', 'name = "the leader is killed"', '"the leader is killed" is there 2 times'),
        ('name = "slow"', 'name = "The leader is killed!"\ntopic = "orders"\nuntil = "led"',
         "events: 2 of them have the figure event_the_leader_is_killed_s"),
        ('name = "job"', 'name = "all"', '"all" is there 2 times'),
        ('"producer_p99_s"', '"producer_p98_s"',
         'goals 1 (producer_p98_s), figure: must be one of "producer_bytes_per_s", '),
        ("at_most = 0.6", "", "goals 1 (producer_p99_s): needs either `at_least` or `at_most`"),
        ("at_most = 0.6", "at_most = 1\nat_least = 1", "needs either `at_least` or `at_most`"),
        ("event_the_leader_is_killed_s", "producer_p99_s", '"producer_p99_s" is there 2 times'),
        ("[[phases.jobs]]", "[phases.jobs]",
         "phases 2 (job), jobs: must be a list of tables ([[jobs]]), and is a table"),
        ('job = "tier-read"\ntopic = "orders"', 'job = "tier-read"\ntopic = "x"',
         "phases 2 (job), jobs 1: there is no topic"),
        ('[[phases.jobs]]\njob = "tier-read"\ntopic = "orders"\noptions = { maxPartitionBytes = 1000 }',
         "", "does nothing"),
        ("maxPartitionBytes =", "maxPartitionByte =",
         "options: tier-read has no option `maxPartitionByte`; did you mean"),
        ('title = "Everything"', "title = Everything", "is no TOML: "),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused_with_one_sentence(was, becomes, sentence):
    assert was in WHOLE
    with pytest.raises(WorkloadError) as refused:
        parse(WHOLE.replace(was, becomes, 1), Path("folder/whole.toml"))
    text = str(refused.value)
    assert text.startswith("whole.toml: ")
    assert sentence in text
    assert "\n" not in text


def test_jobs_have_a_phase_of_their_own():
    text = WHOLE.replace('name = "job"', 'name = "job"\nseconds = 1\nconnections = 1')
    with pytest.raises(WorkloadError, match="jobs: cannot run beside producers"):
        parse(text, Path("whole.toml"))


def test_a_value_has_room_for_its_stamp():
    assert LEAST_VALUE_BYTES == STAMP_BYTES


#: Gigabytes, whose reading would take longer than all else: the page says how many records no consumer has read.
UNREAD = {
    ("kip1023-rejoin", "history"),
    ("kip405-3-rejoin", "tiered"),
    ("kip405-3-rejoin", "plain"),
    ("throughput", "size"),
    ("throughput", "acks"),
    ("throughput", "compressed"),
}


def test_what_shipped_workloads_write_is_read_and_verified():
    unread = set()
    for path in shipped():
        workload = load(path.stem)
        read = {(it.stream_phase, it.producers) for it in readings_of(workload)}
        unread |= {
            (workload.name, producers.topic)
            for phase in workload.phases
            for group, producers in enumerate(phase.producers)
            if (phase.name, f"producer-{group}") not in read
        }
    assert unread == UNREAD


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.stem)
def test_a_shipped_workload_is_whole_and_is_loaded_by_its_name(path):
    workload = load(path.stem)
    assert workload.name == path.stem
    assert workload.title.endswith("?")
    assert workload == load(str(path))


def test_a_name_that_is_none_and_a_file_that_is_not_there_are_refused(tmp_path):
    with pytest.raises(WorkloadError, match="there is no workload 'smok': did you mean smoke\\?"):
        load("smok")
    with pytest.raises(WorkloadError, match="cannot be read: No such file"):
        load(str(tmp_path / "none.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(WorkloadError, match="no text in UTF-8"):
        load(str(tmp_path / "binary.toml"))

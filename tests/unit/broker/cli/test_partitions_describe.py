"""`ottla partitions describe`: why a leader leads, what is written, and what is asked of a broker (KIP-392,
KIP-1303).
"""

import asyncio
import json
from uuid import UUID

import pytest

from ottla.broker.cli.partitions.cluster_reports import settings_of
from ottla.broker.cli.partitions.command import json_of, text_of
from ottla.broker.reports.description import (
    Description,
    Replica,
    ReplicaLog,
    TopicSettings,
    preferred_election,
    why,
)
from ottla.broker.reports.replica_reports import Asked, Reported, replica_reports
from ottla.metadata.leader_preference import NO_PREFERENCE, LeaderPreference
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import UnsupportedVersion
from ottla.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.special_timestamps import EARLIEST, EARLIEST_LOCAL, EARLIEST_PENDING_UPLOAD, LATEST
from ottla.protocol.types import TopicPartition

PARTITION, TOPIC_ID = TopicPartition("orders", 0), UUID(int=7)
NOW_MS = 100 * 3_600_000
EARLY = LeaderPreference(prefers_early_start=True)
SPANS = LeaderPreference(eligible_local_ms=3_600_000, eligible_local_bytes=2**30)


def partition(
    leader,
    *,
    isr=(1, 2, 3),
    elr=(),
    offline=(),
    starts=(0, 0, 0),
    preference=NO_PREFERENCE,
    oldest_ms=None,
    **named,
):
    """Replicas 1 to 3, of which 1 is the preferred one; each has 1 KiB in its local log."""
    return Description(
        topic_partition=PARTITION,
        leader=leader,
        leader_epoch=5,
        replicas=[
            Replica(
                broker_id=broker_id,
                is_offline=broker_id in offline,
                log=ReplicaLog(
                    local_log_start_offset=start, local_bytes=1024, oldest_local_timestamp_ms=oldest_ms
                ),
            )
            for broker_id, start in enumerate(starts, 1)
        ],
        isr=isr,
        elr=elr,
        settings=TopicSettings(preference=preference),
        **named,
    )


@pytest.mark.parametrize(("leader", "state", "elects", "reason"), [
    (1, {},                                   1, "1 is the preferred replica, and may lead"),
    (2, {"offline": [1], "isr": [2, 3]},      2, "the preferred replica 1 is not alive"),
    (2, {"isr": [2, 3]},                      2, "the preferred replica 1 is not in the ISR"),
    (3, {},                                   1, ("the preferred replica 1 may lead, but could not when this leader "
                                                  "was elected; a preferred leader election would choose 1")),
    (3, {"offline": [1], "isr": [3]},         3, ("3 is the only replica that may lead: 1 is not alive, "
                                                  "2 is not in the ISR")),
    (3, {"isr": [], "elr": [3]},              3, ("3 is the only replica that may lead: 1 is neither in the ISR nor "
                                                  "in the ELR, 2 is neither in the ISR nor in the ELR")),
    (3, {"isr": [3], "elr": [1]},             3, ("3 is the only replica that may lead: 1 is not in the ISR, "
                                                  "2 is not in the ISR")),
    (3, {"isr": [3], "elr": None},            3, ("3 is the only replica that may lead: 1 is not in the ISR, "
                                                  "2 is not in the ISR")),
    (1, {"isr": [1], "starts": [0]},          1, "1 is the only replica that may lead"),
    (2, {"offline": [2]},                     1, ("2 is the leader in the metadata, which does not name it as alive "
                                                  "and in sync now")),
    (None, {"isr": [], "elr": []},         None, "no leader: ISR and ELR are empty"),
    (None, {"isr": [], "last_known_elr": [2]}, None, "no leader: ISR and ELR are empty; last known: 2"),
    (None, {"isr": [2], "offline": [2]},   None, "no leader: no replica of the ISR (2) is alive"),
    (None, {"isr": [], "elr": [2, 3], "offline": [2, 3]}, None, "no leader: no replica of the ELR (2, 3) is alive"),
    # KIP-1303, and the form of May 2026
    (2, {"preference": EARLY, "starts": [5_000_000, 1_000_050, 1_000_000]}, 2,
        ("the preferred replica 1 has less local data (local from 5000000, 3 from 1000000: 4000000 later, "
         "10000 make a difference)")),
    (1, {"preference": EARLY, "starts": [5_000_000, 1_000_050, 1_000_000]}, 2,
        ("1 is the preferred replica, but has less local data (local from 5000000, 3 from 1000000: 4000000 later, "
         "10000 make a difference); a preferred leader election would choose 2")),
    (2, {"preference": EARLY, "starts": [1_000_000, 1_000_050, 1_000_000]}, 1,
        ("the preferred replica 1 may lead, but could not when this leader was elected; "
         "a preferred leader election would choose 1")),
    (3, {"preference": EARLY, "starts": [5_000_000, None, 1_000_000]}, 2,
        ("the preferred replica 1 has less local data (local from 5000000, 2 is unknown and counts as complete: "
         "5000000 later, 10000 make a difference); a preferred leader election would choose 2")),
    (2, {"preference": SPANS, "starts": [7, 5, 5], "oldest_ms": NOW_MS - 90_000}, 2,
        ("the preferred replica 1 has less local data (local from 7, 2 from 5; age 1 min 30 s of at least 1 h; "
         "1.0 KiB of at least 1.0 GiB)")),
    (2, {"preference": SPANS, "starts": [7, 5, 5]}, 2,
        ("the preferred replica 1 has less local data (local from 7, 2 from 5; age unknown of at least 1 h; "
         "1.0 KiB of at least 1.0 GiB)")),
    (1, {"preference": SPANS, "starts": [7, 5, 5], "oldest_ms": NOW_MS - 3_600_000}, 1,
        "1 is the preferred replica, and may lead"),
])  # fmt: skip
def test_why_the_leader_leads(leader, state, elects, reason):
    found = partition(leader, **state)
    assert preferred_election(found, now_ms=NOW_MS) == elects
    assert why(found, now_ms=NOW_MS) == reason


def described():
    return Description(
        topic_partition=PARTITION,
        leader=2,
        leader_epoch=5,
        replicas=[
            Replica(broker_id=1, is_offline=True),
            Replica(
                broker_id=2,
                rack="b",
                log=ReplicaLog(
                    log_start_offset=0,
                    local_log_start_offset=70,
                    pending_upload_offset=90,
                    high_watermark=99,
                    log_end_offset=100,
                    local_bytes=3 * 1024,
                ),
            ),
            Replica(broker_id=3, rack="c", is_adding=True, problem="127.0.0.1:9094: Connection refused"),
        ],
        isr=[2],
        elr=[1],
        settings=TopicSettings(min_isr=2),
    )


@pytest.mark.parametrize("width", [None, 200])
def test_the_table(width):
    assert (
        "\n".join(text_of(described(), now_ms=NOW_MS, width=width))
        == """\
orders-0  leader 2, epoch 5, min.insync.replicas 2
  2 is the only replica that may lead: 1 is not alive, 3 is not in the ISR
  replica  rack  state                    log start  local start  pending upload  high watermark  log end  local size
  1        -     preferred, ELR, offline          -            -               -               -        -           -
  2        b     leader, ISR                      0           70              90              99      100     3.0 KiB
  3        c     adding                           -            -               -               -        -           -
  replica 3: 127.0.0.1:9094: Connection refused
"""
    )


def test_a_narrow_terminal():
    lines = list(text_of(described(), now_ms=NOW_MS, width=80))
    assert lines[2:10] == [
        "  replica 1  rack -  preferred, ELR, offline",
        "    log start       -",
        "    local start     -",
        "    pending upload  -",
        "    high watermark  -",
        "    log end         -",
        "    local size      -",
        "  replica 2  rack b  leader, ISR",
    ]
    assert lines[15] == "    local size      3.0 KiB"


def test_json():
    row = json.loads(json_of(described(), now_ms=NOW_MS))
    assert (row["partition"], row["leader"], row["preferred_election"]) == ("orders-0", 2, 2)
    assert (row["isr"], row["elr"], row["min_insync_replicas"]) == ([2], [1], 2)
    assert row["replicas"][1] == {
        "broker": 2, "rack": "b", "state": ["leader", "ISR"], "log_start_offset": 0, "local_log_start_offset": 70,
        "pending_upload_offset": 90, "high_watermark": 99, "log_end_offset": 100, "local_bytes": 3072, "problem": None,
    }  # fmt: skip
    assert row["replicas"][2]["problem"] == "127.0.0.1:9094: Connection refused"


# -- what a broker is asked ----------------------------------------------------------------------------

OFFSETS = {EARLIEST: 0, EARLIEST_LOCAL: 70, EARLIEST_PENDING_UPLOAD: 90, LATEST: 100}


class OneBroker:
    """Answers with the offsets above; what is in `unsupported` is not served."""

    def __init__(self, *, unsupported=(), error=0):
        self.unsupported = unsupported
        self.error = error
        self.fetched = []

    async def __call__(self, key, request, versions):
        if key in self.unsupported:
            raise UnsupportedVersion("no")
        return {
            ApiKey.LIST_OFFSETS: self.offsets,
            ApiKey.FETCH: self.fetch,
            ApiKey.DESCRIBE_LOG_DIRS: self.sizes,
        }[key](request, versions)

    def offsets(self, request, versions):
        assert request.replica_id == -2
        timestamp = request.topics[0].partitions[0].timestamp
        if timestamp in self.unsupported:
            assert versions.start > 7
            raise UnsupportedVersion("no")
        row = ListOffsetsPartitionResponse(
            partition_index=0, offset=OFFSETS[timestamp], error_code=self.error
        )
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=[row])])

    def fetch(self, request, versions):
        [topic], asked = request.topics, request.topics[0].partitions[0]
        self.fetched.append(asked.fetch_offset)
        assert (topic.topic_id, request.max_wait_ms, asked.partition_max_bytes) == (TOPIC_ID, 0, 1)
        batch = build_batch(simple_records([(None, b"v")], timestamp=4711))
        row = PartitionData(partition_index=0, high_watermark=99, records=batch)
        return FetchResponse(responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[row])])

    def sizes(self, request, versions):
        rows = [
            DescribeLogDirsPartition(partition_index=0, partition_size=3072),
            DescribeLogDirsPartition(partition_index=0, partition_size=5, is_future_key=True),
        ]
        directory = DescribeLogDirsResult(topics=[DescribeLogDirsTopic(name="orders", partitions=rows)])
        return DescribeLogDirsResponse(results=[directory])


@pytest.mark.parametrize(("broker", "needs_timestamp", "log", "fetched"), [
    (OneBroker(), False, (0, 70, 90, 99, 100, 3072), [70]),
    (OneBroker(), True, (0, 70, 90, 99, 100, 3072), [70]),
    (OneBroker(unsupported=[EARLIEST_PENDING_UPLOAD]), False, (0, 70, None, 99, 100, 3072), [70]),
    (OneBroker(unsupported=[EARLIEST_PENDING_UPLOAD, EARLIEST_LOCAL]), False, (0, 0, None, 99, 100, 3072), [0]),
    (OneBroker(unsupported=[ApiKey.FETCH]), False, (0, 70, 90, None, 100, 3072), []),
    (OneBroker(unsupported=[ApiKey.DESCRIBE_LOG_DIRS]), False, (0, 70, 90, 99, 100, None), [70]),
])  # fmt: skip
def test_what_a_broker_reports(broker, needs_timestamp, log, fetched):
    asked = [Asked(PARTITION, TOPIC_ID, needs_timestamp)]
    found, problem = asyncio.run(replica_reports(broker, asked))[PARTITION]
    assert problem is None
    assert (
        found.log_start_offset, found.local_log_start_offset, found.pending_upload_offset, found.high_watermark,
        found.log_end_offset, found.local_bytes,
    ) == log  # fmt: skip
    assert broker.fetched == fetched


@pytest.mark.parametrize(("known", "fetched"), [({PARTITION: 98}, [98]), ({PARTITION: 3}, [70]), ({}, [70])])
def test_a_known_high_watermark_is_where_nothing_has_to_be_read(known, fetched):
    broker = OneBroker()
    asked = [Asked(PARTITION, TOPIC_ID, needs_timestamp=False)]
    [reported] = asyncio.run(replica_reports(broker, asked, known_watermarks=known)).values()
    assert (broker.fetched, reported.log.local_log_start_offset) == (fetched, 70)


def test_the_timestamp_of_the_first_local_batch():
    [reported] = asyncio.run(replica_reports(OneBroker(), [Asked(PARTITION, TOPIC_ID, True)])).values()
    assert reported.log.oldest_local_timestamp_ms == 4711


def test_a_broker_that_has_no_such_replica():
    [reported] = asyncio.run(
        replica_reports(OneBroker(error=3), [Asked(PARTITION, TOPIC_ID, False)])
    ).values()
    assert reported == Reported(ReplicaLog(local_bytes=3072), "UNKNOWN_TOPIC_OR_PARTITION")


@pytest.mark.parametrize(("values", "settings"), [
    ({}, TopicSettings()),
    ({"min.insync.replicas": "2"}, TopicSettings(min_isr=2)),
    ({"remote.storage.enable": "true"}, TopicSettings()),
    ({"remote.storage.enable": "true", "leader.election.prefer.early.local.log.start.offset": "true",
      "leader.election.local.log.start.offset.threshold": "7", "leader.election.eligible.local.log.ms": "5",
      "leader.election.eligible.local.log.bytes": "-1"}, TopicSettings(preference=LeaderPreference(True, 7, 5, None))),
    ({"remote.storage.enable": "false", "leader.election.prefer.early.local.log.start.offset": "true"},
     TopicSettings()),
])  # fmt: skip
def test_the_settings_of_a_topic(values, settings):
    assert settings_of(values) == settings

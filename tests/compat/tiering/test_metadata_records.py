"""The records of `__remote_log_metadata` that one story leaves: Ottla's are Kafka's, decoded by Kafka's own
classes (KIP-405).
"""

import re
from pathlib import Path

from tests.compat.admin import once
from tests.compat.tiering.stage import Stage
from tests.compat.tiering.tiered_cluster import DirectoryTier, TieredCluster
from tests.harness.kafka import tool

_FORMATTER = (
    "org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde"
    "$RemoteLogMetadataFormatter"
)
#: Four copies, each begun and finished; two of them deleted, each begun and finished.
RECORDS = 12
_STORY = """
topic A 1,2 batches 2
produce A-0 5 at 1700000000000
tiered A-0 0 2
local-start A-0 4
lead A-0 2
produce A-0 4 at 1700000000005
tiered A-0 0 2 4 6
local-start A-0 8
delete-records A-0 5
tiered A-0 4 6
read A-0 5 9
"""
#: Topic ids and segment ids, in Kafka's text form, and the times of events.
_ID = re.compile(r"(?<=id=)[A-Za-z0-9_-]{22}|[A-Za-z0-9_-]{22}(?=:A-0)")
_TIME = re.compile(r"(?<=eventTimestampMs=)\d+")


def consumed(bootstrap: str) -> str:
    """The output of Kafka's console consumer until no record has come for a while."""
    return tool(
        "kafka-console-consumer",
        *("--bootstrap-server", bootstrap, "--topic", "__remote_log_metadata"),
        *("--from-beginning", "--timeout-ms", "5000", "--formatter", _FORMATTER),
    )


def records_of(kind: str, folder: Path) -> list[str]:
    """The topic's records as Kafka's console consumer prints them, with ids numbered in the order of their
    appearance."""
    with TieredCluster(folder / kind, [kind, kind], DirectoryTier(folder / f"{kind}-tier"), {}) as cluster:
        stage = Stage(cluster)
        for line in _STORY.split("\n"):
            if line:
                stage.run(line)
        output = once(
            lambda: consumed(cluster.bootstrap), lambda found: found.count("partition: ") >= RECORDS
        )
    ids: dict[str, str] = {}
    found = []
    for line in output.splitlines():
        if line.startswith("partition: "):
            value = line.partition("value: ")[2]
            value = _ID.sub(lambda match: ids.setdefault(match[0], f"#{len(ids)}"), value)
            found.append(_TIME.sub("*", value))
    return found


def test_records_are_those_of_kafka(tmp_path):
    ours, kafkas = records_of("ottla", tmp_path), records_of("kafka", tmp_path)
    assert len(ours) == RECORDS
    assert ours == kafkas

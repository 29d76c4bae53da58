"""`ottla bench run smoke` as a user starts it, and what its result has to have: exact counts of every record."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

_OTTLA = Path(sys.executable).with_name("ottla")
_COMMAND = [
    "bench",
    "run",
    "smoke",
    "--runs",
    "1",
    "--warm-up-rounds",
    "1",
    "--allow-dirty",
    "--out",
    "results",
]
_TIMEOUT_S = 500
#: Of smoke.toml.
BULK_RECORDS, PACED_RECORDS = 40_000, 2_000


def run_smoke(folder, *options):
    """The result's folder. The program runs from another folder than the repository."""
    folder.mkdir()
    done = subprocess.run(
        [_OTTLA, *_COMMAND, *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    [result] = (folder / "results").iterdir()
    return result


def rows_of(result, name):
    """A Parquet file of the result."""
    return pq.read_table(result / f"{name}.parquet").to_pylist()


def summary_of(result):
    """The content of summary.json."""
    return json.loads((result / "summary.json").read_text())


def streams(rows, target, phase, role):
    """(stream, partition) -> records, each seen once."""
    found = {}
    for row in rows:
        if (row["kind"], row["target"], row["phase"], row["role"]) == ("stream", target, phase, role):
            assert not any(row[fault] for fault in ("duplicates", "out_of_order", "corrupt")), row
            key = (row["stream"], row["partition"])
            assert key not in found, "two clients have read it"
            found[key] = row["distinct_records"]
    return found


def check_counts(result, target):
    """Check that equal numbers were sent, acknowledged and read, in the rows and in Spark's aggregates."""
    rows = rows_of(result, "rows")
    assert [row["text"] for row in rows if row["kind"] == "error"] == []
    bulk, paced = (streams(rows, target, phase, "producer") for phase in ("bulk", "paced"))
    assert sum(bulk.values()) == BULK_RECORDS
    assert sum(paced.values()) == PACED_RECORDS
    assert streams(rows, target, "paced", "consumer") == paced
    assert streams(rows, target, "catch-up", "consumer") == bulk

    seconds = {}
    for row in rows_of(result, "seconds"):
        if row["target"] == target:
            key = (row["phase"], row["role"])
            seconds[key] = seconds.get(key, 0) + row["records"]
    expected = {
        ("bulk", "producer"): BULK_RECORDS,
        ("paced", "producer"): sum(paced.values()),
        ("paced", "consumer"): sum(paced.values()),
        ("catch-up", "consumer"): BULK_RECORDS,
    }
    assert {key: seconds.get(key) for key in expected} == expected

    [section] = summary_of(result)["sections"]
    for phase, count in (("paced", sum(paced.values())), ("catch-up", BULK_RECORDS)):
        [sample] = section["samples"][phase][target]
        counts = {name: sample[name] for name in ("to_read", "lost", "duplicates", "out_of_order", "corrupt")}
        assert counts == {"to_read": count, "lost": 0, "duplicates": 0, "out_of_order": 0, "corrupt": 0}

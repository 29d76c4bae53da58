"""The program that measures many tiered partitions: in each of its phases there is as much as it says,
however slow that is.
"""

from ottla.bench.figures import Verdict
from ottla.bench.internals.storage_support import batch_of
from ottla.bench.internals.tier_scale import tier_scale
from ottla.bench.internals.tier_scale_folder import BATCH_BYTES, BATCH_COUNT, READ_COPIES
from ottla.bench.internals.tier_scale_phases import COUNT

_PARTITIONS = _COPIES = 20
_METADATA_PARTITIONS = 50


def test_each_phase_has_all_of_it(tmp_path):
    measured = tier_scale(tmp_path, runs=1, scale=0.02)
    segment_bytes = BATCH_COUNT * len(batch_of(BATCH_BYTES, value_bytes=1000)[0])
    all_copies = _PARTITIONS * _COPIES
    figures_of = {phase: samples["ottla"][0] for phase, samples in measured.samples.items()}
    assert {phase: int(figures[COUNT]) for phase, figures in figures_of.items() if COUNT in figures} == {
        "all snapshots written": all_copies,
        # What is written grows with what has changed.
        "nothing has changed": 0,
        "a tenth of one has changed": _COPIES,
        "all snapshots read": all_copies,
        "start to READY": _PARTITIONS + _METADATA_PARTITIONS,
        "until all is known": all_copies,
        "all tasks, nothing is due": all_copies,
        "readers": READ_COPIES * segment_bytes,
    }
    for figures in figures_of.values():
        assert {"s", "cpu_s", "turn_cpu_s", "turn_s", "private_bytes"} <= figures.keys()
    tables = measured.tables()
    assert all(table.title.startswith("20 tiered partitions with 20 copies each: ") for table in tables)
    assert [bool(table.note) for table in tables] == [True] + [False] * (len(tables) - 1)
    judged = [row for table in tables for row in table.rows() if row.verdict is not None]
    assert len(judged) == len(tables) + 1
    assert Verdict.NOT_MEASURED not in {row.verdict for row in judged}

"""The trace of a start becomes rows of the report: each package alone, some modules with what they import."""

import pytest

from ottla.bench.figures import KAFKA, OTTLA
from ottla.bench.start_up import SHOWN, START_IMPORTS, imported, sample_of

TRACE = """\
import time: self [us] | cumulative | imported package
import time:       100 |        100 |   _io
import time:       900 |       1000 | asyncio
2026-11-23 INFO a line of the log
import time:       500 |        500 |     click.core
import time:       250 |        750 |   click
import time:      2000 |       2000 |     ottla.protocol.schema
import time:      3000 |       5750 | ottla.broker.cli.broker
"""


def test_modules_belong_to_their_packages():
    sample = sample_of([*imported(TRACE)])
    assert sample == pytest.approx(
        {
            "all_s": 0.00675,
            "modules": 6,
            "own_s Python's own": 0.001,
            "own_s installed packages": 0.00075,
            "own_s protocol": 0.002,
            "own_s broker": 0.003,
            "cumulative_s asyncio": 0.001,
            "cumulative_s click": 0.00075,
            "cumulative_s ottla.broker.cli.broker": 0.00575,
        }
    )


def test_every_value_is_a_row_and_what_is_not_imported_has_none():
    sample = sample_of([*imported(TRACE)])
    table = START_IMPORTS.table()
    assert {*sample} <= {figure.metric for figure in table.figures}
    table.samples.update({KAFKA: [{}], OTTLA: [sample]})
    cells = {row.figure.title: row.cell() for row in table.rows()}
    assert cells["all"] == "- / 6.75"
    assert cells["`ottla.broker.roles.tiering`, cumulative"] == "not measured"


def test_modules_that_are_shown_exist():
    from importlib.util import find_spec

    assert [name for name in SHOWN if find_spec(name) is None] == []

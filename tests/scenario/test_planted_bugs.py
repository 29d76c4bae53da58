"""Each planted bug is visible in the stories that show it; traces are of the form that `ottla.stories.trace` says."""

import json

import pytest

from ottla.stories import catalog, planting
from ottla.stories.recording import record
from ottla.stories.trace import Trace, from_json, to_json
from ottla.stories.traces import trace_of

_CASES = [(story, bug) for bug in planting.BUGS for story in bug.outcomes]
_PROVOKED = pytest.mark.logs(
    "Fetch from broker",
    "below the high watermark",
    "contradicts these, which are removed",
    "records from broker",
)


def last_lines(steps):
    """The lines that the last block of commands prints."""
    return [line for step in steps if step.block == steps[-1].block for line in step.says]


@pytest.mark.parametrize(("story", "bug"), _CASES, ids=[f"{story}-{bug.name}" for story, bug in _CASES])
@_PROVOKED
def test_a_planted_bug_is_visible(story, bug):
    text = catalog.story(story).text
    found = planting.planted(story, text, bug)
    assert found.outcome in last_lines(found.steps)
    right = record(text, catalog.story(story).new_stage())
    assert [step.command for step in found.steps] == [step.command for step in right]
    assert found.outcome not in last_lines(right)


@_PROVOKED
def test_a_trace_is_of_the_form_that_the_schema_says():
    trace = trace_of(catalog.story("lineage/scenario_2"))
    assert trace.planted
    assert trace.steps[-1].replicas
    assert any(step.messages for step in trace.steps)
    assert from_json(Trace, json.loads(json.dumps(to_json(trace)))) == trace

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
    "has failed, the next attempt",
    "the next attempt is in",
)


@pytest.mark.parametrize(("story", "bug"), _CASES, ids=[f"{story}-{bug.name}" for story, bug in _CASES])
@_PROVOKED
def test_a_planted_bug_is_visible(story, bug):
    played = catalog.story(story)
    found = planting.planted(story, played.text, bug, played.new_stage)
    right = record(played.text, played.new_stage())
    assert [step.command for step in found.steps] == [step.command for step in right][: len(found.steps)]
    if len(found.steps) < len(right):
        assert bug.outcomes[story] in found.outcome  # an assertion has ended the run
    else:
        pairs = zip(found.steps, right, strict=True)
        assert any(found.outcome in wrong.says and found.outcome not in step.says for wrong, step in pairs)


@_PROVOKED
def test_a_trace_is_of_the_form_that_the_schema_says():
    trace = trace_of(catalog.story("lineage/scenario_2"))
    assert trace.planted
    assert trace.steps[-1].replicas
    assert any(step.messages for step in trace.steps)
    assert from_json(Trace, json.loads(json.dumps(to_json(trace)))) == trace

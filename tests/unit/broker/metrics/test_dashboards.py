"""The shipped dashboards and rules ask for metrics that a node serves, under either rule of names."""

import json
import re
from pathlib import Path

import promql_parser
import pytest
from click.testing import CliRunner
from metrics_page import families

from ottla.broker.cli.dashboards import dashboards
from ottla.broker.metrics.families import with_strimzis_name
from ottla.broker.metrics.names import Kind

FOLDER = Path(dashboards.callback.__code__.co_filename).parents[1] / "metrics" / "dashboards"
RULES = FOLDER / "ottla-rules.yml"
BOARDS = sorted(FOLDER.glob("*.json"))
_METRIC = re.compile(r"\b(?:kafka|ottla|process|python)_\w+|\bottla:\w+")
#: Of prometheus-client's own collectors, which a simulated node does not have, and of the rules.
OTHERS = {"process_resident_memory_bytes", "process_cpu_seconds_total"}


@pytest.fixture(scope="module")
def served():
    """Every name that a node serves whatever `metrics.names` is."""
    every = families()
    return {
        name
        for family in every
        if with_strimzis_name(family).name == family.name
        for name in (
            [f"{family.name}_{part}" for part in ("bucket", "sum", "count")]
            if family.kind is Kind.HISTOGRAM
            else [family.name]
        )
    } | OTHERS


def expressions(board):
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("path", BOARDS, ids=[path.stem for path in BOARDS])
def test_a_dashboard_asks_for_what_is_served(path, served):
    board = json.loads(path.read_text())
    queries = [each["query"] for each in board["templating"]["list"]]
    asked = {name for text in expressions(board) + queries for name in _METRIC.findall(text)}
    assert asked
    assert asked - served == set()
    variables = {each["name"] for each in board["templating"]["list"]}
    used = {name for text in expressions(board) for name in re.findall(r"\$(\w+)", text)}
    assert used - {"__rate_interval", "__range"} <= variables
    assert all('job=~"$job"' in text for text in expressions(board)), "several clusters in one Prometheus"


def expressions_of_rules():
    """The text of each rule's `expr`: on its line, or on the deeper lines after `>-`."""
    texts = re.findall(r"^ +expr: (?:>-\n((?: {10}.*\n)+)|(.*)\n)", RULES.read_text(), flags=re.MULTILINE)
    assert len(texts) == RULES.read_text().count("expr:")
    return [folded or line for folded, line in texts]


def test_every_expression_is_promql():
    """Grafana's variables, as it replaces them, and PromQL's own grammar and types."""
    of_boards = [text for path in BOARDS for text in expressions(json.loads(path.read_text()))]
    for text in [*of_boards, *expressions_of_rules()]:
        promql_parser.parse(re.sub(r"\$__\w+", "5m", text))
    with pytest.raises(ValueError, match="expected type matrix"):
        promql_parser.parse("rate(kafka_brokers)")


@pytest.mark.parametrize("path", BOARDS, ids=[path.stem for path in BOARDS])
def test_panels_do_not_overlap(path):
    board = json.loads(path.read_text())
    cells = [
        (x, y)
        for panel in board["panels"]
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert board["uid"] == path.stem


def test_rules_ask_for_what_is_served(served):
    text = RULES.read_text()
    rules = re.split(r"^ +- (?=alert:|record:)", text, flags=re.MULTILINE)[1:]
    recorded = set(re.findall(r"record: (\S+)", text))
    asked = {
        name for rule in rules for name in _METRIC.findall(rule.partition("expr:")[2].partition("labels:")[0])
    }
    assert len(rules) > 10
    assert asked - served - recorded == set()
    for rule in rules:
        if rule.startswith("alert:"):
            assert re.search(r"severity: (critical|warning|info)}", rule), rule
            assert re.search(r'summary: "[A-Z{].*\."', rule), rule


def test_the_command_writes_all_files(tmp_path):
    folder = tmp_path / "new" / "folder"
    done = CliRunner().invoke(dashboards, [str(folder)])
    assert done.exit_code == 0, done.output
    assert {path.name for path in folder.iterdir()} == {path.name for path in FOLDER.iterdir()}
    done = CliRunner().invoke(dashboards, ["/proc/none"])
    assert done.exit_code == 1
    assert "cannot be written" in done.output

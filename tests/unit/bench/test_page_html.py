"""The page as text: what it says, escaped, in one file, also of the committed results that have no series."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from ottla.bench.figures import COUNT, Figure, Goal
from ottla.bench.page.page import NO_SERIES, page
from ottla.bench.page.percentiles import percentiles_of
from ottla.bench.page.ratios import RatioAxis, is_more_better
from ottla.bench.page.series import Series
from ottla.bench.report import RESULTS, from_json
from tests.harness import bench_result

REPORT = bench_result.report()
SERIES = Series(seconds=bench_result.seconds(), samples=bench_result.samples(), events=bench_result.events())
VOID = {"meta", "path", "line", "br"}


class Reader(HTMLParser):
    """The text, and whether elements are closed in their order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.attributes = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in VOID
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))


def test_the_page_says_what_was_asked_and_how_it_was_measured():
    text = Reader(page(REPORT, SERIES)).text
    for words in (
        REPORT.title, REPORT.about, REPORT.command, "Apache Kafka 4.3.1", "commit abc1234",
        "medians of 5 interleaved runs", "Two producers & <no> rate.", "num.partitions=3", "9, 3, 3, 3",
        "broker 2 is killed, at 10 s; until led: Kafka 4.00 s, Ottla 2.00 s",
    ):  # fmt: skip
        assert words in text


def test_goals_and_the_worst_row_come_first():
    text = Reader(page(REPORT)).text
    assert (
        "1 of 2 goals met. Furthest from its goal: A leader is killed, CPU of all brokers: 3.00 / 2.70 = 0.90 missed"
        in text
    )
    assert text.index("goals met") < text.index("producer: p50")


def test_a_row_has_medians_the_range_of_the_runs_and_the_ratio():
    html = page(REPORT)
    [row] = [row for row in re.findall(r"<tr.*?</tr>", html) if "producer: p99" in row]
    assert Reader(row).words == [
        "producer: p99 ", "ms", "20.00", "18.00 \N{EN DASH} 22.00", "8.00", "6.00 \N{EN DASH} 10.00", "0.40",
    ]  # fmt: skip


def test_nothing_is_loaded_from_anywhere():
    reader = Reader(page(REPORT, SERIES))
    assert [
        value
        for name, value in reader.attributes
        if name in {"src", "href", "srcset", "action", "data"} and not value.startswith("#")
    ] == []
    assert "url(" not in page(REPORT, SERIES)
    assert "@import" not in page(REPORT, SERIES)


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", 'a"b', "a b&c", "</style>"])
def test_names_of_targets_may_have_any_characters(name):
    [section] = REPORT.sections
    [table] = section.tables
    renamed = replace(
        REPORT,
        targets={"kafka": "", name: "</script><b>"},
        sections=[
            replace(
                section,
                tables=[
                    replace(table, samples={"kafka": table.samples["kafka"], name: table.samples["ottla"]})
                ],
            )
        ],
    )
    rows = [row | {"target": name if row["target"] == "ottla" else "kafka"} for row in SERIES.seconds]
    html = page(renamed, replace(SERIES, seconds=rows))
    reader = Reader(html)
    assert name in reader.text
    assert html.count("<script") == html.count("</script>") == 4


def test_a_result_that_was_stopped_and_one_of_changed_code_say_so():
    assert "stopped before its last run" not in page(REPORT)
    assert "stopped before its last run" in page(replace(REPORT, is_partial=True))
    changed = replace(REPORT, environment=replace(REPORT.environment, is_changed=True))
    assert "uncommitted changes" in page(changed)


def test_three_targets_are_compared_with_the_first():
    [section] = REPORT.sections
    [table] = section.tables
    samples = {"old": table.samples["kafka"], "new": table.samples["ottla"], "other": table.samples["ottla"]}
    three = replace(
        REPORT,
        targets=dict.fromkeys(samples, ""),
        sections=[replace(section, tables=[replace(table, samples=samples)])],
    )
    text = Reader(page(three)).text
    assert "Compared with old" in text
    assert "new / old" in text
    assert "other / old" in text


def changed(metrics, goals=True):
    """The result with other values of Ottla, in all runs."""
    [section] = REPORT.sections
    [table] = section.tables
    samples = table.samples | {"ottla": [sample | metrics for sample in table.samples["ottla"]]}
    figures = table.figures if goals else [replace(figure, goal=None) for figure in table.figures]
    return replace(
        REPORT, sections=[replace(section, tables=[replace(table, samples=samples, figures=figures)])]
    )


@pytest.mark.parametrize(("metrics", "words"), [
    ({},              "All records that consumers had to read were read, and are right. Kafka: 0 lost. Ottla: 0 lost."),
    ({"lost": 2.0},   "Records were lost or damaged. Kafka: 0 lost. Ottla: 10 lost."),
])  # fmt: skip
def test_records_that_are_missing_are_said_at_once(metrics, words):
    assert words in Reader(page(changed(metrics))).text


@pytest.mark.parametrize(("goal", "words"), [
    (None,                                "All records that consumers had to read were read, and are right."),
    (Goal(at_most=0, is_absolute=True),   "Records were read twice or out of order."),
])  # fmt: skip
def test_records_that_are_read_twice_are_a_fault_where_that_may_not_be(goal, words):
    [section] = REPORT.sections
    [table] = section.tables
    samples = {target: [{"lost": 0.0, "duplicates": 3.0}] for target in table.samples}
    figures = [Figure(metric=name, title=name, unit=COUNT, goal=goal) for name in ("lost", "duplicates")]
    table = replace(table, samples=samples, figures=figures)
    text = Reader(page(replace(REPORT, sections=[replace(section, tables=[table])]))).text
    assert f"{words} Kafka: 0 lost, 3 read twice." in text


@pytest.mark.parametrize(("metric", "words"), [
    # Which ones are lost cannot be known
    ("corrupt",      "No record that was read is damaged. Kafka: 0 corrupt. Ottla: 0 corrupt."),
    ("acknowledged", None),  # no client reads
])  # fmt: skip
def test_unread_records_are_not_said_to_be_right(metric, words):
    [section] = REPORT.sections
    [table] = section.tables
    samples = {target: [{metric: 0.0}] for target in table.samples}
    figure = Figure(metric=metric, title=metric, unit=COUNT)
    table = replace(table, samples=samples, figures=[figure])
    text = Reader(page(replace(REPORT, sections=[replace(section, tables=[table])]))).text
    assert words in text if words else "read, and are right" not in text and "damaged" not in text


@pytest.mark.parametrize(("metrics", "words"), [
    ({},
     "A leader is killed, CPU of all brokers: Kafka 3.00 s/GB and Ottla 2.70 s/GB, ratio 0.90."),
    ({"producer_bytes_per_s": 50e6},
     "A leader is killed, producer: throughput: Kafka 100 MB/s and Ottla 50 MB/s, ratio 0.50."),
    ({"producer_bytes_per_s": 0.0},
     "A leader is killed, producer: throughput: Kafka 100 MB/s and Ottla 0 MB/s, ratio 0.00."),
])  # fmt: skip
def test_without_goals_the_worst_row_is_that_with_the_worst_ratio(metrics, words):
    assert f"Worst row of these: {words}" in Reader(page(changed(metrics, goals=False))).text


def test_there_is_a_column_of_goals_where_there_are_goals():
    assert ">goal</th>" in page(REPORT)
    assert ">goal</th>" not in page(changed({}, goals=False))


def dots(rows):
    """The number of marked points in each line that has some."""
    html = page(REPORT, Series(seconds=rows, samples=[], events=[]))
    return [path.count("h0") for path in re.findall(r'<path class="dots [^"]*" d="([^"]*)"', html)]


def test_few_points_are_marked():
    # Three percentiles and the rate, of two targets.
    assert dots([row for row in SERIES.seconds if row["second"] < 5]) == [5] * 8
    assert dots(SERIES.seconds) == []


def test_a_point_between_two_gaps_is_marked():
    assert dots([row | ({} if row["second"] == 15 else {"p99_s": None}) for row in SERIES.seconds]) == [1, 1]


def test_many_phases_have_links():
    [section] = REPORT.sections
    [table] = section.tables
    tables = [replace(table, name=f"p{at}", title=f"Phase {at}") for at in range(5)]
    html = page(replace(REPORT, sections=[replace(section, tables=tables)]))
    for at in range(5):
        [anchor] = re.findall(rf'<a href="#([^"]*)">Phase {at}</a>', html)
        assert html.count(f'id="{anchor}"') == 1
    assert "<nav" not in page(REPORT)


RESULT_FILES = [path for path in sorted(RESULTS.glob("*.json")) if from_json(path.read_text()) is not None]


@pytest.mark.parametrize("path", RESULT_FILES, ids=lambda path: path.stem)
def test_every_committed_result_has_a_page(path):
    report = from_json(path.read_text())
    text = Reader(page(report, NO_SERIES)).text
    for section in report.sections:
        for row in section.rows():
            assert row.table.title in text
            if row.median("ottla") is not None:
                assert row.figure.unit.shown(row.median("ottla")) in text


def test_there_are_committed_results():
    assert len(RESULT_FILES) >= 4


# -- parts ---------------------------------------------------------------------------------------------


def test_percentiles_are_those_of_each_load():
    [table] = REPORT.sections[0].tables
    [found] = percentiles_of(table, ["kafka", "ottla"])
    assert found.load == "producer"
    assert list(found.rows) == ["p50", "p99", "max"]
    assert found.scale().least <= 0.002
    assert found.scale().most >= 1.5


@pytest.mark.parametrize(("metric", "expected"), [
    ("producer_bytes_per_s", True),   # its goal is a lower bound
    ("cpu_s_per_gb",         False),
    ("producer_p99_s",       False),  # by its unit
])  # fmt: skip
def test_which_side_is_better(metric, expected):
    assert (
        is_more_better(next(row for row in REPORT.sections[0].rows() if row.figure.metric == metric))
        is expected
    )


@pytest.mark.parametrize(
    ("ratios", "end"), [([1.0], 2.0), ([1.9, 0.3], 5.0), ([0.0004], 10_000.0), ([0.0], 2.0)]
)
def test_the_axis_of_ratios_has_all_of_them_and_one_in_its_middle(ratios, end):
    axis = RatioAxis.holding(ratios)
    assert axis.end == end
    assert axis.part(1.0) == 0.5
    assert all(0 <= axis.part(ratio) <= 1 for ratio in ratios)
    assert axis.ticks() == sorted(axis.ticks())

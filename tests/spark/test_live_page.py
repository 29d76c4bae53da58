"""The live page of a cluster in a real browser: its numbers, odd records, a dead broker, all eyes and hands."""

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition

from ottla.bench.components import fetch
from ottla.command_line import main
from ottla.testing import Cluster
from tests.harness.chromium import Browser

_MARKUP = "<img src=x onerror='document.title=`harm`'><script>document.title='harm'</script>"
_ODD = f"{_MARKUP}\x1b[31m\x07\N{RIGHT-TO-LEFT OVERRIDE}"
#: The replicas of the partitions that are shown: of each row its words.
_REPLICAS = """
[...document.querySelectorAll(".partition")].map((section) => [...section.querySelectorAll("tbody tr")].map((row) =>
  [...row.children].map((cell) => cell.textContent)))
"""
_AXE = """
axe.run({ resultTypes: ["violations"] }).then(({ violations }) =>
  violations.map(({ id, nodes }) => [id, nodes.map((node) => node.html)]))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    config = {"metrics.listeners": "http://127.0.0.1:0", "offsets.topic.replication.factor": 1}
    with Cluster(2, config=config) as cluster:
        cluster.create_topic("orders", partitions=3)
        cluster.create_topic("odd")
        cluster.create_topic("alone", partitions=4, replicas=1)
        for partition in range(3):
            for number in range(20 + partition):
                cluster.produce("orders", b'{"n": %d}' % number, partition=partition)
        cluster.produce("odd", _ODD.encode(), key=_ODD.encode(), headers={"h": _MARKUP.encode()})
        cluster.produce("odd", b"\xff" * 1000, key=b"k" * 900_000)
        cluster.wait_until_in_sync("orders", "odd")
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "kitchen"}
        consumer = Consumer(settings)
        consumer.commit(offsets=[TopicPartition("orders", 1, 5)], asynchronous=False)
        consumer.close()
        yield cluster


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


def page_of(cluster):
    life = cluster.brokers[0].life
    return life.ask(lambda: life.node.http.addresses[0])


def go(browser, cluster, view, *, width=1280, is_dark=False):
    browser.open("about:blank", width=width)  # another fragment alone would not load the page again
    browser.open(f"{page_of(cluster)}/#/{view}", width=width, is_dark=is_dark)
    browser.wait_for("document.querySelector('#content')?.getAttribute('aria-busy') === 'false'")


def ottla(cluster, *arguments):
    """The rows that a command prints as JSON."""
    done = CliRunner().invoke(main, [*arguments, "--json", "--bootstrap-server", cluster.bootstrap_servers])
    return [json.loads(line) for line in done.output.splitlines()]


def number(text):
    return int(text.replace("\N{NARROW NO-BREAK SPACE}", ""))


def test_numbers_are_those_of_the_commands(browser, cluster):
    go(browser, cluster, "topic?topic=orders")
    shown = {
        (partition, int(cells[0].removeprefix("broker "))): [number(cells[at]) for at in (3, 6, 7)]
        for partition, rows in enumerate(browser.evaluate(_REPLICAS))
        for cells in rows
    }
    expected = {
        (int(row["partition"].rpartition("-")[2]), replica["broker"]): [
            replica[name] for name in ("log_start_offset", "high_watermark", "log_end_offset")
        ]
        for row in ottla(cluster, "partitions", "describe", "orders")
        for replica in row["replicas"]
    }
    assert shown == expected
    assert len(expected) == 6
    [status] = ottla(cluster, "cluster", "status")
    go(browser, cluster, "overview")
    assert status["level"] == "healthy"
    sentence = browser.evaluate("document.querySelector('.sentence').textContent")
    assert status["sentence"] == f"Healthy: {sentence}"
    go(browser, cluster, "group?group=kitchen")
    assert browser.evaluate("document.querySelector('.fact dd').firstChild.data") == "16"


def test_a_view_changes_while_it_is_watched(browser, cluster):
    cluster.create_topic("live")
    go(browser, cluster, "topic?topic=live")
    browser.evaluate("document.querySelector('.partition h2 a').focus()")
    cluster.produce("live", b"x")
    browser.wait_for("document.querySelector('.partition tbody tr').children[7].textContent === '1'")
    assert browser.evaluate("document.activeElement.textContent") == "Partition 0", (
        "what has the focus is kept"
    )


def test_odd_records_do_no_harm(browser, cluster):
    browser.complaints.clear()
    browser.requests.clear()
    go(browser, cluster, "records?topic=odd&partition=0&offset=0", width=360)
    text = browser.evaluate("document.body.innerText")
    assert text.count(_MARKUP) == 3, "key, value and header, as they are"
    assert "900\N{NARROW NO-BREAK SPACE}000 bytes in all" in text
    assert not {"\x1b", "\x07", "\N{RIGHT-TO-LEFT OVERRIDE}"} & set(text)
    assert browser.evaluate("document.title").startswith("Records of odd")
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360
    assert browser.evaluate("document.querySelectorAll('#content img, #content script').length") == 0
    assert browser.complaints == []
    # The browser's own picture in a field for a date has an address that begins with data:.
    own = (page_of(cluster), "about:", "data:image/svg")
    assert [url for url in browser.requests if not url.startswith(own)] == []


VIEWS = [
    "overview", "topics", "topics?search=none", "topic?topic=orders", "partition?topic=orders&partition=1",
    "records?topic=odd&partition=0&offset=0", "groups", "group?group=kitchen", "topic?topic=unknown",
]  # fmt: skip


@pytest.mark.parametrize(("width", "is_dark", "views"), [
    (1280, False, VIEWS), (360, True, VIEWS), (1280, True, VIEWS[:1]), (360, False, VIEWS[3:4]),
])  # fmt: skip
def test_all_views_can_be_read_and_reached(browser, cluster, width, is_dark, views):
    axe = fetch.axe().read_text()
    for view in views:
        go(browser, cluster, view, width=width, is_dark=is_dark)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width, view
        browser.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        browser.evaluate(axe)
        assert browser.evaluate(_AXE) == [], view


def test_a_form_is_used_by_the_keyboard(browser, cluster):
    go(browser, cluster, "topics")
    browser.evaluate("document.querySelector('#control-search').focus()")
    for letter in "ord":
        browser.press(letter, text=letter)
    browser.wait_for("location.hash === '#/topics?search=ord&order=name'")
    browser.wait_for("document.querySelectorAll('#content tbody tr').length === 1")
    assert browser.evaluate("document.activeElement.id") == "control-search"


def test_a_dead_broker_blanks_its_own_cells_only(browser, cluster):
    go(browser, cluster, "topic?topic=alone")
    cluster.kill(2)
    browser.wait_for("document.querySelector('#content').textContent.includes('no leader')")
    rows = [cells for [cells] in browser.evaluate(_REPLICAS)]
    assert len(rows) == 4
    for cells in rows:
        assert len(cells) == (3 if cells[0] == "broker 2" else 9), cells
    go(browser, cluster, "overview")
    browser.wait_for("document.querySelector('.health.bad') !== null")
    reasons = browser.evaluate(
        "[...document.querySelectorAll('.reasons li')].map((each) => each.textContent)"
    )
    [status] = ottla(cluster, "cluster", "status")
    assert [each["text"] for each in status["reasons"] if "groups" not in each["text"]] == reasons
    cluster.brokers[0].kill()
    browser.wait_for("document.querySelector('#connection').textContent.startsWith('Disconnected')")
    assert browser.evaluate("document.querySelectorAll('.reasons li').length") > 0, "what was known stays"

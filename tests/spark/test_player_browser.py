"""The player in a real browser, from a folder on a disk: every story to its end and back, for all eyes and hands."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from ottla.bench.components import fetch
from ottla.stories import hour, site, traces
from ottla.stories.serving import StoryServer
from ottla.stories.trace import Entry, Index
from tests.harness.chromium import Browser

#: Plays the open story to its end and back; returns what was shown of each step, and on the way back.
_PLAY = """
(() => {
  const texts = (selector, within = document) => [...within.querySelectorAll(selector)].map((each) => each.textContent);
  const [first, back, next] = document.querySelectorAll(".controls button");
  const seen = [];
  for (;;) {
    seen.push({
      command: texts(".command")[0], line: texts(".listing [aria-current]")[0], printed: texts(".printed li"),
      messages: texts(".message .says"),
      logs: [...document.querySelectorAll(".replica")].map((row) => [
        texts(".who b", row)[0], texts(".cell:not(.remote, .gone)", row), texts(".after .epoch", row).join(" "),
      ]),
    });
    if (next.disabled) break;
    next.click();
  }
  back.click();
  const before = texts(".command")[0];
  first.click();
  return { seen, before, begin: texts(".command")[0] };
})()
"""
_MARKUP = "<img src=x onerror='document.title=`harm`'>\N{RIGHT-TO-LEFT OVERRIDE}\x07"


@pytest.fixture(scope="module")
def stories():
    return {trace.name: trace for trace in traces.all_traces()}


@pytest.fixture(scope="module")
def page(stories, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    site.build(folder, list(stories.values()))
    return folder / "index.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


def go(browser, page, fragment, *, width=1280, is_dark=False):
    browser.open("about:blank", width=width)  # another fragment alone would not load the page again
    browser.open(f"{page.as_uri()}#{fragment}", width=width, is_dark=is_dark)
    browser.wait_for("document.querySelector('h1') !== null")


def shown_logs(step):
    """Return name, records and checkpoint of each replica or node, as text."""
    return [
        [
            each.name,
            [f"{cell.value}e{cell.epoch}" for cell in each.cells],
            " ".join(f"e{epoch}@{start}" for epoch, start in getattr(each, "epochs", [])),
        ]
        for each in step.replicas or step.nodes or []
    ]


def test_every_story_is_played_to_its_end_and_back(browser, page, stories):
    browser.complaints.clear()
    browser.requests.clear()
    go(browser, page, "")
    for name, trace in stories.items():
        browser.evaluate(f"location.hash = '#{name}'")
        browser.wait_for(f"document.querySelector('.story code')?.textContent === '{name}'")
        played = browser.evaluate(_PLAY)
        lines = trace.text.splitlines()
        assert [
            (each["command"], each["line"], each["printed"], each["messages"], each["logs"])
            for each in played["seen"]
        ] == [
            (
                step.command,
                lines[step.line - 1],
                step.says,
                [each.line for each in step.messages],
                shown_logs(step),
            )
            for step in trace.steps
        ], name
        assert (played["before"], played["begin"]) == (trace.steps[-2].command, trace.steps[0].command)
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith("file:")] == []


def test_every_planted_bug_is_seen_as_a_difference(browser, page, stories):
    bugs = [(name, bug) for name, trace in stories.items() for bug in trace.planted]
    assert len(bugs) >= 5
    go(browser, page, "")
    for name, bug in bugs:
        browser.evaluate(f"location.hash = '#{name}/{len(bug.steps)}/{bug.name}'")
        browser.wait_for(f"document.querySelector('.story code')?.textContent === '{name}'")
        browser.wait_for(f"document.querySelector('.compared .run + .run h3')?.textContent === {bug.title!r}")
        browser.wait_for(f"document.querySelector('.outcome')?.textContent === {'Its end: ' + bug.outcome!r}")
        counts = browser.evaluate(
            """(() => { const counts = []; for (let at = 0; at < 1000; at += 1) {
              counts.push(document.querySelectorAll('.differs, .printed .other').length);
              const back = document.querySelectorAll('.controls button')[1];
              if (back.disabled) return counts;
              back.click();
            } })()"""
        )
        assert max(counts) > 0 or len(bug.steps) < len(stories[name].steps), (name, bug.name)
        assert counts[-1] == 0, "both runs begin alike"
        if len(bug.steps) < len(stories[name].steps):
            browser.evaluate(f"location.hash = '#{name}/{len(bug.steps) + 1}/{bug.name}'")
            browser.wait_for("document.body.innerText.includes('This run has ended')")


COMPARED = "lineage/scenario_2/17/truncates_to_high_watermark"
FRAGMENTS = ["", "hour", "hour/1", "hour/1/7", "tiering/unclean_election/23", COMPARED]
_AXE = """
axe.run({ resultTypes: ["violations"] }).then(({ violations }) =>
  violations.map(({ id, nodes }) => [id, nodes.map((node) => node.html)]))
"""


@pytest.mark.parametrize(("width", "is_dark", "fragments"), [
    (1280,  False, FRAGMENTS),
    (360,   True,  FRAGMENTS),
    (1280,  True,  [COMPARED]),
    (360,   False, [COMPARED]),
])  # fmt: skip
def test_readers_can_read_and_reach_everything(browser, page, width, is_dark, fragments):
    axe = fetch.axe().read_text()
    for fragment in fragments:
        go(browser, page, fragment, width=width, is_dark=is_dark)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width, fragment
        browser.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        browser.evaluate(axe)
        assert browser.evaluate(_AXE) == [], fragment


def test_no_story_is_wider_than_a_phone(browser, page, stories):
    go(browser, page, "", width=360)
    for name, trace in stories.items():
        browser.evaluate(f"location.hash = '#{name}/{len(trace.steps) - 1}'")
        browser.wait_for(f"document.querySelector('.story code')?.textContent === '{name}'")
        assert browser.evaluate("document.documentElement.scrollWidth") <= 360, name


def test_arrow_keys_and_the_slider_are_steps(browser, page):
    go(browser, page, "lineage/scenario_1/3")
    for key, step in (("ArrowRight", 4), ("ArrowRight", 5), ("ArrowLeft", 4)):
        browser.press(key)
        browser.wait_for(f"location.hash === '#lineage/scenario_1/{step}'")
    browser.evaluate("document.querySelector('input[type=range]').focus()")
    browser.evaluate(
        "document.activeElement.value = 9; document.activeElement.dispatchEvent(new Event('input'))"
    )
    assert browser.evaluate("document.querySelector('.step').textContent") == "Step 9 of 16"
    browser.wait_for("location.hash === '#lineage/scenario_1/9'")


def test_a_question_is_answered_in_the_next_step(browser, page):
    go(browser, page, "hour/1/7")
    assert browser.evaluate("document.querySelector('.text').hidden"), "the text has the answer"
    assert browser.evaluate("document.querySelector('.question button').disabled")
    browser.evaluate("document.querySelectorAll('.question input')[0].click()")
    browser.evaluate("document.querySelector('.question button').click()")
    browser.wait_for("location.hash === '#hour/1/8'")
    assert browser.evaluate("document.activeElement.className") == "answer wrong"
    answer = browser.evaluate("document.querySelector('.answer.wrong').textContent")
    assert "You have said: m1 only" in answer
    assert "No: m1 and m2" in answer


def test_every_lesson_of_the_hour_has_its_questions(browser, page, stories):
    lessons = hour.lessons({name: [step.command for step in trace.steps] for name, trace in stories.items()})
    assert len(lessons) >= 6
    for number, lesson in enumerate(lessons, start=1):
        go(browser, page, f"hour/{number}")
        browser.wait_for("document.querySelectorAll('.before p').length === 3")
        for pause in lesson["pauses"]:
            go(browser, page, f"hour/{number}/{pause['step']}")
            browser.wait_for(
                f"document.querySelector('.step')?.textContent.startsWith('Step {pause['step']} ')"
            )
            assert browser.evaluate("document.querySelector('.command').textContent") == pause["command"]
            assert browser.evaluate("document.querySelectorAll('.question input').length") == len(
                pause["answers"]
            )


def test_a_message_opens_to_its_fields_and_its_bytes(browser, page, stories):
    step = next(at for at, each in enumerate(stories["lineage/scenario_1"].steps, start=1) if each.messages)
    message = stories["lineage/scenario_1"].steps[step - 1].messages[0]
    go(browser, page, f"lineage/scenario_1/{step}")
    browser.evaluate("document.querySelector('.message').open = true")
    browser.wait_for("document.querySelector('.inside') !== null")
    shown = browser.evaluate("document.querySelector('.inside').textContent")
    assert f"{message.api} {message.kind} version {message.version}" in shown
    assert all(name in shown for name in message.fields)
    hexadecimal = browser.evaluate("document.querySelector('.hex').textContent")
    assert message.frame[:32] == "".join(hexadecimal.split("\n")[0].split()[1:17])


def test_markup_and_invisible_letters_are_text(stories, tmp_path):
    trace = stories["lineage/scenario_1"]
    step = trace.steps[3]
    odd = replace(
        step,
        command=_MARKUP,
        comment=_MARKUP,
        says=[_MARKUP],
        messages=[replace(step.messages[0], line=_MARKUP, fields={_MARKUP: _MARKUP})],
        events=[replace(each, line=_MARKUP, rule=_MARKUP) for each in step.events],
        replicas=[
            replace(each, name=_MARKUP, cells=[replace(cell, value=_MARKUP) for cell in each.cells])
            for each in step.replicas
        ],
    )
    odd_trace = replace(trace, title=_MARKUP, text=_MARKUP, kips=[_MARKUP], steps=[odd], planted=[])
    entry = Entry(name=trace.name, room="lineage", title=_MARKUP, kips=[_MARKUP], steps=1, planted=[])
    player = [(name, content) for name, _, content in site.player_files()]
    for name, content in [
        *player,
        *site.trace_files(odd_trace, with_json=False),
        *site.index_files(Index(stories=[entry]), with_json=False),
    ]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with Browser() as browser:
        go(browser, tmp_path / "index.html", "")
        assert browser.evaluate("document.querySelectorAll('img').length") == 0
        go(browser, tmp_path / "index.html", trace.name)
        browser.wait_for("document.querySelector('.story') !== null")
        browser.evaluate("document.querySelector('.message').open = true")
        browser.wait_for("document.querySelector('.inside') !== null")
        assert browser.evaluate("document.querySelectorAll('img').length") == 0
        shown = browser.evaluate("document.body.innerText")
        assert "<img src=x" in shown
        assert not set("\N{RIGHT-TO-LEFT OVERRIDE}\x07") & set(shown)
        assert "\\u202e\N{SYMBOL FOR BELL}" in shown
        assert browser.complaints == []


def test_nothing_can_be_changed_where_nothing_runs_it(browser, page):
    go(browser, page, "lineage/scenario_1")
    browser.wait_for("document.querySelector('.listing') !== null")
    assert browser.evaluate("document.querySelectorAll('textarea').length") == 0


@pytest.fixture
def served() -> Iterator[str]:
    with StoryServer(0) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.url
        server.shutdown()
        thread.join()


def change(browser, text):
    browser.evaluate(
        "[...document.querySelectorAll('.text button')].find((each) => each.offsetParent).click()"
    )
    browser.evaluate(f"document.querySelector('textarea').value = {text!r}")
    browser.evaluate("document.querySelector('.editor .main').click()")


def test_a_changed_story_is_run_where_it_is_served(browser, served):
    browser.open(f"{served}#lineage/scenario_1", width=1280)
    browser.wait_for("document.querySelector('.text button') !== null")
    change(browser, "# KIP-101: mine.\n\nreplicas A B\nA leaps\n----\n")
    browser.wait_for("document.querySelector('.failed').textContent.startsWith('Line 4: ')")
    browser.evaluate("[...document.querySelectorAll('.editor button')].at(-1).click()")
    change(browser, "# KIP-101: mine.\n\nreplicas A B\nA leads e0\nA writes x y\n----\n")
    browser.wait_for("document.querySelector('.changed') !== null")
    browser.evaluate("document.querySelectorAll('.controls button')[3].click()")
    shown = browser.evaluate("[...document.querySelectorAll('.cell')].map((each) => each.textContent)")
    assert shown[:2] == ["xe0", "ye0"]
    browser.evaluate("document.querySelector('.changed button').click()")
    browser.wait_for("document.querySelector('.step')?.textContent.endsWith('of 16')")

"""`ottla play` and `ottla docs build`: what is printed and written."""

import asyncio
import json
import os
import pty
import re
import selectors
import subprocess
import sys
import termios

import click
import pytest
from click.testing import CliRunner

from ottla.command_line import main
from ottla.stories import catalog, docs_command, site
from ottla.stories.hour import BadHour, lessons
from ottla.stories.recording import record
from ottla.stories.script import StoryError, commands, difference, played
from ottla.stories.traces import trace_of
from tests.harness.waiting import until


def invoke(*words):
    return CliRunner().invoke(main, ["play", *words])


def test_the_stories_are_listed():
    done = invoke()
    assert done.exit_code == 0
    assert len(re.findall(r"^  \w+/\w+  ", done.output, re.MULTILINE)) == len(catalog.names()) >= 77


def test_a_story_without_a_terminal_is_printed_without_colours():
    done = invoke("lineage/scenario_2")
    assert done.exit_code == 0
    assert click.unstyle(done.output) == done.output
    assert "[18/18, line 44]" in done.output
    assert "* A truncates 2 to 1" in done.output
    assert re.search(
        r"replication/follower\.py:\d+  ottla\.replication\.follower\.Follower\.on_divergence", done.output
    )


def test_a_planted_bug():
    assert "divergent at 1" not in invoke("lineage/scenario_2").output.rpartition("[18/18")[2]
    done = invoke("lineage/scenario_2", "--bug", "truncates_to_high_watermark")
    assert "divergent at 1" in done.output.rpartition("[18/18")[2]


@pytest.mark.parametrize(("words", "sentence"), [
    (["lineage/senario_2"],                     "Did you mean lineage/scenario_2"),
    (["xyzzy"],                                 "There is no story 'xyzzy'. `ottla play` lists them."),
    (["lineage/scenario_2", "--bug", "none"],   "its bugs are truncates_to_high_watermark"),
    (["quorum/epochs", "--bug", "none"],        "it shows none"),
])  # fmt: skip
def test_what_is_not_there(words, sentence):
    done = invoke(*words)
    assert done.exit_code != 0
    assert sentence in done.output


def test_a_name_may_be_the_path_of_the_file():
    assert catalog.story("tests/scenario/lineage/scenario_2.txt").name == "lineage/scenario_2"


def is_raw(terminal):
    """Whether a program reads single keys; those that came before are discarded."""
    return not termios.tcgetattr(terminal)[3] & termios.ICANON


def test_keys_lead_forwards_and_backwards():
    parent, child = pty.openpty()
    words = [sys.executable, "-m", "ottla", "play", "lineage/scenario_2"]
    process = subprocess.Popen(words, stdin=child, stdout=child, env={**os.environ, "TERM": "xterm"})
    selector = selectors.DefaultSelector()
    selector.register(parent, selectors.EVENT_READ)
    try:
        for key, shown in (
            ("", "[1/18"),
            (" ", "[2/18"),
            ("G", "[18/18"),
            ("\x1b[D", "[17/18"),
            ("g", "[1/18"),
        ):
            os.write(parent, key.encode())
            output = ""
            while shown not in output:
                assert selector.select(60), output
                output += os.read(parent, 65536).decode(errors="replace")
            asyncio.run(until(lambda: is_raw(child)))
        os.write(parent, b"q")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        selector.close()
        os.close(child)
        os.close(parent)


def test_the_files_of_a_site(tmp_path):
    trace = trace_of(catalog.story("groups/group_is_full"))
    size = site.build(tmp_path, [trace], with_json=True)
    files = {
        str(file.relative_to(tmp_path)): file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()
    }
    assert size == sum(map(len, files.values()))
    assert {"index.html", "play.js", "traces/index.js", "traces/groups/group_is_full.js"} <= files.keys()
    assert json.loads(files["traces/groups/group_is_full.json"])["name"] == trace.name
    # Nothing is loaded from a network: the only absolute address is the name of the SVG namespace.
    for name, data in files.items():
        assert set(re.findall(rb"https?://[^\s\"'`<>)]+", data)) <= {b"http://www.w3.org/2000/svg"}, name


def test_a_site_that_cannot_be_written_is_one_sentence_with_the_path(tmp_path, monkeypatch):
    monkeypatch.setattr(docs_command, "all_traces", list)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "traces").write_text("a file in the way")
    done = CliRunner().invoke(main, ["docs", "build", str(tmp_path / "site")])
    assert done.exit_code == 1
    assert re.fullmatch(r"Error: The site cannot be written: \S+traces\S*: .*\n", done.output), done.output


@pytest.mark.parametrize(("lesson", "words"), [
    ('story = "a/none"',                                        "is no story"),
    ('story = "a/b"\nuntil = 4',                                "has 3 steps"),
    ('story = "a/b"\npauses = [{step = 3, command = "z", answers = ["1"], right = 0}]',   "in no step that is played"),
    ('story = "a/b"\npauses = [{step = 2, command = "x", answers = ["1"], right = 0}]',   "step 2 is 'y', and not 'x'"),
    ('story = "a/b"\npauses = [{step = 1, command = "x", answers = ["1"], right = 1}]',   "right=1"),
])  # fmt: skip
def test_an_hour_that_does_not_fit_its_stories(lesson, words):
    with pytest.raises(BadHour, match=re.escape(words)):
        lessons({"a/b": ["x", "y", "z"]}, f"[[hour]]\n{lesson}\n")


def test_the_format_of_a_story():
    text = "# Title.\n\n# Why.\na\nb\n----\nold\n\n# Between.\n\nc\n----\n"
    found = commands(text)
    assert [(each.line, each.block, each.text, each.comment) for each in found] == [
        (4, 1, "a", "Why."), (5, 1, "b", None), (11, 2, "c", "Between."),
    ]  # fmt: skip
    new = played(text, lambda line: [line.upper()])
    assert new == "# Title.\n\n# Why.\na\nb\n----\nA\nB\n\n# Between.\n\nc\n----\nC\n"
    changed = difference(text, new, name="x").splitlines()
    assert [line for line in changed if line[0] in "+-"][2:] == ["-old", "+A", "+B", "+C"]
    with pytest.raises(StoryError, match="line 3: commands end"):
        commands("# Title.\n\na\n")


@pytest.mark.parametrize("room", catalog.ROOMS)
@pytest.mark.parametrize("command", ["foo", "foo bars", "show tomatoes now"])
def test_a_command_that_no_stage_knows(room, command):
    stories = [catalog.story(name) for name in catalog.names() if name.startswith(f"{room}/")]
    first = commands(stories[0].text)[0].text
    with pytest.raises(StoryError, match=r"line 4: .* cannot be played here"):
        record(f"# KIP-1\n\n{first}\n{command}\n----\n", stories[0].new_stage())

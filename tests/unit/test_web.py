"""The files of the pages are complete: all of them are given out, and all that they name is there."""

import re
from pathlib import Path

import pytest

from ottla import web
from ottla.stories import catalog, script

ROOT = Path(__file__).parents[2]
FILES = {name: content.decode() for name, _, content in web.files()}
PAGES = [name for name in FILES if name.endswith(".html")]


def test_every_file_of_the_room_is_given_out_with_its_type():
    others = {"README.md", "__init__.py", "__pycache__"}
    assert {path.name for path in (ROOT / "web").iterdir()} - others == set(FILES)
    kinds = {name: content_type for name, content_type, _ in web.files()}
    assert kinds["play.html"] == "text/html; charset=utf-8"
    assert kinds["draw.js"] == "text/javascript; charset=utf-8"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_files_of_the_room_only(page):
    named = re.findall(r'<(?:script|link)\b[^>]*(?:src|href)="([^"]+)"', FILES[page])
    assert len(named) > 2
    there = {*FILES, "traces/index.js", "data:,"}
    assert [name for name in named if name not in there] == []


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_scripts_parse_no_text_as_html(name):
    assert (
        re.findall(r"\b(?:innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval)\b", FILES[name]) == []
    )


def test_the_kips_of_the_stories_are_named_as_in_the_documents():
    text = (ROOT / "docs/kips/README.md").read_text()
    titles = {
        f"KIP-{number}": title
        for number, title in re.findall(r"^\| \[(\d+)\]\([^)]+\) \| ([^|]*) \|", text, re.MULTILINE)
    }
    shown = dict(re.findall(r'^    "(KIP-\d+)": "(.*)",$', FILES["kips.js"], re.MULTILINE))
    assert shown == {kip: titles[kip] for kip in shown}
    played = {kip for name in catalog.names() for kip in script.kips(catalog.story(name).text)[:1]}
    assert sorted(played - shown.keys()) == []


def test_the_legend_is_that_of_the_stage():
    body = FILES["draw.js"].partition("function legend(steps)")[2].partition("return el")[0]
    items = body.partition("const items = [")[2].splitlines()
    shown = [line.strip() for line in items if "[" in line]
    assert len(shown) == 8
    assert [line for line in shown if not re.match(r"\(?(logsOf\.|has\()", line)] == []
    assert "legend(trace.steps)" in FILES["story.js"]

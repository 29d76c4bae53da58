"""Checks that linters cannot make: documents that point to nothing, modules that grow, words that should not
stay.

Documents name paths in backticks, and behind a path, in brackets, what is in that file:
`storage/log.py` (`append_as_leader`). Both must exist. The path may be a link; in docs/kips it is one.
"""

import ast
import doctest
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "runtime",
    "protocol",
    "metadata",
    "replication",
    "config",
    "storage",
    "remote",
    "controller",
    "broker",
    "web",
)
GENERATED = {ROOT / "protocol/messages", ROOT / "protocol/error_code.py"}
KIPS = ROOT / "docs/kips"
MAX_LINES, MAX_TEST_LINES = 600, 800

PRODUCT = [
    *sorted((ROOT / "ottla").glob("*.py")),
    *(file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))),
]
OTHERS = [
    file
    for folder in ("bench", "testing", "stories", "tests")
    for file in sorted((ROOT / folder).rglob("*.py"))
]
WRITTEN = [file for file in PRODUCT if not GENERATED & {file, file.parent}]
DOCUMENTS = [
    *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "SECURITY.md")),
    *(
        readme
        for folder in (*PACKAGES, "bench", "docker", "testing", "stories", "tests")
        for readme in (ROOT / folder).glob("*.md")
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
]

#: `path` in backticks: with a folder, or a file name alone as in "the receive buffer (`receive_buffer.py`)".
_PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:py|md|txt|toml))`")
_TOP_FOLDERS = {*PACKAGES, "bench", "testing", "stories", "docker", "docs", "tests", "requirements", ".ci"}
#: `path.py` (`name`, `Class.name`: words, `name`)
_NAMES_OF = re.compile(r"`([\w/]+\.py)`\s+\(([^()]*`[^()]*)\)")
#: [`path`](target), in which the brackets of the target are no list of names.
_LINKED = re.compile(r"\[`([^`]*)`\]\(([^()]*)\)")
_NAME = re.compile(r"`([A-Za-z_][\w.]*)`")
_TEST = re.compile(r"`(test_\w+)`")
_STATES = ("served", "partly", "not yet")


def ids(files):
    return [str(file.relative_to(ROOT)) for file in files]


@cache
def text_of(file):
    return file.read_text()


@cache
def file_names():
    return {file.name for file in [*PRODUCT, *OTHERS, *DOCUMENTS, *ROOT.iterdir()]}


def is_in_tree(path):
    if "/" not in path:
        return path in file_names()
    if path.split("/")[0] in _TOP_FOLDERS:
        return (ROOT / path).exists()
    return True  # a folder of the user's, or of a data directory


def paths_in(document):
    return sorted(set(_PATH.findall(text_of(document))))


def without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def names_in(document):
    """(path, name) for each name that a document says is in a file of Python."""
    for path, words in _NAMES_OF.findall(_LINKED.sub(r"`\1`", text_of(document))):
        for name in _NAME.findall(words):
            yield path, name.rsplit(".", 1)[-1]


def files_of(path):
    """The files that a document means: by a path of the repository, or the end of one."""
    if (ROOT / path).exists():
        return [ROOT / path]
    return [file for file in [*PRODUCT, *OTHERS] if str(file).endswith(f"/{path}")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids(DOCUMENTS))
def test_what_a_document_points_to_exists(document):
    assert [path for path in paths_in(document) if not is_in_tree(path)] == []


#: [words](target): to a file, with or without a heading of it, or to a heading of the same document.
_LINK = re.compile(r"\]\((?!https?://)([^()#\s]*)(?:#([\w-]+))?\)")


def anchor_of(heading):
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@cache
def anchors_of(file):
    headings = re.findall(r"^#+ (.*)", without_code(text_of(file)), re.MULTILINE)
    return {anchor_of(heading) for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids(DOCUMENTS))
def test_links_lead_to_files_and_headings(document):
    links = [
        (document.parent / path if path else document, anchor)
        for path, anchor in _LINK.findall(text_of(document))
    ]
    assert [
        f"{file}#{anchor}"
        for file, anchor in links
        if not file.exists() or (anchor and anchor not in anchors_of(file))
    ] == []


@cache
def names_of(file):
    """The names that a module defines: functions, classes, methods, and names that it assigns."""
    names = set()
    for node in ast.walk(ast.parse(text_of(file))):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
    return names


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids(DOCUMENTS))
def test_names_are_defined_in_the_files_that_a_document_says(document):
    missing = [
        (path, name)
        for path, name in names_in(document)
        if not any(file.exists() and name in names_of(file) for file in files_of(path))
    ]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids(DOCUMENTS))
def test_a_document_names_the_files_of_tests(document):
    """`test_this` alone is not found by a reader, nor by the test above."""
    named = {name for _, name in names_in(document)}
    assert sorted(set(_TEST.findall(text_of(document))) - named) == []


#: A step of a life: "1. **Broker 2, `broker/replicas/`**: ...", and what follows up to the next step.
_STEP = re.compile(r"^\d+\. \*\*((?:[^`*]+, )?)`([\w/]+/)`\*\*(.*?)(?=^\d+\. |^$)", re.MULTILINE | re.DOTALL)
LIVES = dict(
    re.findall(
        r"^## (Life of .*?)\n(.*?)(?=^## )", text_of(ROOT / "ARCHITECTURE.md"), re.MULTILINE | re.DOTALL
    )
)


@pytest.mark.parametrize("life", LIVES)
def test_a_life_enters_no_folder_twice(life):
    """A step of a life names files of its folder only; a node does not enter a folder again."""
    steps = _STEP.findall(LIVES[life])
    entered = [(node, folder) for node, folder, _ in steps]
    assert len(steps) >= 5
    assert len(set(entered)) == len(entered), entered
    assert [
        (folder, path)
        for _, folder, text in steps
        for path in _PATH.findall(text)
        if not (ROOT / folder / path).exists()
    ] == []


def test_every_package_has_a_readme():
    assert [package for package in PACKAGES if not (ROOT / package / "README.md").exists()] == []


# docs/kips


def kip_rows():
    """Number -> (where the row leads, state), from the index."""
    lines = [line for line in text_of(KIPS / "README.md").splitlines() if line.startswith("| [")]
    rows = [re.match(r"\| \[(\d+)\]\(([^)]+)\) \|[^|]*\| ([^|]*) \|", line) for line in lines]
    assert None not in rows, lines[rows.index(None)]
    found = {int(row[1]): (row[2], row[3]) for row in rows}
    assert len(rows) == len(found), "a KIP is in the index twice"
    return found


def kip_pages():
    return {int(page.stem.removeprefix("KIP-")): page for page in KIPS.glob("KIP-*.md")}


def kip_entries():
    """Number -> (title, text) of each KIP that the index describes itself, under "Short ones", in its order."""
    _, entries = text_of(KIPS / "README.md").split("\n## Short ones\n")
    _, *parts = re.split(r"^### KIP-(\d+): (.*)\n", entries, flags=re.MULTILINE)
    assert not re.search("^#", "".join(parts[2::3]), re.MULTILINE), "a heading that is none of a KIP"
    numbers = [int(number) for number in parts[::3]]
    assert numbers == sorted(set(numbers))
    return dict(zip(numbers, zip(parts[1::3], parts[2::3], strict=True), strict=True))


def kip_texts():
    """Number -> what is said of the KIP: by its page, or by its entry in the index."""
    return {
        **{number: text_of(page) for number, page in kip_pages().items()},
        **{number: text for number, (_, text) in kip_entries().items()},
    }


def test_the_index_of_kips_is_complete_and_in_order():
    """Each row leads to the KIP's page, or to its entry in the index: one of them is there, and not both."""
    pages, entries = kip_pages(), kip_entries()
    assert sorted(pages.keys() & entries.keys()) == []
    targets = {
        **{number: page.name for number, page in pages.items()},
        **{number: f"#{anchor_of(f'KIP-{number}: {title}')}" for number, (title, _) in entries.items()},
    }
    assert {number: target for number, (target, _) in kip_rows().items()} == targets
    assert list(kip_rows()) == sorted(targets)
    assert {page.name for page in KIPS.iterdir()} == {"README.md", *(page.name for page in pages.values())}


def test_every_kip_that_the_code_names_is_in_the_index():
    named = {int(number) for file in WRITTEN for number in re.findall(r"\bKIP-(\d+)", text_of(file))}
    assert sorted(named - set(kip_rows())) == []


@pytest.mark.parametrize("number", sorted(kip_pages()))
def test_a_page_of_a_kip_has_its_title(number):
    assert text_of(kip_pages()[number]).startswith(f"# KIP-{number}: ")


@pytest.mark.parametrize("number", sorted(kip_texts()))
def test_the_text_of_a_kip_says_it_all(number):
    text = kip_texts()[number]
    for heading in ("Asks", "Here", "Where", "Test", "Differs from Kafka"):
        assert len(re.findall(rf"^(?:- )?\*\*{heading}:\*\* ", text, re.MULTILINE)) == 1, heading
    _, state = kip_rows()[number]
    assert state in _STATES
    assert f"**Here:** {state}." in text
    assert any(path.startswith("tests/") for path in _PATH.findall(text)), "no test is named"


def evidence_in(text):
    """The test files and folders that the text of a KIP names behind **Test:**."""
    [section] = re.findall(r"^(?:- )?\*\*Test:\*\* (.*?)(?=^(?:- )?\*\*)", text, re.MULTILINE | re.DOTALL)
    return [ROOT / path for path in _PATH.findall(section) if path.startswith("tests/")]


def files_in(path):
    return [file for file in path.rglob("*") if file.suffix in (".py", ".txt")] if path.is_dir() else [path]


@pytest.mark.parametrize("number", sorted(kip_texts()))
def test_the_evidence_of_a_kip_names_it(number):
    """A test that does not know of the KIP was not written, or read, for it."""
    name = re.compile(rf"\bKIP-{number}\b")
    evidence = evidence_in(kip_texts()[number])
    silent = [path for path in evidence if not any(name.search(text_of(file)) for file in files_in(path))]
    assert ids(silent) == []
    [first] = re.findall(
        rf"^\| \[{number}\].*\| \[`([^`]*)`\]\([^)]*\) \|$", text_of(KIPS / "README.md"), re.MULTILINE
    )
    assert {ROOT / first, (ROOT / first).parent} & set(evidence), "the index names another test than the text"


@pytest.mark.parametrize("page", sorted(KIPS.iterdir()), ids=lambda page: page.name)
def test_paths_are_links_in_texts_of_kips(page):
    """[`path`](../../path) is a click away from the code; the target is the path that a reader sees."""
    text = without_code(text_of(page))
    assert [path for path in _PATH.findall(_LINKED.sub("", text)) if (ROOT / path).exists()] == []
    assert [(path, target) for path, target in _LINKED.findall(text) if target != f"../../{path}"] == []


# Code


def test_every_module_says_what_it_is():
    # In tests the cases speak for themselves; a conftest or a table of varints needs no title.
    modules = [file for file in [*PRODUCT, *OTHERS] if (ROOT / "tests/unit") not in file.parents]
    silent = [file for file in modules if text_of(file) and not re.match('r?"""', text_of(file))]
    assert ids([file for file in silent if file.name != "conftest.py"]) == []


def test_modules_stay_small():
    bounds = {**dict.fromkeys(WRITTEN, MAX_LINES), **dict.fromkeys(OTHERS, MAX_TEST_LINES)}
    assert ids([file for file, most in bounds.items() if text_of(file).count("\n") > most]) == []


_QUEUE = re.compile(r"\b(?:deque|Queue)\(")
_BOUND = re.compile(r"\b(?:[Aa]t most|Bounded by|maxlen|MAX_\w+)\b")


def unbounded_queues(file):
    """Lines that create a queue whose bound neither they state, nor the comment above them."""
    comment = ""
    for number, line in enumerate(text_of(file).splitlines(), start=1):
        if line.lstrip().startswith("#"):
            comment += line
            continue
        if _QUEUE.search(line) and not _BOUND.search(comment + line):
            yield number
        comment = ""


def test_every_queue_states_its_bound():
    found = {str(file.relative_to(ROOT)): list(unbounded_queues(file)) for file in WRITTEN}
    assert {name: lines for name, lines in found.items() if lines} == {}


def named_warnings(file):
    """The parts of warnings that the tests of a file name (tests/conftest.py)."""
    for node in ast.walk(ast.parse(text_of(file))):
        match node:
            case ast.Call(func=ast.Attribute(attr="logs", value=ast.Attribute(attr="mark")), args=args):
                yield from (ast.literal_eval(part) for part in args)


def test_warnings_that_tests_name_are_logged_somewhere():
    source = "".join(re.sub(r'"\s*\n\s*f?"', "", text_of(file)) for file in WRITTEN)
    marked = [file for file in OTHERS if "mark.logs" in text_of(file)]
    unknown = {
        str(file.relative_to(ROOT)): [part for part in named_warnings(file) if part not in source]
        for file in marked
    }
    assert {name: parts for name, parts in unknown.items() if parts} == {}


#: What a sentence that can be read alone does not begin with.
_FRAGMENT = re.compile(
    r"(?:See|Of|As|Those|What|Until|Whose|Who|Which|Why|How|Also|And|Or|Nor|Not|Neither|Else)\b"
)
#: These may become fewer only: lower a number when the test says so.
MOST = {
    "fragments of docstrings": 0,
    "docstrings of three words or fewer": 0,
    "noqa": 121,
    "type: ignore": 21,
}


def docstrings(file):
    for node in ast.walk(ast.parse(text_of(file))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or "Without a docstring of its own."


def test_what_may_become_fewer_only():
    """A docstring is a sentence that can be read alone, and checks are suppressed rarely, each with a reason."""
    texts = [text for file in [*WRITTEN, *OTHERS] for text in docstrings(file)]
    python = [text_of(file) for file in [*PRODUCT, *OTHERS] if file.name != Path(__file__).name]
    found = {
        "fragments of docstrings": sum(_FRAGMENT.match(text) is not None for text in texts),
        "docstrings of three words or fewer": sum(len(text.split()) <= 3 for text in texts),
        "noqa": sum(text.count("# noqa") for text in python),
        "type: ignore": sum(text.count("# type: ignore") for text in python),
    }
    assert found == MOST


#: A sentence of a document up to its end, or the end of its cell, that begins where no subject is. Questions may.
_FRAGMENT_OF_DOCUMENT = re.compile(
    r"(?:^(?:[-*] |\d+\. )?|(?<=[.:!?|] ))(?:\*\*)?((?:What|Of|As|Those|Who|Whose|Which) [^.?|]*[.?|]?)",
    re.MULTILINE,
)
#: The pages of docs/benchmarks are made from results.
SENTENCES = [
    *(document for document in DOCUMENTS if document.parent.name != "benchmarks"),
    ROOT / "CHANGELOG.md",
]


def paragraphs(document):
    """The document's lists, tables and paragraphs, with the lines of a sentence joined by spaces."""
    return re.sub(r"(?<=\S)\n *(?=[^\s\-*|#\d])", " ", without_code(text_of(document)))


@pytest.mark.parametrize("document", SENTENCES, ids=ids(SENTENCES))
def test_sentences_of_a_document_begin_with_their_subject(document):
    found = _FRAGMENT_OF_DOCUMENT.findall(paragraphs(document))
    assert [sentence for sentence in found if not sentence.endswith("?")] == []


def test_nothing_is_left_for_later():
    reminder = re.compile(r"\b(TODO|FIXME|XXX)\b")
    assert ids([file for file in PRODUCT if reminder.search(text_of(file))]) == []


#: Figures of speech that stand for a technical term, and terms. In names, too: `told_offset` is an applied offset.
BANNED = {
    "tells?|told|telling": "report, return, send, notify; distinguish instead of tell apart",
    "hears?|heard": "learn of, replay, receive; record contact",
    "whoever": "the node, client or caller that",
    "nobody|anybody|somebody|everybody": "no node, any client, a reader, all brokers",
    "anew": "again; rebuild, recreate, restart",
    "for ever": "indefinitely, without end",
    "in peace": "stop, ignore",
    "in vain": "without response, without effect",
    "(?:held|holds?|holding) back": "delay, throttle",
    "news": "new data, new records, a change",
    "looked (?:at|through)": "check, read, compare, search",
    "on (?:its|their) way": "in flight",
    "askers?": "requester, client",
    "mend(?:s|ed|ing|ings)?": "heal, repair, restart",
    "whereupon": "and then",
    "as ever": "as before, as in the base class",
    "(?:has|have|had) (?:a|no|its|their) say": "vote, count",
}
_BANNED = re.compile(rf"\b(?:{'|'.join(f'({words})' for words in BANNED)})\b")
PROSE = [
    *(file for file in [*WRITTEN, *OTHERS] if file != Path(__file__)),
    *DOCUMENTS,
    *(
        file
        for folder in ("docker", "tests/scenario")
        for file in (ROOT / folder).rglob("*.*")
        if file.suffix in (".txt", ".yaml", ".sh")
    ),
    ROOT / "Makefile",
    ROOT / "pyproject.toml",
]


def banned_in(text):
    """(offset, word, what to write instead)"""
    for match in _BANNED.finditer(text.lower().replace("_", " ")):
        yield match.start(), match[0], list(BANNED.values())[match.lastindex - 1]


@pytest.mark.parametrize(("text", "banned"), [
    ("told_offset",             ["told"]),
    ("Nobody is told anew",     ["nobody", "told", "anew"]),
    ("a node that is heard of", ["heard"]),
    ("a wait for ever",         ["for ever"]),
    ("storytelling, renewal",   []),
])  # fmt: skip
def test_what_counts_as_a_figure_of_speech(text, banned):
    assert [word for _, word, _ in banned_in(text)] == banned


def test_prose_and_names_have_technical_terms():
    assert [
        f"{file.relative_to(ROOT)}:{text_of(file).count(chr(10), 0, at) + 1}: {word} -> {term}"
        for file in PROSE
        for at, word, term in banned_in(text_of(file))
    ] == []


EXAMPLES = [file for file in WRITTEN if ">>> " in text_of(file)]


@pytest.mark.parametrize("file", EXAMPLES, ids=ids(EXAMPLES))
def test_examples_in_docstrings_are_right(file):
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    outcome = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert outcome.attempted > 0
    assert outcome.failed == 0


STORIES = sorted((ROOT / "tests/scenario").rglob("*.txt"))


@pytest.mark.parametrize("story", STORIES, ids=ids(STORIES))
def test_a_story_names_its_rule(story):
    assert re.match(r"# (KIP-\d+|Kafka's )", text_of(story)), (
        "which rule of which KIP, or of Kafka's, is it about?"
    )

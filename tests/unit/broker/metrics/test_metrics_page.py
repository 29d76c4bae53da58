"""docs/METRICS.md lists every metric."""

from collections import Counter

from metrics_page import PAGE, families, page


def test_the_page_is_what_the_tables_say():
    assert PAGE.read_text() == page(), (
        "make it again: .venv/bin/python -m tests.unit.broker.metrics.metrics_page"
    )


def test_no_name_is_given_twice():
    assert [name for name, count in Counter(family.name for family in families()).items() if count > 1] == []


def test_a_documentation_is_a_sentence():
    assert [family.name for family in families() if not family.documentation.endswith(".")] == []

"""Parameters of views, well-formed and not."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.page.query import CannotShow, Query


def read(text):
    query = Query(text)
    query.number("page", 0, most=9)
    query.check_all_read()


def test_texts_and_numbers():
    query = Query("search=a%2Bb+c&page=7&internal=1&empty=")
    assert query.text("search") == "a+b c"
    assert (query.number("page", 0), query.number("size", 3), query.number("empty", 4)) == (7, 3, 4)
    assert (query.is_set("internal"), query.is_set("empty")) == (True, False)
    query.check_all_read()


@pytest.mark.parametrize(("text", "sentence"), [
    ("page=-1",        "page must be a number from 0 to 9."),
    ("page=10",        "page must be a number from 0 to 9."),
    ("page=1e3",       "page must be a number from 0 to 9."),
    ("page=%D9%A1",    "page must be a number from 0 to 9."),
    ("page=" + "9" * 5000, "page must be a number from 0 to 9."),
    ("pgae=1",         "The view has no parameter 'pgae'."),
    ("%1b=1",          r"The view has no parameter '\x1b'."),
    ("a=%ff",          "The parameters of the address cannot be read."),
    ("a=1&" * 100,     "The parameters of the address cannot be read."),
])  # fmt: skip
def test_what_is_refused(text, sentence):
    with pytest.raises(CannotShow) as refused:
        read(text)
    assert (refused.value.status, str(refused.value)) == (400, sentence)


@given(st.text("ab=&%+;019-\xff", max_size=60))
def test_any_text_is_read_or_refused(text):
    with suppress(CannotShow):
        assert Query(text).number("a", 0) >= 0

"""Heads of requests, well-formed and not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.http.request import BadRequest, parse_head


def head(*lines):
    return "\r\n".join(lines).encode("latin-1")


@pytest.mark.parametrize(("lines", "path", "is_head", "accept", "is_persistent"), [
    (["GET /metrics HTTP/1.1", "Host: h"],                          "/metrics", False, "", True),
    (["HEAD / HTTP/1.1", "host:h"],                                 "/",        True,  "", True),
    (["GET /a?b=/c#d HTTP/1.1", "Host: h"],                         "/a",       False, "", True),
    (["GET http://h:1/metrics HTTP/1.1", "Host: h"],                "/metrics", False, "", True),
    (["GET http://h HTTP/1.1", "Host: h"],                          "/",        False, "", True),
    (["GET / HTTP/1.1", "Host: h", "Connection: Close"],            "/",        False, "", False),
    (["GET / HTTP/1.1", "Host: h", "Connection: te, close"],        "/",        False, "", False),
    (["GET / HTTP/1.0"],                                            "/",        False, "", False),
    (["GET / HTTP/1.0", "Connection: keep-alive"],                  "/",        False, "", True),
    (["GET / HTTP/1.1", "Host: h", "Accept:  a/b ", "accept: c/d"], "/",        False, "a/b,c/d", True),
    (["GET / HTTP/1.1", "Host:", "Content-Length: 0"],              "/",        False, "", True),
])  # fmt: skip
def test_what_is_understood(lines, path, is_head, accept, is_persistent):
    found = parse_head(head(*lines))
    assert (found.path, found.is_head, found.accept, found.is_persistent) == (
        path,
        is_head,
        accept,
        is_persistent,
    )


@pytest.mark.parametrize(("lines", "query", "host"), [
    (["GET /a?b=/c&d=?#e HTTP/1.1", "Host: h:1"], "b=/c&d=?", "h:1"),
    (["GET /a#e?f HTTP/1.1", "Host:"],            "",         ""),
    (["GET /a? HTTP/1.0"],                        "",         ""),
])  # fmt: skip
def test_the_query_and_the_host(lines, query, host):
    found = parse_head(head(*lines))
    assert (found.path, found.query, found.host) == ("/a", query, host)


@pytest.mark.parametrize(("lines", "status"), [
    ([""],                                                              400),
    (["GET /"],                                                         400),
    (["GET  / HTTP/1.1", "Host: h"],                                    400),
    (["GET /a b HTTP/1.1", "Host: h"],                                  400),
    (["GET metrics HTTP/1.1", "Host: h"],                               400),
    (["GET * HTTP/1.1", "Host: h"],                                     400),
    (["GET / HTTP/1.1"],                                                400),  # no Host
    (["GET / HTTP/1.1", "Host: h", "Host: h"],                          400),
    (["GET / HTTP/1.1", "Host: h", "A : b"],                            400),
    (["GET / HTTP/1.1", "Host: h", " folded"],                          400),
    (["GET / HTTP/1.1", "Host: h", "A: \x00"],                          400),
    (["GET / HTTP/1.1\nHost: h"],                                       400),
    (["\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"],                  400),  # TLS
    (["POST / HTTP/1.1", "Host: h", "Content-Length: 1"],               405),
    (["get / HTTP/1.1", "Host: h"],                                     405),
    (["CONNECT h:1 HTTP/1.1", "Host: h"],                               405),
    (["GET / HTTP/1.1", "Host: h", "Content-Length: 1"],                413),
    (["GET / HTTP/1.1", "Host: h", "Transfer-Encoding: chunked"],       413),
    (["GET / HTTP/2.0", "Host: h"],                                     505),
])  # fmt: skip
def test_what_is_refused(lines, status):
    with pytest.raises(BadRequest) as refused:
        parse_head(head(*lines))
    assert refused.value.status == status


@given(st.binary(max_size=200) | st.text("GETHAD /:\r\n1.0aHost\t", max_size=60).map(str.encode))
def test_any_bytes_are_parsed_or_refused(data):
    try:
        path = parse_head(data).path
    except BadRequest:
        return
    assert path.startswith("/")

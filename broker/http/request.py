"""HTTP request: the head of a GET or HEAD request, parsed from untrusted bytes (RFC 9110, RFC 9112).

Only what a scraper, a load balancer and a person's browser send is understood; everything else is refused with the
status that says so, and its connection is closed, since the end of what was sent is not known then.
"""

import re
from dataclasses import dataclass
from typing import Final

#: The maximum size of a request's head. Prometheus' is 300 bytes, a browser's with its cookies 2 KiB.
MAX_HEAD_BYTES: Final = 8 * 1024
HEAD_END: Final = b"\r\n\r\n"

_NAME: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE: Final = re.compile(rf"({_NAME}) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])")
_FIELD: Final = re.compile(rf"({_NAME}):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_ABSOLUTE: Final = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
_SERVED: Final = ("GET", "HEAD")


class BadRequest(Exception):
    """A request that is refused: its HTTP status, and a sentence for the person who reads the response."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request without a body."""

    path: str
    #: What follows the question mark, as it was sent.
    query: str = ""
    #: The Host header; empty if an HTTP/1.0 client sent none.
    host: str = ""
    #: Whether the method is HEAD: the response then has no body.
    is_head: bool
    accept: str
    #: The Origin header, and Sec-Fetch-Site: the site whose page asks, as browsers say it; empty if they do not.
    origin: str = ""
    fetch_site: str = ""
    #: Whether the connection stays open after the response.
    is_persistent: bool


def parse_head(head: bytes) -> HttpRequest:
    r"""Parse everything before the empty line. Raises BadRequest.

    >>> parse_head(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a").path
    '/metrics'
    """
    line, *lines = head.decode("latin-1").split("\r\n")
    found = _REQUEST_LINE.fullmatch(line)
    if found is None:
        raise BadRequest(400, "The first line is not that of an HTTP request.")
    method, target, major, minor = found.groups()
    if major != "1":
        raise BadRequest(505, "Only HTTP/1.0 and HTTP/1.1 are served.")
    fields = _fields(lines)
    if minor != "0" and len(fields.get("host", ())) != 1:
        raise BadRequest(400, "An HTTP/1.1 request has one Host header.")
    if method not in _SERVED:
        raise BadRequest(405, f"Only {' and '.join(_SERVED)} are served.")
    if "transfer-encoding" in fields or any(length != "0" for length in fields.get("content-length", ())):
        raise BadRequest(413, "A request must not have a body.")
    if (absolute := _ABSOLUTE.match(target)) is not None:
        target = target[absolute.end() :] or "/"
    if not target.startswith("/"):
        raise BadRequest(400, "The target is not a path.")
    options = {each.strip().lower() for value in fields.get("connection", ()) for each in value.split(",")}
    path, _, query = target.partition("#")[0].partition("?")
    return HttpRequest(
        path=path,
        query=query,
        host=",".join(fields.get("host", ())),
        is_head=method == "HEAD",
        accept=",".join(fields.get("accept", ())),
        origin=",".join(fields.get("origin", ())),
        fetch_site=",".join(fields.get("sec-fetch-site", ())),
        is_persistent="keep-alive" in options if minor == "0" else "close" not in options,
    )


def _fields(lines: list[str]) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    for line in lines:
        found = _FIELD.fullmatch(line)
        if found is None:  # also a folded line, and a space before the colon
            raise BadRequest(400, "A header is malformed.")
        fields.setdefault(found[1].lower(), []).append(found[2].rstrip(" \t"))
    return fields
